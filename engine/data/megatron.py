"""Tokens that Megatron-LM's preprocessing wrote: a `.bin` of tokens and an `.idx` that cuts it.

Index, little-endian: 9 bytes of magic, uint64 version, uint8 code of the token type, uint64 number of
sequences, uint64 number of document bounds; then int32 length and int64 byte offset of each sequence,
and int64 bounds of the documents, counted in sequences. Both files are mapped, not loaded.
Source: the data pipeline's readme in Megatron Core's `datasets` folder.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.tokens import TokenText
from engine.errors import ConfigError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TOKEN_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""By code. 6 and 7 are floating-point numbers, which are no tokens."""
_HEADER = struct.Struct("<9sQBQQ")


def read_megatron(prefix: str, vocab_size: int) -> TokenText:
    """The documents of `prefix`.idx and `prefix`.bin; empty ones are left out.

    Raises:
        ConfigError: a file is missing, is not of this form, was cut short or does not fit the
            other, or a token near the start exceeds the vocabulary.
    """
    index, data = (Path(f"{Path(prefix).expanduser()}{ending}") for ending in (".idx", ".bin"))
    for path in (index, data):
        if not path.is_file():
            raise ConfigError(f"data.source must be the common path of an .idx and a .bin file, found no {path}")
    try:
        dtype, bounds = _read_index(index)
        expected = int(bounds[-1]) * dtype.itemsize
        if data.stat().st_size != expected:
            raise ConfigError(f"{data} must have {expected} bytes by its index, given {data.stat().st_size}")
        kept = np.concatenate([bounds[:1], bounds[1:][np.diff(bounds) > 0]])
        if len(kept) < 2:
            raise ConfigError(f"{data} holds no tokens")
        tokens = np.memmap(data, dtype=dtype, mode="r")
    except OSError as error:
        raise ConfigError(f"cannot read {prefix}.idx and .bin: {error}") from error
    text = TokenText(tokens=tokens, bounds=kept, vocab_size=vocab_size)
    text.check()
    return text


def _read_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int64]]:
    """Type of the tokens, and the documents' bounds in tokens."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise ConfigError(f"{path} is no Megatron index: it must start with {MAGIC!r}, given {header[: len(MAGIC)]!r}")
    _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
    if version != VERSION:
        raise ConfigError(f"{path} must have version {VERSION}, given {version}")
    if code not in TOKEN_TYPES:
        raise ConfigError(f"{path} must name one of the token types {sorted(TOKEN_TYPES)}, given {code}")
    expected = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if size != expected:
        raise ConfigError(
            f"{path} must have {expected} bytes for {num_sequences} sequences and {num_bounds} bounds, given {size}"
        )
    dtype = np.dtype(TOKEN_TYPES[code]).newbyteorder("<")
    if not num_sequences:
        raise ConfigError(f"{path} holds no sequences")
    at = _HEADER.size
    lengths = np.memmap(path, dtype="<i4", mode="r", offset=at, shape=(num_sequences,))
    at += 4 * num_sequences
    offsets = np.memmap(path, dtype="<i8", mode="r", offset=at, shape=(num_sequences,))
    at += 8 * num_sequences
    documents = np.memmap(path, dtype="<i8", mode="r", offset=at, shape=(num_bounds,)) if num_bounds else np.array([])
    if lengths.min() < 0:
        raise ConfigError(f"{path} must have lengths of at least 0, given {lengths.min()}")
    ends = np.zeros(num_sequences + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    if not np.array_equal(offsets, ends[:-1] * dtype.itemsize):
        raise ConfigError(f"{path} must hold sequences one after the other, its offsets do not follow its lengths")
    if num_bounds < 2 or documents[0] != 0 or documents[-1] != num_sequences or (np.diff(documents) < 0).any():
        raise ConfigError(f"{path} must have document bounds that rise from 0 to {num_sequences}")
    return dtype, ends[documents]
