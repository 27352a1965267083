"""Samples as windows of one long text; documents play no part."""

from __future__ import annotations

import numpy as np
import torch

from engine.data.batch import Batch
from engine.data.mixing import mix
from engine.data.tokens import TokenText
from engine.errors import ConfigError


class Windows:
    """Windows of `seq_len + 1` tokens.

    Args:
        seed: places them pseudo-randomly; None: one after the other, and again from the start.

    Raises:
        ConfigError: the text is shorter than a window.
    """

    def __init__(self, text: TokenText, seq_len: int, seed: int | None) -> None:
        least = seq_len + (1 if seed is None else 2)
        if text.num_tokens < least:
            raise ConfigError(
                f"the text must have at least {least} tokens for seq_len {seq_len}, given {text.num_tokens}"
            )
        self._text, self._seq_len = text, seq_len
        self._key = None if seed is None else mix(seed)

    def batch(self, first: int, num_sequences: int) -> Batch:
        """Samples `[first, first + num_sequences)`."""
        starts = [self._start(index) for index in range(first, first + num_sequences)]
        windows = torch.from_numpy(np.stack([self._text.take(start, start + self._seq_len + 1) for start in starts]))
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:])

    def num_targets(self, first: int, num_sequences: int) -> int:
        """Of the same samples: every place has a target."""
        return num_sequences * self._seq_len

    def _start(self, index: int) -> int:
        first, num_tokens = int(self._text.bounds[0]), self._text.num_tokens
        if self._key is None:
            return first + index % ((num_tokens - 1) // self._seq_len) * self._seq_len
        return first + mix(self._key + index) % (num_tokens - self._seq_len)
