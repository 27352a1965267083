"""Keeps a run's desired document in the broker equal to what SQL says.

Level-triggered: the document is written when its version grew, and again whenever the broker has lost it
or holds another one. Nothing else writes it.
"""

from __future__ import annotations

from db import runs
from db.runs import RunView
from planner.control.context import Context


class Publisher:
    """The desired document of one run."""

    def __init__(self, context: Context, run: int) -> None:
        self._context, self._run = context, run
        self._published: int | None = None

    def begin(self, view: RunView) -> None:
        """Looks at what the broker holds for this run before anything is read from it.

        A run that has not been heard of and yet has another document there is new under an id that was
        used before (the database was replaced, the broker was not): both channels start empty.

        Raises:
            BusError: the broker cannot be reached.
        """
        held = self._context.bus.read_desired(self._run)
        is_unheard = view.status == "pending" and view.attempt is None
        if held is not None and is_unheard and held != runs.desired(self._context.store, self._run):
            self._context.bus.reset(self._run)
        self.reconcile(view)

    def publish_if_due(self, view: RunView) -> None:
        """Writes the document if its version is another one than was written last.

        Raises:
            BusError: the broker cannot be reached; nothing is lost, it stays due.
        """
        if view.desired_version != self._published:
            document = runs.desired(self._context.store, self._run)
            self._context.bus.publish_desired(document)
            self._published = document.version

    def reconcile(self, view: RunView) -> None:
        """Compares with what the broker holds and writes it again if that is nothing or something else.

        Raises:
            BusError: the broker cannot be reached.
        """
        held = self._context.bus.read_desired(self._run)
        if held is None or held.version != view.desired_version:
            self._published = None
        self.publish_if_due(view)
