"""Writing a safetensors file as a stream: the header first, then one tensor after the other.

Nothing is collected in memory, and the checksum is taken on the way. Reading is left to the
`safetensors` library, which refuses a header that does not fit the file.
Source: the format's description in the safetensors README (8 bytes of header length, JSON, data).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor of the file, before it is written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


class TensorFile:
    """A safetensors file that is being written; a context manager.

    Args:
        entries: the tensors in the order in which `write` gets them; names are unique.

    Attributes:
        num_bytes, sha256: of the whole file, complete after `close`.

    Raises:
        OSError: the file cannot be written (every method).
    """

    def __init__(self, path: Path, entries: Sequence[Entry], metadata: Mapping[str, str] | None = None) -> None:
        self._entries = iter(entries)
        self._hash = hashlib.sha256()
        self.num_bytes, self.sha256 = 0, ""
        self._file = path.open("wb")
        try:
            self._put(memoryview(_header(entries, metadata or {})))
        except BaseException:
            self._abandon()
            raise

    def write(self, tensor: Tensor) -> None:
        """The next tensor, in the dtype and with the number of elements that were announced."""
        entry = next(self._entries)
        assert tensor.dtype == entry.dtype, f"{entry.name} must be {entry.dtype}, given {tensor.dtype}"
        assert tensor.numel() * tensor.element_size() == entry.num_bytes, f"{entry.name} must have shape {entry.shape}"
        flat = tensor.detach().cpu().contiguous().flatten()
        if flat.numel():
            self._put(flat.view(torch.uint8).numpy().data)

    def close(self) -> None:
        """Brings everything to the disk."""
        assert next(self._entries, None) is None, "not all announced tensors were written"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._abandon()
        self.sha256 = self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _put(self, data: memoryview) -> None:
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            self._hash.update(block)
            self._file.write(block)
        self.num_bytes += len(data)

    def _abandon(self) -> None:
        """Closes without an error of its own: what is still buffered may not fit on the disk either."""
        with contextlib.suppress(OSError):
            self._file.close()


def sha256_of(path: Path) -> str:
    """Checksum of a file, read as a stream.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for entry in entries:
        stop = offset + entry.num_bytes
        table[entry.name] = {
            "dtype": DTYPE_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    assert len(table) == len(entries) + bool(metadata), "names of tensors in a file must be unique"
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
