"""One rank tokenises, all train: the tokens of a text, told by rank 0.

Tokenising costs processor time that the ranks of a node would spend on the same text once each.
Nothing is written to disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from db.run_config import DataConfig
from engine.agreement import broadcast_text, vote
from engine.data.source import is_tokenised, read_tokens
from engine.data.tokens import TokenText
from engine.errors import ConfigError

_CHUNK_BYTES = 1 << 26


def shared_tokens(data: DataConfig, vocab_size: int) -> TokenText:
    """`read_tokens`, the same on every rank. Collective: all ranks of the world.

    Bytes and mapped files are read by every rank, tokenised text by rank 0 alone.

    Raises:
        ConfigError: on all ranks, with the first problem that any of them has.
    """
    text, problem = None, ""
    if dist.get_rank() == 0 or not is_tokenised(data):
        try:
            text = read_tokens(data, vocab_size)
        except ConfigError as error:
            problem = str(error)
    problem = vote(problem)
    if problem:
        raise ConfigError(problem)
    if not is_tokenised(data):
        assert text is not None
        return text
    return TokenText(
        tokens=_told(text.tokens if text else None),
        bounds=_told(text.bounds if text else None),
        vocab_size=vocab_size,
    )


def _told(array: NDArray[Any] | None) -> NDArray[Any]:
    """Rank 0's 1-D array, on every rank. Collective."""
    kind = broadcast_text(f"{array.dtype.str} {len(array)}" if array is not None else "")
    dtype, length = kind.split()
    whole = array if array is not None else np.empty(int(length), dtype=dtype)
    flat = torch.from_numpy(np.ascontiguousarray(whole).view(np.uint8))
    for chunk in flat.split(_CHUNK_BYTES):
        dist.broadcast(chunk, src=0)
    return whole
