"""Samples as documents one after the other, without gaps.

Every epoch lays all documents in an order of its own; the epochs follow each other without end, and
sample i is what lies at tokens `[i * seq_len, (i + 1) * seq_len]` of that line. So an epoch uses each
token once as an input, whatever the length of the text, and a sample may reach into the next epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.data.batch import IGNORED, Batch
from engine.data.mixing import mix, shuffled
from engine.data.tokens import TokenText
from engine.errors import ConfigError

_KEPT_EPOCHS = 2


class PackedDocuments:
    """Samples of `seq_len + 1` tokens that know their documents.

    A document that a sample's end cuts goes on in the next sample as a document of its own there. The
    first token of a document is no target of the one before it.

    Args:
        seed: shuffles the documents of each epoch; None: they stay in order.

    Raises:
        ConfigError: the text is shorter than a sample, or all its documents are single tokens.
    """

    def __init__(self, text: TokenText, seq_len: int, seed: int | None) -> None:
        if text.num_tokens < seq_len + 1:
            raise ConfigError(
                f"the text must have at least {seq_len + 1} tokens for seq_len {seq_len}, given {text.num_tokens}"
            )
        if text.num_documents == text.num_tokens:
            raise ConfigError("packed documents must have two tokens or more, each one given has a single token")
        self._text, self._seq_len = text, seq_len
        self._key = None if seed is None else mix(seed)
        self._epochs: dict[int, _Epoch] = {}

    def batch(self, first: int, num_sequences: int) -> Batch:
        """Samples `[first, first + num_sequences)`."""
        tokens, documents, positions = (
            torch.from_numpy(np.stack(rows))
            for rows in zip(*map(self._sample, range(first, first + num_sequences)), strict=True)
        )
        is_same = documents[:, 1:] == documents[:, :-1]
        return Batch(
            inputs=tokens[:, :-1],
            targets=tokens[:, 1:].where(is_same, IGNORED),
            positions=positions[:, :-1],
            documents=documents[:, :-1],
        )

    def num_targets(self, first: int, num_sequences: int) -> int:
        """Of the same samples, without reading them: places less the documents that start in them."""
        begin, end = first * self._seq_len, (first + num_sequences) * self._seq_len
        return end - begin - (self._num_started(end) - self._num_started(begin))

    def _sample(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Tokens, documents and positions, `[seq_len + 1]` each."""
        pieces, missing = [], self._seq_len + 1
        number, at = divmod(index * self._seq_len, self._text.num_tokens)
        while missing:
            epoch = self._epoch(number)
            place = int(np.searchsorted(epoch.starts, at, side="right")) - 1
            while missing and place < self._text.num_documents:
                first = int(self._text.bounds[epoch.order[place]]) + at - int(epoch.starts[place])
                length = min(missing, int(epoch.starts[place + 1]) - at)
                pieces.append(self._text.take(first, first + length))
                missing, at, place = missing - length, at + length, place + 1
            number, at = number + 1, 0
        lengths = [len(piece) for piece in pieces]
        documents = np.repeat(np.arange(len(pieces)), lengths)
        return np.concatenate(pieces), documents, np.concatenate([np.arange(length) for length in lengths])

    def _num_started(self, token: int) -> int:
        """Documents that start at or before a token of the endless line."""
        number, at = divmod(token, self._text.num_tokens)
        inside = int(np.searchsorted(self._epoch(number).starts[:-1], at, side="right"))
        return number * self._text.num_documents + inside

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._epochs:
            if len(self._epochs) >= _KEPT_EPOCHS:
                del self._epochs[next(iter(self._epochs))]
            count = self._text.num_documents
            order = np.arange(count) if self._key is None else shuffled(count, mix(self._key + number))
            starts = np.zeros(count + 1, dtype=np.int64)
            np.cumsum(np.diff(self._text.bounds)[order], out=starts[1:])
            self._epochs[number] = _Epoch(order=order, starts=starts)
        return self._epochs[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """`order`: documents as they are laid. `starts`: `[documents + 1]`, where each begins, and the end."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
