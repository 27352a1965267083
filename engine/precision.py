"""Element types: what a run computes in, and what it adds up in.

float32, float64   everything in this one
bfloat16           weights and activations; gradient sums, their sync, master weights, moments,
                   rotations, logits and the loss are float32
"""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type for what bf16 is too coarse for; other types are their own."""
    return torch.promote_types(dtype, torch.float32)
