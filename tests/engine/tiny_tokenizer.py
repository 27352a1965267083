"""A tiny byte-level BPE tokenizer, trained on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def tiny(text: str, *, vocab_size: int = 300, special: tuple[str, ...] = ("<|endoftext|>",)) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def saved(tokenizer: Any, folder: Path) -> str:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)
