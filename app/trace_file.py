"""A production trace on disk: a Parquet table and the flat YAML file that says how the job was laid out.

Reads, names what is wrong with the files, and hands the columns to `planner.trace`, which checks the contents.
The meta file is read line by line as `key: value`; other YAML is refused rather than misunderstood.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from db.errors import InputError
from planner.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from planner.trace import Trace, TraceShape

_LINE = re.compile(r"([A-Za-z_]\w*):(?:\s+(.*))?")
_WHOLE = re.compile(r"[+-]?\d+")
_UNREADABLE = (ValueError, OSError, TypeError, KeyError, RuntimeError, NotImplementedError, MemoryError)
"""What pandas and pyarrow raise for files that are no Parquet, cut short or damaged."""


def read_trace(path: Path, meta: Path) -> Trace:
    """The trace in a Parquet file.

    Raises:
        InputError: a file cannot be read, or what it holds is not a trace of that layout; names the file.
    """
    from planner.trace import trace_of

    shape = _shape(meta)
    frame = _frame(path)
    if "optype" in frame and frame["optype"].isna().any():
        raise InputError(f"{path}: optype must name an operation in every row, given none in some")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    try:
        return trace_of(columns, shape)
    except SpecError as error:
        raise InputError(f"{path}: {error}") from None


def read_meta(path: Path) -> dict[str, int | str]:
    """The `key: value` lines of a meta file; whole numbers as such.

    Raises:
        InputError: not readable, another line than `key: value`, or a key that is there twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    found: dict[str, int | str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not content or content == "---":
            continue
        match = _LINE.fullmatch(content)
        if match is None:
            raise InputError(f"{path}, line {number}: expected key: value, given {line.strip()!r}")
        key, value = match[1], (match[2] or "").strip()
        if key in found:
            raise InputError(f"{path}, line {number}: {key} must be there once, given again")
        found[key] = int(value) if _WHOLE.fullmatch(value) and len(value) < 19 else value.strip("\"'")
    return found


def _shape(meta: Path) -> TraceShape:
    from planner.trace import shape_of

    try:
        return shape_of(read_meta(meta))
    except SpecError as error:
        raise InputError(f"{meta}: {error}") from None


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise InputError(f"cannot read {path}: no such file")
    if not path.stat().st_size:
        raise InputError(f"{path} must be a Parquet file, given an empty one")
    try:
        return pd.read_parquet(path)
    except _UNREADABLE as error:
        raise InputError(f"{path} is not a readable Parquet file: {error}") from None
