"""`malleus doctor`: looks at everything a system on this machine needs."""

from __future__ import annotations

import typer

from app.commands.output import JsonOption, print_json, table
from db.settings import Settings


def doctor(as_json: JsonOption = False) -> None:
    """Check Python, store, broker, services, solver, engine, ports, disk and clock."""
    from app.doctor import examine

    found = examine(Settings.from_env())
    if as_json:
        print_json(found)
    else:
        print(table(["check", "state", "found"], [[check.name, check.state, check.found] for check in found]))
    if any(check.state == "failed" for check in found):
        raise typer.Exit(1)
