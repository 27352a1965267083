"""Prepares the next plan while the current one trains.

Ranks take up a document together, at a step boundary. Rank 0 often has it earlier, during the step: then it
leaves the plan in the world's key-value store, and every rank prepares the way to it in a thread of its own. At
the boundary the preparation is there and does not add to the pause. It is a hint and no more: which
plan is taken up is agreed on at the boundary alone, and what was not prepared is prepared then.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine.layout import Layout
from engine.preparation import Preparation

log = logging.getLogger("malleus.engine")

POLL_S = 0.2

PlanDocument = Mapping[str, Any]


class Store(Protocol):
    """What is needed of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Foresight:
    """One rank's look ahead.

    Args:
        store: shared by all ranks of the world.
        newest: on rank 0 the newest plan read so far, if any; `None` elsewhere.
        make: prepares the way from a layout to a plan; raises ValueError if the plan is refused.
    """

    def __init__(
        self,
        store: Store,
        newest: Callable[[], PlanDocument | None] | None,
        make: Callable[[Layout, PlanDocument], Preparation],
    ) -> None:
        self._store, self._newest, self._make = store, newest, make
        self._lock = threading.Lock()
        self._layout: Layout | None = None
        self._plan: PlanDocument | None = None
        self._ready: Preparation | ValueError | None = None
        self._offered: PlanDocument | None = None
        self._seen = 0
        self.num_ahead = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look_forever, name="foresight", daemon=True)
        self._thread.start()

    def trains(self, layout: Layout) -> None:
        """Says from which layout the next move will start."""
        with self._lock:
            self._layout, self._ready = layout, None

    def take(self, layout: Layout, plan: PlanDocument) -> Preparation:
        """The preparation of `plan`, made before or now.

        Raises:
            ValueError: the plan is refused.
        """
        with self._lock:
            if self._layout is layout and self._plan == plan and self._ready is not None:
                self.num_ahead += 1
                ready = self._ready
            else:
                ready = self._made(layout, plan)
            self._plan = self._ready = None
        if isinstance(ready, ValueError):
            raise ready
        return ready

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        self._thread.join()

    def _look_forever(self) -> None:
        while not self._closing.wait(POLL_S):
            try:
                self._look()
            except RuntimeError as error:  # the store went away: its process has ended
                log.info("no preparation ahead any more: %s", error)
                return

    def _look(self) -> None:
        """Prepares what is new. One poll of the store at most, so that no rank waits in it."""
        plan = self._newest() if self._newest else None
        if self._newest is None:
            key = _key(self._seen)
            if self._store.check([key]):
                plan = json.loads(self._store.get(key))
                self._seen += 1
        elif plan is not None and plan != self._offered:
            self._offered = plan
            self._store.set(_key(self._seen), json.dumps(plan))
            self._seen += 1
        else:
            plan = None
        if plan is None:
            return
        with self._lock:
            if self._layout is not None:
                self._plan, self._ready = plan, self._made(self._layout, plan)

    def _made(self, layout: Layout, plan: PlanDocument) -> Preparation | ValueError:
        try:
            return self._make(layout, plan)
        except ValueError as error:
            return error


def _key(number: int) -> str:
    return f"malleus/plan/{number}"
