"""Megatron's .bin and .idx files: read as they are, refused with one clear error when they are not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from db.run_config import DataConfig
from engine.data.source import read_tokens
from engine.errors import ConfigError

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
SEQUENCES = [[5, 6, 7], [8], [], [9, 10], [11, 12, 13, 14]]
BOUNDS = [0, 2, 3, 5]  # documents: 5 6 7 8; an empty one; 9 10 11 12 13 14


def write(
    prefix: Path, kind: str = "uint16", sequences: list[list[int]] = SEQUENCES, bounds: list[int] = BOUNDS
) -> None:
    size = np.dtype(kind).itemsize
    lengths = [len(sequence) for sequence in sequences]
    offsets = [sum(lengths[:index]) * size for index in range(len(lengths))]
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[kind], len(sequences), len(bounds))
    body = struct.pack(f"<{len(lengths)}i{len(offsets)}q{len(bounds)}q", *lengths, *offsets, *bounds)
    Path(f"{prefix}.idx").write_bytes(header + body)
    Path(f"{prefix}.bin").write_bytes(
        np.array([token for sequence in sequences for token in sequence], dtype=kind).tobytes()
    )


def read(prefix: Path, vocab_size: int = 256) -> list[list[int]]:
    text = read_tokens(DataConfig(source=str(prefix), format="megatron"), vocab_size)
    return [
        text.take(int(text.bounds[index]), int(text.bounds[index + 1])).tolist() for index in range(text.num_documents)
    ]


@pytest.mark.parametrize("kind", CODES)
def test_documents_come_back_in_every_token_type(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a", kind)
    assert read(tmp_path / "a") == [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14]]


def test_tokens_are_mapped_not_loaded(tmp_path: Path) -> None:
    write(tmp_path / "a")
    text = read_tokens(DataConfig(source=str(tmp_path / "a"), format="megatron", tokenizer="ignored"), 256)
    assert isinstance(text.tokens, np.memmap)


def patched(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda index: index[:offset] + value + index[offset + len(value) :]


LENGTHS = 34  # 9 magic, 8 version, 1 type, 8 sequences, 8 bounds
OFFSETS = LENGTHS + 4 * len(SEQUENCES)
DOCUMENTS = OFFSETS + 8 * len(SEQUENCES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: b"", "no Megatron index"),
        (lambda index: index[:20], "no Megatron index"),
        (patched(0, b"TNTIDX\0\0\0"), "no Megatron index: it must start with .* given b'TNTIDX"),
        (patched(9, struct.pack("<Q", 2)), "must have version 1, given 2"),
        (patched(17, b"\x07"), r"one of the token types \[1, 2, 3, 4, 5, 8\], given 7"),  # float32
        (patched(17, b"\x63"), "given 99"),
        (patched(17, b"\x04"), "its offsets do not follow its lengths"),  # int32, written as uint16
        (patched(18, struct.pack("<Q", 4)), "must have 114 bytes for 4 sequences and 4 bounds, given 126"),
        (patched(18, struct.pack("<Q", 2**63)), "sequences and 4 bounds, given 126"),
        (lambda index: index[:-1], "must have 126 bytes for 5 sequences and 4 bounds, given 125"),
        (lambda index: index + b"\0", "given 127"),
        (patched(LENGTHS, struct.pack("<i", -3)), "lengths of at least 0, given -3"),
        (patched(LENGTHS, struct.pack("<i", 2)), "its offsets do not follow its lengths"),
        (patched(OFFSETS + 8, struct.pack("<q", 0)), "its offsets do not follow its lengths"),
        (patched(LENGTHS + 16, struct.pack("<i", 3)), "must have 18 bytes by its index, given 20"),
        (patched(DOCUMENTS, struct.pack("<q", 1)), "document bounds that rise from 0 to 5"),
        (patched(DOCUMENTS + 8, struct.pack("<q", 4)), "document bounds that rise from 0 to 5"),
        (patched(DOCUMENTS + 24, struct.pack("<q", 9)), "document bounds that rise from 0 to 5"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    write(tmp_path / "a")
    index = tmp_path / "a.idx"
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "a")


@pytest.mark.parametrize("size", [0, 19, 21])
def test_tokens_cut_short_are_named(tmp_path: Path, size: int) -> None:
    write(tmp_path / "a")
    data = tmp_path / "a.bin"
    data.write_bytes((data.read_bytes() + b"\0")[:size])
    with pytest.raises(ConfigError, match=f"a.bin must have 20 bytes by its index, given {size}"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    ("sequences", "bounds", "message"),
    [([], [0], "holds no sequences"), ([[]], [0, 1], "holds no tokens"), ([[1]], [], "document bounds that rise")],
)
def test_files_without_tokens_are_refused(
    tmp_path: Path, sequences: list[list[int]], bounds: list[int], message: str
) -> None:
    write(tmp_path / "a", sequences=sequences, bounds=bounds)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "a")


@pytest.mark.parametrize("missing", [".idx", ".bin"])
def test_a_missing_half_is_named(tmp_path: Path, missing: str) -> None:
    write(tmp_path / "a")
    (tmp_path / f"a{missing}").unlink()
    with pytest.raises(ConfigError, match=f"found no .*a{missing}"):
        read(tmp_path / "a")


def test_tokens_of_another_vocabulary_are_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a")
    assert read(tmp_path / "a", vocab_size=15)
    with pytest.raises(ConfigError, match="below the model's vocab_size 14, given 14"):
        read(tmp_path / "a", vocab_size=14)
