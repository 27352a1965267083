"""What every start of a run does before its engine: check, make paths absolute, plan, register.

Shared by `malleus train` and the page Runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.local.run_paths import starting_from, with_absolute_source, with_checkpoint_paths
from app.local.trainer import first_plan
from db import runs
from db.run_config import RunConfig
from db.runs import RunView
from db.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run that may be registered: its configuration with absolute paths, and the document of its first plan."""

    config: RunConfig
    plan: dict[str, Any]

    def starting_from(self, path: Path) -> Start:
        """The same from a checkpoint or a model.

        Raises:
            InputError: there is no folder with something in it.
        """
        return replace(self, config=starting_from(self.config, path))


def prepared(config: RunConfig, folder: Path) -> Start:
    """Checks what can be checked before a run is registered.

    Args:
        folder: where relative paths of the configuration begin.

    Raises:
        InputError: there is nothing at a path.
        PlanError: the configuration's degrees break a rule of plans.
    """
    config = with_checkpoint_paths(with_absolute_source(config, folder), folder)
    return Start(config=config, plan=first_plan(config))


def register(store: Store, start: Start, *, actor: str, source: str, key: str | None = None) -> RunView:
    """Writes the run down, pending; the same `key` twice gives the same run."""
    return runs.create(store, start.config, plan=start.plan, actor=actor, source=source, key=key)
