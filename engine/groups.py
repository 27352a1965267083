"""All process groups of a job, owned by one object.

Groups are made for the rank tuples that a layout needs and cached while plans need them. A few that no plan needs
any more stay for a while, because plans come back when a straggler recovers; older ones are destroyed. The world
group carries point-to-point messages and the control step. Emulated devices need none of them: there tensor
parallelism and gradient sync go by messages over `engine.links`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist

from engine.layout import Layout

Ranks = tuple[int, ...]

MAX_IDLE = 8
"""Groups kept that no plan needs. One takes 10 ms to make; it has 3 threads and 7 open files on each member
(measured: gloo, 8 ranks on 2 cores)."""


class Groups:
    """Process groups by their ranks.

    Inside a group torch orders members by world rank, whatever the order of the tuple.

    Args:
        is_used: False for devices whose collectives are messages over links: then no group is ever made.

    Collective: every method that says so is called by all ranks of the world with equal arguments.
    """

    def __init__(self, *, is_used: bool) -> None:
        self.is_used = is_used
        self._groups: dict[Ranks, dist.ProcessGroup] = {}
        self._needed_at: dict[Ranks, int] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._groups)

    def missing(self, needed: Iterable[Ranks]) -> list[Ranks]:
        """Those that are used and not there, in the order in which they are made; the same on every rank."""
        if not self.is_used:
            return []
        return sorted(ranks for ranks in set(needed) if len(ranks) > 1 and ranks not in self._groups)

    def prepare(self, needed: Iterable[Ranks]) -> None:
        """Makes the missing groups, in sorted order on every rank. Collective.

        Raises:
            RuntimeError: one could not be made; `destroy` those that were missing, on all ranks.
        """
        for ranks in self.missing(needed):
            self._groups[ranks] = dist.new_group(list(ranks))

    def retain(self, needed: Iterable[Ranks]) -> None:
        """Says which groups are needed from now on; destroys the longest unused ones of many others. Collective."""
        self._clock += 1
        keep = set(needed) & set(self._groups)
        self._needed_at.update(dict.fromkeys(keep, self._clock))
        idle = sorted(set(self._groups) - keep, key=lambda ranks: (-self._needed_at.get(ranks, 0), ranks))
        self.destroy(idle[MAX_IDLE:])

    def destroy(self, unwanted: Iterable[Ranks]) -> None:
        """Destroys groups, as far as they are there. Collective."""
        for ranks in sorted(unwanted):
            group = self._groups.pop(ranks, None)
            self._needed_at.pop(ranks, None)
            if group is not None and dist.get_rank() in ranks:
                dist.destroy_process_group(group)

    def of(self, ranks: Ranks) -> dist.ProcessGroup | None:
        """The group of these ranks; `None` for a single one, and where groups are not used."""
        return self._groups[ranks] if self.is_used and len(ranks) > 1 else None


def needed_groups(layout: Layout) -> set[Ranks]:
    """The rank tuples that a layout communicates in: TP groups, and owners of each bucket."""
    groups = {stage.devices for _, _, stage in layout.plan.places()}
    groups |= {bucket.owners for bucket in layout.buckets}
    return {ranks for ranks in groups if len(ranks) > 1}
