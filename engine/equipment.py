"""What one rank computes and communicates with: made once from the backend, used from calibration to the end."""

from __future__ import annotations

from dataclasses import dataclass

from engine.backend import Backend
from engine.clock import Clock
from engine.groups import Groups
from engine.links import Links
from engine.step_trace import Recorder
from engine.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Of one rank.

    Args:
        host_links: for tensors in host memory: what ranks agree on and sum at step boundaries.
        links: for tensors on the devices.
        groups: process groups for collectives on the devices, where the backend needs them.
    """

    backend: Backend
    clock: Clock
    host_links: Links
    links: Links
    groups: Groups

    def tensor_parallel(self, ranks: tuple[int, ...], rank: int, recorder: Recorder | None = None) -> TensorParallel:
        """This rank's view of a TP group, whose process group is prepared if groups are used.

        Args:
            ranks: the members' world ranks in order of TP rank; `rank`: this member's position.
        """
        return TensorParallel(ranks, rank, self.clock, self.links, recorder, self.groups.of(ranks))

    def close(self) -> None:
        """Ends the links; a rank that still waits for this one gets an error."""
        self.host_links.close()
        if self.links is not self.host_links:
            self.links.close()


def equip(backend: Backend, host_links: Links) -> Equipment:
    """Equips a rank of a world that has been joined. Collective: all ranks."""
    return Equipment(
        backend=backend,
        clock=backend.clock(),
        host_links=host_links,
        links=backend.links(host_links),
        groups=Groups(is_used=backend.uses_groups),
    )
