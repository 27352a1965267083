"""Random layouts that a job can move between: one small model on eight devices."""

from __future__ import annotations

from engine.layout import Layout, layout
from engine.parameters import parameters
from tests.engine.test_layout import MODEL, PARAMETERS, plan_of

TIED = parameters(MODEL.model_copy(update={"tie_embeddings": True}))


def layout_of(seed: int, *, is_tied: bool = False) -> Layout:
    """Groups of up to four devices."""
    return layout(plan_of(seed), TIED if is_tied else PARAMETERS, 4)
