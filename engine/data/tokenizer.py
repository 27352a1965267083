"""Text to tokens by a Hugging Face `tokenizer.json`.

The tokenizer adds nothing of its own (no start token, no padding, no truncation), and text that
spells a special token stays text. Long documents are tokenised in pieces that end at line ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.tokens import TokenText, joined
from engine.errors import ConfigError

END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<EOD>",
    "[EOS]",
    "[SEP]",
)
"""Names of the end-of-document token; the first that is a special token of the tokenizer is it."""
_PIECE_CHARS = 1 << 18
_ROUND_CHARS = 1 << 22


def tokenised(documents: list[bytes], path: str, vocab_size: int) -> TokenText:
    """Documents as tokens, each with its end-of-document token if the tokenizer has one.

    Bytes that are not UTF-8 become U+FFFD.

    Raises:
        ConfigError: the tokenizer cannot be read, its vocabulary exceeds `vocab_size`, or it makes
            no token of the text.
    """
    tokenizer = _read(path)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < size <= vocab_size:
        raise ConfigError(f"data.tokenizer {path} has {size} tokens and needs vocab_size >= {size}, given {vocab_size}")
    dtype = np.uint16 if size <= 1 << 16 else np.int32
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content: number for number, token in added.items() if token.special}
    end = next((special[name] for name in END_TOKENS if name in special), None)
    parts: list[list[NDArray[Any]]] = [[] for _ in documents]
    for numbers, pieces in _rounds(documents):
        encodings = tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        for number, encoding in zip(numbers, encodings, strict=True):
            parts[number].append(np.array(encoding.ids, dtype=dtype))
    ending = np.array([] if end is None else [end], dtype=dtype)
    whole = [np.concatenate([*tokens, ending]) for tokens in parts if sum(map(len, tokens))]
    if not whole:
        raise ConfigError(f"data.tokenizer {path} makes no token of the text")
    return joined(whole, vocab_size)


def _read(path: str) -> Any:
    from tokenizers import Tokenizer  # only the rank that tokenises loads it

    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"data.tokenizer must be 'bytes' or the path of a tokenizer.json, given {path!r}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"data.tokenizer {path} is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _rounds(documents: list[bytes]) -> Iterator[tuple[list[int], list[str]]]:
    """Pieces and the numbers of their documents, some megabytes at a time."""
    numbers: list[int] = []
    pieces: list[str] = []
    size = 0
    for number, document in enumerate(documents):
        for piece in _pieces(document.decode("utf-8", errors="replace")):
            numbers.append(number)
            pieces.append(piece)
            size += len(piece)
            if size >= _ROUND_CHARS:
                yield numbers, pieces
                numbers, pieces, size = [], [], 0
    if pieces:
        yield numbers, pieces


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        stop = min(len(text), start + _PIECE_CHARS)
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop
