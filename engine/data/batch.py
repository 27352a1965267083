"""What a stage gets to compute on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

IGNORED = -100
"""Target of a place that has none: the next token belongs to another document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples one under the other. Shapes: all `[sequences, seq_len]` int64.

    Args:
        inputs: tokens.
        targets: the token that follows each, or `IGNORED`.
        positions: of packed samples: place of each token since its document's (or the sample's) start.
        documents: of packed samples: number of each token's document within its sample, from 0.
    """

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.positions is None) == (self.documents is None), "positions and documents come together"

    @property
    def num_targets(self) -> int:
        """Targets that count in the loss."""
        return int((self.targets != IGNORED).sum())
