"""The training text of a run, and the part that is kept from training to evaluate on."""

from __future__ import annotations

import math
from typing import Protocol

from db.run_config import RunConfig
from engine.data.batch import Batch
from engine.data.packing import PackedDocuments
from engine.data.tokens import TokenText
from engine.data.windows import Windows
from engine.errors import ConfigError

HELD_OUT_SHARE = 0.02
"""Of the tokens, at the end of the text, if the run evaluates; at least one sample."""


class Corpus:
    """Batches by global sample index, pure functions of seed and index.

    Args:
        text: the same on every rank.
        config: with `train.eval_every` the end of the text is held out and evaluation samples come
            from it in order; else all of it trains and there are none.

    Raises:
        ConfigError: the text is too short.
    """

    def __init__(self, text: TokenText, config: RunConfig) -> None:
        self._evaluation: _Samples | None = None
        if config.train.eval_every:
            text, held_out = _split(text, config.model.seq_len)
            self._evaluation = _samples(held_out, config, seed=None)
        self._training = _samples(text, config, seed=config.train.seed)

    def batch(self, first: int, num_sequences: int) -> Batch:
        """Training samples `[first, first + num_sequences)`."""
        return self._training.batch(first, num_sequences)

    def num_targets(self, first: int, num_sequences: int) -> int:
        """Targets that count in the loss of the same samples; cheap."""
        return self._training.num_targets(first, num_sequences)

    def evaluation_batch(self, first: int, num_sequences: int) -> Batch:
        """Evaluation samples `[first, first + num_sequences)`; after the last one comes the first."""
        assert self._evaluation is not None, "only a run with eval_every has evaluation samples"
        return self._evaluation.batch(first, num_sequences)

    def num_evaluation_targets(self, first: int, num_sequences: int) -> int:
        """Targets that count in the loss of the same samples; cheap."""
        assert self._evaluation is not None, "only a run with eval_every has evaluation samples"
        return self._evaluation.num_targets(first, num_sequences)


class _Samples(Protocol):
    def batch(self, first: int, num_sequences: int) -> Batch: ...

    def num_targets(self, first: int, num_sequences: int) -> int: ...


def _split(text: TokenText, seq_len: int) -> tuple[TokenText, TokenText]:
    held_out = max(seq_len + 1, math.ceil(text.num_tokens * HELD_OUT_SHARE))
    least = held_out + seq_len + 2
    if text.num_tokens < least:
        raise ConfigError(
            f"to hold out {held_out} tokens for evaluation the text must have at least {least}, given {text.num_tokens}"
        )
    return text.split(held_out)


def _samples(text: TokenText, config: RunConfig, seed: int | None) -> _Samples:
    kind = PackedDocuments if config.data.packed else Windows
    return kind(text, config.model.seq_len, seed)
