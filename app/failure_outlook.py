"""What the failure of a device would lead to, in words, before it is asked for."""

from __future__ import annotations

from db.runs import RunView


def failure_outlook(run: RunView, *, first_step: int, saved_step: int | None) -> str:
    """One or two sentences.

    Args:
        run: one that trains.
        first_step: of the run.
        saved_step: of its newest checkpoint; None if it has none.
    """
    if run.num_restarts >= run.max_restarts:
        return f"The engine ends and no restart is left ({run.max_restarts} allowed): the run ends as failed."
    origin = first_step if saved_step is None else saved_step
    num_repeated = 0 if run.step is None else max(run.step + 1 - origin, 0)
    place = f"step {origin}: there is no checkpoint yet" if saved_step is None else f"the checkpoint of step {origin}"
    return (
        f"The engine ends and is started again (restart {run.num_restarts + 1} of {run.max_restarts}) "
        f"from {place}. {num_repeated} step{'s are' if num_repeated != 1 else ' is'} repeated."
    )
