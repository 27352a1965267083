"""From a run's configuration to tokens."""

from __future__ import annotations

import numpy as np

from db.run_config import DataConfig
from engine.data.megatron import read_megatron
from engine.data.text import read_documents
from engine.data.tokenizer import tokenised
from engine.data.tokens import TokenText, joined
from engine.errors import ConfigError

BYTES = "bytes"
BYTE_VALUES = 256
END_BYTE = 0
"""Ends a document of bytes in packed samples: text has no zero bytes."""


def is_tokenised(data: DataConfig) -> bool:
    """Whether reading includes the work of a tokenizer."""
    return data.format == "text" and data.tokenizer != BYTES


def read_tokens(data: DataConfig, vocab_size: int) -> TokenText:
    """All of a data source. Megatron's files are taken whole and as they are; `tokenizer` and
    `max_bytes` concern text.

    Args:
        vocab_size: of the model.

    Raises:
        ConfigError: the source is not there, is damaged, or does not fit the vocabulary.
    """
    if data.format == "megatron":
        return read_megatron(data.source, vocab_size)
    documents = read_documents(data.source, data.max_bytes)
    if is_tokenised(data):
        return tokenised(documents, data.tokenizer, vocab_size)
    if vocab_size < BYTE_VALUES:
        raise ConfigError(f"byte-level text needs vocab_size >= {BYTE_VALUES}, given {vocab_size}")
    ending = bytes([END_BYTE]) if data.packed else b""
    return joined([np.frombuffer(document + ending, dtype=np.uint8) for document in documents], vocab_size)
