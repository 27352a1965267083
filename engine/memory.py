"""Bytes that a device keeps for parameters: a pure function of the model and the element sizes.

What the profile tells the planner about memory. Optimizer state is counted as if a group shared it
with nobody (one pipeline); every further pipeline keeps a part of it, so a plan that fits here fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.parameters import Parameter, Place

NUM_STATES = 3
"""Master weight and two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes of one element: of weights and activations; of gradients and optimizer state."""

    weight: int
    state: int


def parameter_bytes(
    parameters: Sequence[Parameter], places: Sequence[Place], max_tp: int, element: ElementBytes
) -> float:
    """Bytes, on each device of a `max_tp` group, of the parameters at `places`.

    Weights and gradients of replicated parameters are there in full, everything else is cut. Tied
    weights (place "ends") are held at both ends with half of the optimizer state at each; a pipeline
    of one stage holds them once, and is counted with one more weight and gradient than it has.
    """
    total = 0.0
    for parameter in parameters:
        if parameter.place in places:
            copies = 1 if parameter.is_sliced else max_tp
            share = 0.5 if parameter.place == "ends" else 1.0
            held = (element.weight + element.state) * copies + NUM_STATES * element.state * share
            total += parameter.num_elements * held / max_tp
    return total
