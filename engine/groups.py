"""All process groups of a job, owned by one object.

Groups are made for the rank tuples that a layout needs, cached while plans need them, and destroyed
when none does. The world group carries point-to-point messages and the control step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist

from engine.layout import Layout

Ranks = tuple[int, ...]


class Groups:
    """Process groups by their ranks.

    Inside a group torch orders members by world rank, whatever the order of the tuple.

    Collective: `prepare` and `retain` are called by all ranks of the world with equal arguments.
    """

    def __init__(self) -> None:
        self._groups: dict[Ranks, dist.ProcessGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def prepare(self, needed: Iterable[Ranks]) -> None:
        """Makes the missing groups, in sorted order on every rank. Collective."""
        for ranks in sorted(set(needed)):
            if len(ranks) > 1 and ranks not in self._groups:
                self._groups[ranks] = dist.new_group(list(ranks))

    def retain(self, needed: Iterable[Ranks]) -> None:
        """Destroys the groups that are not needed any more. Collective."""
        keep = set(needed)
        for ranks in sorted(set(self._groups) - keep):
            group = self._groups.pop(ranks)
            if dist.get_rank() in ranks:
                dist.destroy_process_group(group)

    def of(self, ranks: Ranks) -> dist.ProcessGroup | None:
        """The group of these ranks; `None` for a single one."""
        return self._groups[ranks] if len(ranks) > 1 else None


def needed_groups(layout: Layout) -> set[Ranks]:
    """The rank tuples that a layout communicates in: TP groups, and owners of each bucket."""
    groups = {stage.devices for _, _, stage in layout.plan.places()}
    groups |= {bucket.owners for bucket in layout.buckets}
    return {ranks for ranks in groups if len(ranks) > 1}
