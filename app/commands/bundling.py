"""Commands about a plan as a file: `export` writes what it was searched with, `replay` searches again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.commands.output import JsonOption, RunArgument, print_json
from app.commands.surroundings import open_store
from app.errors import CommandError
from app.plan_bundle import MAX_BYTES, Bundle, bundle_of
from db.errors import InputError

Version = Annotated[int, typer.Argument(help="Version of a plan of the run.", show_default=False)]


def export(
    run: RunArgument,
    version: Version,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="print it")] = None,
) -> None:
    """Write a plan as a bundle: all that it was searched with, and the answer."""
    from db import plans

    with open_store() as store:
        text = bundle_of(plans.get(store, run, version), plans.job(store, run, version)).to_text()
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror or error}") from None


def replay(
    bundle: Annotated[str, typer.Argument(metavar="FILE", help="A bundle, or - for standard input.")],
    as_json: JsonOption = False,
) -> None:
    """Search for a bundle's plan again: the answer must be the same. Exit status 1 if it is not. Needs no store."""
    from app.plan_replay import replay as search_again

    outcome = search_again(Bundle.from_text(_text(bundle)))
    if as_json:
        print_json(outcome.to_json())
    else:
        print("\n".join(outcome.sentences()))
    if not outcome.is_same:
        raise typer.Exit(1)


def _text(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.read(MAX_BYTES + 1)
        with Path(name).open(encoding="utf-8") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not a readable file: {error}") from None
