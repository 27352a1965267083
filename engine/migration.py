"""Moving a job to another plan at a step boundary: prepare, vote, migrate in rounds, commit or keep.

What follows from the layouts alone is prepared beforehand (`engine.preparation`). Until the rounds begin, whatever
goes wrong on any rank leaves the old shard untouched on all. In the rounds (`engine.mover`) nothing is
released before the digests of what replaces it are right; if they are not, the rounds that are done are walked back.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.agreement import broadcast_text, vote
from engine.allocator import CudaAllocator
from engine.digest import Digests, digests, local_table
from engine.errors import MigrationError
from engine.groups import Groups, needed_groups
from engine.mover import Mover
from engine.preparation import Preparation, reverse
from engine.shard import Shard

log = logging.getLogger("malleus.engine")

NUM_NAMED = 3


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a switch did; equal on every rank but for `shard` and `phases`.

    Args:
        shard: the shard to go on with, the old one if `reason` is not empty.
        phases: seconds of prepare, migrate and verify on this rank.
        extra_bytes: the most that this rank held on the way beyond the larger of what it held before and after.
    """

    shard: Shard
    reason: str = ""
    bytes_moved: int = 0
    num_rounds: int = 0
    extra_bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    digests_before: Digests = field(default_factory=dict)
    digests_after: Digests = field(default_factory=dict)


def free_bytes(device: torch.device) -> float:
    """Memory that a device can still give, as its driver or the kernel estimates it; infinite where neither says."""
    if device.type == "cuda":
        return float(CudaAllocator(device).free())
    try:
        rows = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next((float(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:")), float("inf"))


def migrate(
    old: Shard,
    make: Callable[[], Preparation],
    groups: Groups,
    *,
    free: Callable[[torch.device], float] = free_bytes,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Moves the job from the layout of `old` to another.

    Args:
        old: hollow afterwards if the plan was changed, as it was if not. Nothing else may hold on to its tensors,
            or their memory is not given back on the way.
        make: gives the preparation, made before or now; a ValueError it raises is a refusal of the plan, with its
            message as the reason.
        free: bytes that this rank may still allocate on a device.
        on_progress: is told how many rounds of how many have arrived.

    Raises:
        MigrationError: digests were wrong on the way there and on the way back.

    Collective: all ranks of the world, at a step boundary.
    """
    started = time.perf_counter()
    outcome = Outcome(shard=old)
    ready, problem = _prepared(old, make, free)
    outcome.reason = vote(problem)
    if not outcome.reason and ready:
        before, outcome.reason = _ready(old, ready, groups, outcome)
    outcome.phases["prepare"] = time.perf_counter() - started
    if outcome.reason or ready is None:
        groups.retain(needed_groups(old.layout))
        return outcome
    began = time.perf_counter()
    new = old.successor(ready.new)
    mover = Mover(
        old,
        new,
        arrivals=ready.arrivals,
        primary=ready.primary(old.device, is_new=True),
        num_copies=ready.censuses[True].num_copies,
        expected=before,
    )
    rounds = ready.itinerary.rounds
    old.drop_gradients()
    done = mover.run(rounds, lambda number: on_progress(number, len(rounds)))
    outcome.num_rounds, outcome.extra_bytes = done, max(0, ready.itinerary.extra_bytes.get(old.device, 0))
    if done == len(rounds):
        found = torch.cat([mover.found[:1], mover.found])
        outcome.digests_after = digests(found, ready.new, [1] * found.shape[1])
        outcome.bytes_moved = ready.bytes_moved
        outcome.shard = new
    else:
        _walk_back(old, new, ready, done, before)
        damaged = ", ".join(mover.damaged[:NUM_NAMED]) + (" and others" if len(mover.damaged) > NUM_NAMED else "")
        outcome.digests_after = outcome.digests_before
        outcome.reason = f"{damaged} arrived damaged in round {done + 1} of {len(rounds)}; the old plan is kept"
    outcome.shard.renew_gradients()
    groups.retain(needed_groups(outcome.shard.layout))
    outcome.phases["verify"] = mover.verify_s
    outcome.phases["migrate"] = time.perf_counter() - began - mover.verify_s
    return outcome


def _prepared(
    old: Shard, make: Callable[[], Preparation], free: Callable[[torch.device], float]
) -> tuple[Preparation | None, str]:
    try:
        ready = make()
    except (ValueError, RuntimeError, MemoryError) as error:
        return None, str(error) or type(error).__name__
    assert ready.old is old.layout, "prepared for the layout that trains"
    route, device = ready.itinerary, old.device
    needed = max(0, route.growth_bytes.get(device, 0)) + max(0, route.extra_bytes.get(device, 0))
    available = free(old.torch_device)
    if needed > available:
        return None, f"device {device} needs {needed:,} bytes more to migrate and has {available:,.0f} free"
    return ready, ""


def _ready(old: Shard, ready: Preparation, groups: Groups, outcome: Outcome) -> tuple[Tensor, str]:
    """The last checks before anything moves, in one sum over all ranks: groups made, rounds equal, replicas equal.

    Returns:
        the digests of what is there by tensor and parameter, and the reason to go no further. Collective.
    """
    problem, missing = "", groups.missing(ready.groups)
    try:
        groups.prepare(missing)
    except RuntimeError as error:
        problem = f"process groups could not be made: {error}"
    table = local_table(old, ready.primary(old.device, is_new=False))
    rank, size = dist.get_rank(), dist.get_world_size()
    marks = torch.zeros(2, size, dtype=torch.int64)
    marks[0, rank], marks[1, rank] = bool(problem), zlib.crc32(repr(ready.itinerary).encode())
    summed = torch.cat([table.flatten(), marks.flatten()])
    dist.all_reduce(summed)
    table, marks = summed[: table.numel()].view(table.shape), summed[table.numel() :].view(2, size)
    troubled = marks[0].nonzero().flatten().tolist()
    if troubled:
        groups.destroy(missing)
        return table, broadcast_text(problem, source=troubled[0])
    if len(set(marks[1].tolist())) > 1:
        return table, "the ranks prepared different rounds"
    outcome.digests_before = digests(table, old.layout, ready.censuses[False].num_copies)
    diverged = [name for name, row in outcome.digests_before.items() if "diverged" in row.values()]
    if diverged:
        return table, f"replicas of {', '.join(diverged)} differ already, nothing is moved"
    return torch.cat([table[:1], table[2:]]), ""


def _walk_back(old: Shard, new: Shard, ready: Preparation, done: int, expected: Tensor) -> None:
    """Brings back what was taken over already. Collective."""
    log.warning("rank %d: round %d arrived damaged, going back", old.device, done + 1)
    rounds = tuple(reversed(ready.itinerary.rounds[:done]))
    mover = Mover(
        new,
        old,
        arrivals=reverse(ready),
        primary=ready.primary(old.device, is_new=False),
        num_copies=ready.censuses[False].num_copies,
        expected=expected,
    )
    if mover.run([turn.alone() for turn in rounds]) < done:
        raise MigrationError("digests were wrong on the way to the new plan and on the way back")
