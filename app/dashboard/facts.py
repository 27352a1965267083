"""A list of facts as HTML: name above, value below. Pure drawing; shown by `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """The list; names and values are plain text."""
    cells = "".join(
        f'<div><span class="name">{escape(name)}</span><div class="value">{escape(value)}</div></div>'
        for name, value in pairs
    )
    return f'<div class="facts">{cells}</div>'
