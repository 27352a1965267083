"""A run's configuration as a TOML text (the standard library reads TOML and does not write it)."""

from __future__ import annotations

import json
from typing import Any

from db.run_config import RunConfig


def to_toml(config: RunConfig) -> str:
    """The text that `RunConfig.from_toml` reads back to an equal configuration."""
    document = config.model_dump(mode="json")
    plain = {name: value for name, value in document.items() if not isinstance(value, dict)}
    lines = [_line(name, value) for name, value in plain.items()]
    for name, section in document.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(_line(field, value) for field, value in section.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    # JSON's strings, numbers, booleans and flat lists are TOML's, but for the control character DEL.
    return f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
