"""Text of files: each file is a document."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from engine.errors import ConfigError

STDLIB = "stdlib"
_LOOKED_AT_BYTES = 4096


def read_documents(source: str, max_bytes: int) -> list[bytes]:
    """The files of a data source in order of their paths, at most `max_bytes` of text.

    Files with a zero byte near their start are no text and left out; so are empty ones. The last
    document may be cut short.

    Args:
        source: "stdlib" (the Python standard library's own sources), a file, or a folder with
            everything below it.

    Raises:
        ConfigError: the path does not exist, cannot be read, or holds no text.
    """
    documents, room = [], max_bytes
    for path in _paths(source):
        if room <= 0:
            break
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        if text and b"\0" not in text[:_LOOKED_AT_BYTES]:
            documents.append(text[:room])
            room -= len(text)
    if not documents:
        raise ConfigError(f"data.source {source!r} holds no text")
    return documents


def _paths(source: str) -> list[Path]:
    if source == STDLIB:
        return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(f"data.source must be {STDLIB!r}, a text file or a folder, given {source!r}")
    return [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
