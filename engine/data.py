"""Training text: a batch is a pure function of the global sample index.

Bytes of the Python standard library's own sources (real text, on every machine), or of a text file
or folder. Which rank asks, and under which plan, changes nothing: no sample is skipped or repeated.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ConfigError

BYTE_VALUES = 256
_MASK = (1 << 64) - 1


class Corpus:
    """A byte sequence cut into windows at pseudo-random places.

    Args:
        data: the bytes.
        seq_len: tokens of a window; one more byte is needed for the last target.
        seed: shuffles the windows.
    """

    def __init__(self, data: bytes, seq_len: int, seed: int) -> None:
        if len(data) < seq_len + 2:
            raise ConfigError(f"the text must have at least seq_len + 2 = {seq_len + 2} bytes, given {len(data)}")
        self._tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._seq_len, self._seed = seq_len, seed

    def batch(self, first: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Samples `[first, first + num_sequences)`: inputs and targets, `[sequences, seq_len]` int64."""
        windows = torch.stack([self._window(index) for index in range(first, first + num_sequences)])
        return windows[:, :-1], windows[:, 1:]

    def _window(self, index: int) -> Tensor:
        start = _mix(_mix(self._seed) + index) % (len(self._tokens) - self._seq_len)
        return self._tokens[start : start + self._seq_len + 1].to(torch.int64)


def read_source(source: str, max_bytes: int) -> bytes:
    """The text of a data source, at most `max_bytes` of it.

    Args:
        source: "stdlib", or a file, or a folder whose text files are joined in order of their paths.

    Raises:
        ConfigError: the path does not exist, cannot be read, or holds no text.
    """
    if source == "stdlib":
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    else:
        path = Path(source).expanduser()
        if not path.exists():
            raise ConfigError(f"data.source must be 'stdlib', a text file or a folder, given {source!r}")
        paths = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    parts, size = [], 0
    for path in paths:
        if size >= max_bytes:
            break
        try:
            part = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        if b"\0" in part[:4096]:
            continue
        parts.append(part)
        size += len(part)
    if not size:
        raise ConfigError(f"data.source {source!r} holds no text")
    return b"".join(parts)[:max_bytes]


def _mix(value: int) -> int:
    """A fixed 64-bit mixer. Source: Steele et al. 2014, SplitMix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
