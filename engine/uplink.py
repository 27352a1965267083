"""What the trainer needs of the control plane, whatever carries it.

`engine.bus_uplink` is the real one, on rank 0 alone; the other ranks never load a broker client.
"""

from __future__ import annotations

from typing import Any, Protocol

from db.messages import Desired


class Uplink(Protocol):
    """What the trainer needs of the control plane."""

    def desired(self) -> Desired | None:
        """The newest document read, if any; a failure in it is meant for this attempt."""

    def wait(self, timeout_s: float) -> None:
        """Returns when a newer document may be there, or after the timeout."""

    def applied(self, version: int) -> None:
        """From now on every message reports this document version."""

    def send(self, kind: type[Any], **fields: Any) -> None:
        """Queues a telemetry message; never blocks."""

    def set_state(self, state: str, *, step: int, reason: str = "") -> None:
        """Announces the engine's state, and repeats it while nothing else is sent."""

    def close(self) -> None:
        """Sends what is queued, for a bounded time."""
