"""Documents as tokens: one array, and where each document begins in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import ConfigError

_CHECKED_TOKENS = 1 << 24
_CHUNK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """Documents one after the other, end-of-document tokens included where there are any.

    Args:
        tokens: 1-D, of any integer type; may be mapped from a file.
        bounds: int64, `[documents + 1]`: document i is `tokens[bounds[i]:bounds[i + 1]]`; none is empty.
        vocab_size: of the model; no token that is handed out reaches it.
    """

    tokens: NDArray[Any]
    bounds: NDArray[np.int64]
    vocab_size: int

    def __post_init__(self) -> None:
        assert len(self.bounds) >= 2, "a text has at least one document"
        assert (np.diff(self.bounds) > 0).all(), "no document is empty"

    @property
    def num_tokens(self) -> int:
        return int(self.bounds[-1] - self.bounds[0])

    @property
    def num_documents(self) -> int:
        return len(self.bounds) - 1

    def take(self, first: int, stop: int) -> NDArray[np.int64]:
        """Tokens `[first, stop)` of the array.

        Raises:
            ConfigError: the model's vocabulary has no such token.
        """
        tokens = self.tokens[first:stop].astype(np.int64)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            bad = tokens[(tokens < 0) | (tokens >= self.vocab_size)][0]
            raise ConfigError(
                f"tokens must be below the model's vocab_size {self.vocab_size}, given {bad} between {first} and {stop}"
            )
        return tokens

    def check(self) -> None:
        """Looks at the first tokens now, so that a wrong vocabulary shows before training starts.

        Raises:
            ConfigError: as `take`.
        """
        first, end = int(self.bounds[0]), int(self.bounds[-1])
        for start in range(first, min(end, first + _CHECKED_TOKENS), _CHUNK_TOKENS):
            self.take(start, min(end, start + _CHUNK_TOKENS))

    def split(self, num_last: int) -> tuple[TokenText, TokenText]:
        """Without the last `num_last` tokens, and only those; a document at the cut becomes two."""
        first, end = int(self.bounds[0]), int(self.bounds[-1])
        cut = end - num_last
        assert first < cut < end, f"a text of {self.num_tokens} tokens cannot give away {num_last}"
        inside = self.bounds[(self.bounds > first) & (self.bounds < end)]
        before, after = inside[inside < cut], inside[inside > cut]
        return (
            TokenText(tokens=self.tokens, bounds=np.concatenate([[first], before, [cut]]), vocab_size=self.vocab_size),
            TokenText(tokens=self.tokens, bounds=np.concatenate([[cut], after, [end]]), vocab_size=self.vocab_size),
        )


def joined(documents: Sequence[NDArray[Any]], vocab_size: int) -> TokenText:
    """Documents in memory as one text; empty ones are left out."""
    documents = [document for document in documents if len(document)]
    bounds = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return TokenText(tokens=np.concatenate(documents), bounds=bounds, vocab_size=vocab_size)
