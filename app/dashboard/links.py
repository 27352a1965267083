"""Links between pages as HTML, for drawings. Pure; `picture` reports the one that is followed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode


def link(label: str, page: str, params: Mapping[str, Any], *, title: str = "") -> str:
    """A link to another page: a real address (opens in a new tab, can be copied) that keeps this session."""
    values = {name: str(value) for name, value in params.items()}
    go = escape(json.dumps([page, values]), quote=True)
    tip = f' data-tip="{escape(title, quote=True)}"' if title else ""
    return f'<a href="{page}?{escape(urlencode(values), quote=True)}" data-go="{go}"{tip}>{escape(label)}</a>'


def followed(target: str | None) -> tuple[str, Mapping[str, str]] | None:
    """The `(page, params)` of a link as the browser reports it; None if none was followed."""
    if not target:
        return None
    page, params = json.loads(target)
    return str(page), {str(name): str(value) for name, value in params.items()}
