"""`malleus doctor` looks at everything a system on this machine needs, `malleus health` at what the store knows."""

from __future__ import annotations

import typer

from app.commands.output import JsonOption, clock, print_json, table
from app.commands.surroundings import open_store
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


def health(as_json: JsonOption = False) -> None:
    """Show how controller, worker, broker, store and engines are, since when, and what to do (status 1: a problem)."""
    from app.health import examine, overall, read_inputs
    from app.health_facts import WORDS

    with open_store() as store:
        items = examine(read_inputs(store))
    found = overall(items)
    if as_json:
        print_json({"state": found.state, "word": found.word, "items": items})
    else:
        print(found.word)
        rows = [
            [item.group, item.name, WORDS[item.state], item.value, clock(item.since), item.advice] for item in items
        ]
        print(table(["group", "what", "state", "value", "since", "what to do"], rows))
    if found.state == "bad":
        raise typer.Exit(1)
