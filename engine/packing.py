"""What attention needs to know of documents that share a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.data.batch import Batch
from engine.placement import placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Of one micro-batch.

    Args:
        positions: `[sequences, seq_len]` int64, place of each token in its document.
        mask: `[sequences, 1, seq_len, seq_len]` bool: the row's token may look at the column's, one
            of the same document that does not come later.
    """

    positions: Tensor
    mask: Tensor


def packing_of(batch: Batch, device: torch.device) -> Packing | None:
    """On `device`; None for samples that are not packed: all of a sequence is one text then."""
    if batch.documents is None or batch.positions is None:
        return None
    documents = placed(batch.documents, device)
    is_same = documents[:, :, None] == documents[:, None, :]
    size = documents.shape[1]
    is_past = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    return Packing(positions=placed(batch.positions, device), mask=(is_same & is_past)[:, None])
