"""A run before it is started: a TOML text, the usual fields on top of it, and everything that is wrong with them.

Pure but for paths that the configuration names (data, checkpoints), which must exist. A problem stands at its field
and, where the text is to blame, at its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.local.run_start import Start, prepared
from db.errors import ConfigError, InputError
from db.run_config import RunConfig
from planner.errors import PlanError
from planner.plan import Plan

PRESETS = Path(__file__).parent / "presets"
USUAL = {
    "name": "name",
    "num_steps": "train.num_steps",
    "num_nodes": "cluster.num_nodes",
    "devices_per_node": "cluster.devices_per_node",
    "every_steps": "checkpoint.every_steps",
}
"""The usual fields, and where they stand in the configuration."""

_NAMED = re.compile(r"^([a-z_]+) must ")
_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")
_SECTION = re.compile(r"^\s*\[\s*([\w.]+)\s*\]")
_KEY = re.compile(r"^\s*([\w.-]+)\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong.

    Args:
        field: in the configuration (`train.num_steps`); empty: the text as a whole.
        line: of the text, from 1; None where the text does not name the field.
    """

    field: str
    text: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a text and its fields come to.

    Args:
        config: None where there are problems of the configuration.
        start: what may be registered; None where anything is wrong.
    """

    config: RunConfig | None
    start: Start | None
    problems: tuple[Problem, ...] = ()

    @property
    def plan(self) -> Plan | None:
        """The plan that it starts with."""
        return None if self.start is None else Plan.from_json(self.start.plan)

    def at(self, field: str) -> list[str]:
        """The problems of one field."""
        return [problem.text for problem in self.problems if problem.field == field]


def preset_names() -> list[str]:
    """The presets, the demo's first."""
    return sorted((path.stem for path in PRESETS.glob("*.toml")), key=lambda name: (name != "demo", name))


def preset_text(name: str) -> str:
    """The text of one preset.

    Raises:
        InputError: there is no such preset.
    """
    if name not in preset_names():
        raise InputError(f"preset must be one of {', '.join(preset_names())}, given {name!r}")
    return (PRESETS / f"{name}.toml").read_text(encoding="utf-8")


def usual_values(text: str) -> dict[str, Any] | Problem:
    """The usual fields as a text has them (or the defaults), or why the text cannot be read.

    A value of another type than the field's is left out: `draft` says what is wrong with it.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place else len(text.splitlines()) or 1
        return Problem(field="", text=f"not valid TOML: {_PLACE.sub('', str(error))}", line=line)
    defaults = RunConfig()
    found: dict[str, Any] = {}
    for name, field in USUAL.items():
        default = _of_config(defaults, field)
        value = _of_document(document, field, default)
        found[name] = value if type(value) is type(default) else default
    return found


def draft(text: str, usual: Mapping[str, Any], *, folder: Path) -> Draft:
    """Checks a text with the usual fields laid over it.

    Where the fields ask for another number of devices than the text, the number of pipelines follows.

    Args:
        usual: those of `USUAL` that a person has changed.
        folder: where relative paths begin.
    """
    before = usual_values(text)
    if isinstance(before, Problem):
        return Draft(config=None, start=None, problems=(before,))
    document = tomllib.loads(text)
    for name, value in usual.items():
        if value != before[name]:
            _put(document, USUAL[name], value)
    if {"num_nodes", "devices_per_node"} & {name for name, value in usual.items() if value != before[name]}:
        _follow_devices(document)
    try:
        config = RunConfig.from_document(document)
    except ConfigError as error:
        return Draft(config=None, start=None, problems=_problems(error, text))
    try:
        return Draft(config=config, start=prepared(config, folder))
    except PlanError as error:
        plan_problems = tuple(Problem(field="plan", text=violation) for violation in error.violations)
        return Draft(config=config, start=None, problems=plan_problems)
    except InputError as error:
        field = str(error).split(" ", 1)[0]
        return Draft(
            config=config, start=None, problems=(Problem(field=field, text=str(error), line=line_of(text, field)),)
        )


def origin_problem(config: RunConfig, other: RunConfig) -> str:
    """Why a run cannot start from a checkpoint of another one; empty if it can."""
    if config.model == other.model:
        return ""
    mine, theirs = config.model.model_dump(), other.model.model_dump()
    different = [f"{name} {theirs[name]}, here {mine[name]}" for name in mine if mine[name] != theirs[name]]
    return f"its model is another one: {'; '.join(different)}"


def line_of(text: str, field: str) -> int | None:
    """The line (from 1) that gives a field, or opens its section."""
    section, _, key = field.rpartition(".")
    here, section_line = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        opened = _SECTION.match(line)
        if opened:
            here = opened[1]
            section_line = number if here in (section, field) and section_line is None else section_line
        given = _KEY.match(line)
        if given and f"{here}.{given[1]}".lstrip(".") in (field, f"{section}.{key}"):
            return number
    return section_line


def _problems(error: ConfigError, text: str) -> tuple[Problem, ...]:
    found = []
    for field, told in error.problems:
        for sentence in told.split("; ") if not field else [told]:
            named = _NAMED.match(sentence)
            where = field or (_full_name(named[1]) if named else "")
            found.append(Problem(field=where, text=sentence, line=line_of(text, where) if where else None))
    return tuple(found)


def _full_name(key: str) -> str:
    """`train.global_batch` of `global_batch`: names are unique but for a few, the first one is taken."""
    for section, value in RunConfig():
        if hasattr(type(value), "model_fields") and key in type(value).model_fields:
            return f"{section}.{key}"
    return ""


def _follow_devices(document: dict[str, Any]) -> None:
    defaults = RunConfig()
    wanted = {
        field: _of_document(document, field, _of_config(defaults, field))
        for field in ("cluster.num_nodes", "cluster.devices_per_node", "parallel.tp", "parallel.pp", "parallel.max_dp")
    }
    if not all(isinstance(value, int) and value > 0 for value in wanted.values()):
        return
    nodes, per_node, tp, pp, max_dp = wanted.values()
    num_pipelines, rest = divmod(nodes * per_node, tp * pp)
    if num_pipelines and not rest:
        _put(document, "parallel.dp", num_pipelines)
        _put(document, "parallel.max_dp", max(max_dp, num_pipelines))


def _of_config(config: RunConfig, field: str) -> Any:
    value: Any = config
    for part in field.split("."):
        value = getattr(value, part)
    return value


def _of_document(document: Mapping[str, Any], field: str, default: Any) -> Any:
    value: Any = document
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _put(document: dict[str, Any], field: str, value: Any) -> None:
    section, _, key = field.rpartition(".")
    if not section:
        document[key] = value
        return
    held = document.setdefault(section, {})
    if isinstance(held, dict):
        held[key] = value
