"""The command line `malleus`: routes to `app.commands` and turns errors into one line.

Exit status: 0 done, 1 it was tried and failed, 2 the input or the surroundings were wrong (nothing
was done then), 130 interrupted. Prints no traceback for what a person can put right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from app.commands import auditing, bundling, checking, control, planning, reading, saving, serving, tracing, training
from app.errors import CommandError, LocalError
from db.errors import BusError, InputError, StoreError, TransitionError
from planner.errors import PlannerError

app = typer.Typer(
    name="malleus",
    help="Control plane for training large models on GPUs that do not all run at full speed.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("malleus"))
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command("up")(serving.up)
app.command("demo")(serving.demo)
app.command("train")(training.train)
app.command("plan")(planning.plan)
app.command("inject")(control.inject)
app.command("play")(control.play)
app.command("clear")(control.clear)
app.command("fail")(control.fail)
app.command("pause")(control.pause)
app.command("resume")(control.resume)
app.command("stop")(control.stop)
app.command("checkpoint")(saving.checkpoint)
app.command("checkpoints")(saving.checkpoints)
app.command("export-model")(saving.export_model)
app.command("approve")(control.approve)
app.command("reject")(control.reject)
app.command("rollback")(control.rollback)
app.command("propose")(control.propose)
app.command("replan")(control.replan)
app.command("mode")(control.mode)
app.command("runs")(reading.runs)
app.command("status")(reading.status)
app.command("samples")(reading.samples)
app.command("plans")(reading.plans)
app.command("plan-diff")(planning.plan_diff)
app.command("export")(bundling.export)
app.command("replay")(bundling.replay)
app.command("trace")(tracing.trace)
app.command("audit")(auditing.audit)
app.command("doctor")(checking.doctor)
app.command("health")(checking.health)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: without the program's name; `None`: those of this process.

    Returns:
        The exit status.
    """
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="malleus", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (InputError, PlannerError, StoreError, BusError, typer.TyperException) as error:
        return _refuse(error, 2)
    except (CommandError, LocalError, TransitionError) as error:
        return _refuse(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader (`head`) has enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refuse(error: Exception, status: int) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print("malleus: " + " ".join(message.split()), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
