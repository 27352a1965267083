"""Real ranks move random state between random plans: bit by bit, in bounded memory, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from db.run_config import RunConfig
from engine.layout import Layout, Span
from engine.preparation import ItemBytes, Preparation, prepare
from engine.shard import Shard
from tests.engine.layouts import layout_of
from tests.engine.ledger import Ledger
from tests.engine.test_layout import PARAMETERS
from tests.engine.world import ScriptedUplink, run_world

SIZE = ItemBytes(weight=4, gradient=4, state=4)
BUCKET_BYTES = 3_000
NUM_SWITCHES = 12
NUM_WARM = 4
TABLE_BYTES = 10_000
"""Digests by parameter and the like, which do not grow with the tensors."""


def prepared(old: Layout, new: Layout, bucket_bytes: int = BUCKET_BYTES) -> Preparation:
    return prepare(old, new, lambda device: device // 4, SIZE, bucket_bytes)


def whole(name: str, parameter: int) -> Tensor:
    """What all elements of a parameter's tensor are in these tests."""
    seed = len(PARAMETERS) * sorted(("weight", "master", "exp_avg", "exp_avg_sq")).index(name) + parameter
    return torch.randn(PARAMETERS[parameter].num_elements, generator=torch.Generator().manual_seed(seed))


def filled(shard: Shard) -> Shard:
    for name, store in shard.tensors().items():
        for span in store.spans:
            store.view(span).copy_(whole(name, span.parameter)[span.start : span.stop])
    return shard


def is_right(shard: Shard) -> bool:
    """Whether the shard holds exactly what it should, and gradients of zero."""
    return all(
        torch.equal(store.view(span), whole(name, span.parameter)[span.start : span.stop])
        for name, store in shard.tensors().items()
        for span in store.spans
    ) and all(not gradient.any() for gradient in shard.grads.tensors)


def pointers(shard: Shard) -> dict[tuple[str, Span], int]:
    return {
        (name, span): store.view(span).data_ptr() for name, store in shard.tensors().items() for span in store.spans
    }


def num_bytes(shard: Shard) -> int:
    return shard.grads.num_bytes + sum(store.num_bytes for store in shard.tensors().values())


def counts() -> dict[str, int]:
    return {"threads": len(os.listdir("/proc/self/task")), "files": len(os.listdir("/proc/self/fd"))}


def most_in_flight(limit: int) -> Callable[[], int]:
    """Lowers the limit of messages under way; gives the most that were."""
    import torch.distributed as dist

    from engine import shipment

    shipment.MAX_IN_FLIGHT = limit
    batch, sizes = dist.batch_isend_irecv, [0]

    def counted(operations: Any) -> Any:
        sizes.append(len(operations))
        return batch(operations)

    dist.batch_isend_irecv = counted
    return lambda: max(sizes)


def started(rank: int, seed: int) -> tuple[Shard, Any]:
    from engine.groups import Groups, needed_groups

    spread, groups = layout_of(seed), Groups(is_used=True)
    groups.prepare(needed_groups(spread))
    groups.retain(needed_groups(spread))
    return filled(Shard(spread, rank, torch.float32, torch.float32)), groups


def wander(rank: int) -> list[dict[str, Any]]:
    from engine import digest
    from engine.migration import migrate

    shard, groups = started(rank, 0)
    digest._CHUNK_ELEMENTS = 64
    most = most_in_flight(5)
    rows = []
    for number in range(NUM_SWITCHES):
        old = shard
        ready = prepared(old.layout, layout_of(1 + number % NUM_WARM))
        held, before = num_bytes(old), pointers(old)
        progress: list[tuple[int, int]] = []
        tensors = [*old.grads.tensors, *(tensor for store in old.tensors().values() for tensor in store.tensors)]
        with Ledger(tensors) as ledger:
            del tensors
            outcome = migrate(
                old,
                lambda ready=ready: ready,
                groups,
                on_progress=lambda done, total, progress=progress: progress.append((done, total)),
            )
        shard = outcome.shard
        after = pointers(shard)
        rows.append(
            {
                "reason": outcome.reason,
                "digests": outcome.digests_before == outcome.digests_after,
                "named": len(outcome.digests_after),
                "right": is_right(shard),
                "hollow": num_bytes(old),
                "kept": all(before[key] == after[key] for key in before.keys() & after.keys()),
                "extra": ledger.peak_bytes - max(held, num_bytes(shard)),
                "told": outcome.extra_bytes,
                "bucket": ready.itinerary.bucket_bytes,
                "progress": progress == [(done, len(progress)) for done in range(1, len(progress) + 1)],
                "rounds": len(progress),
                "in_flight": most(),
                "groups": len(groups),
                "needed": len(ready.groups),
                **counts(),
            }
        )
    return rows


def test_random_switches_move_every_bit_within_two_buckets_and_leave_nothing_behind() -> None:
    from engine.groups import MAX_IDLE

    results = run_world(8, wander)
    for rows in results:
        for row in rows:
            assert row["reason"] == ""
            assert row["digests"]
            assert row["right"]
            assert row["kept"], "spans that stay are not copied"
            assert row["progress"]
            assert row["named"] == len(PARAMETERS)
            assert row["hollow"] == 0
            assert row["rounds"] >= 1
            assert row["in_flight"] <= 5
            assert row["told"] <= 2 * row["bucket"]
            assert row["extra"] <= row["told"] + TABLE_BYTES
            assert row["groups"] <= row["needed"] + MAX_IDLE
        second, last = rows[NUM_WARM : 2 * NUM_WARM], rows[-NUM_WARM:]  # the same plans in both
        for name in ("threads", "files", "groups"):  # the least, because sockets close a little later
            fewest, still = (min(row[name] for row in part) for part in (second, last))
            assert still < fewest + NUM_WARM / 2, f"{name} pile up: {[row[name] for row in rows]}"
    assert max(row["rounds"] for row in results[0]) > 10


def stumble(rank: int) -> dict[str, Any]:
    """Everything that can go wrong, one after the other; after each the old plan is whole."""
    import torch.distributed as dist

    from engine.groups import Groups
    from engine.migration import migrate
    from engine.shipment import Shipment

    shard, groups = started(rank, 13)
    target = layout_of(15)
    found: dict[str, Any] = {}

    def attempt(name: str, make: Callable[[], Preparation] | None = None, **options: Any) -> None:
        nonlocal shard
        outcome = migrate(shard, make or (lambda: prepared(shard.layout, target)), groups, **options)
        shard = outcome.shard
        found[name] = (outcome.reason, shard.layout.plan == layout_of(13).plan, is_right(shard), len(groups))

    def refuse() -> Preparation:
        if rank == 5:
            raise ValueError("device 5 cannot")
        return prepared(shard.layout, target)

    attempt("refused", refuse)
    attempt("memory", free=lambda where: 0.0 if rank == 7 else 1e12)

    make_groups = Groups.prepare

    def break_down(self: Groups, needed: Any) -> None:
        make_groups(self, needed)
        if rank == 6:
            raise RuntimeError("no more sockets")

    Groups.prepare = break_down
    attempt("groups")
    Groups.prepare = make_groups
    attempt("rounds differ", lambda: prepared(shard.layout, target, BUCKET_BYTES if rank != 3 else 1 << 20))

    if rank == 1:
        replicated = next(span for span in shard.weights.spans if not PARAMETERS[span.parameter].is_sliced)
        shard.weights.view(replicated)[0] += 1
    attempt("diverged")
    filled(shard)

    deliver, number = Shipment.deliver, 0

    def damage(self: Shipment) -> None:
        nonlocal number
        number += 1
        if number == 7 and self._landed and not hit:
            hit.append(True)
            self._landed[0][1].view(torch.int32)[0] ^= 1
        deliver(self)

    hit: list[bool] = []
    Shipment.deliver = damage
    attempt("damaged")
    Shipment.deliver = deliver
    some = torch.tensor([len(hit)])
    dist.all_reduce(some)
    found["hits"] = int(some)
    attempt("at last")
    return found


def test_whatever_goes_wrong_the_old_plan_stays_whole() -> None:
    results = run_world(8, stumble)
    expected = {
        "refused": "device 5 cannot",
        "memory": "device 7 needs",
        "rounds differ": "the ranks prepared different rounds",
        "groups": "process groups could not be made: no more sockets",
        "diverged": "differ already, nothing is moved",
        "damaged": "arrived damaged in round 7 of",
    }
    num_groups = results[0]["refused"][3]
    for rank, found in enumerate(results):
        assert found["hits"] > 0, "something was damaged on purpose"
        for name, text in expected.items():
            reason, is_old, right, count = found[name]
            assert text in reason, name
            assert (name, is_old) == (name, True)
            assert right or (name == "diverged" and rank == 1), (name, rank)
            if name in ("refused", "memory", "groups"):
                assert count == num_groups, "groups that were made are gone again"
        reason, is_old, right, _ = found["at last"]
        assert (reason, is_old, right) == ("", False, True)


def test_a_long_migration_is_told_of_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import reporter

    told: list[tuple[str, int, str]] = []

    class Listener(ScriptedUplink):
        def set_state(self, state: str, *, step: int, reason: str = "") -> None:
            told.append((state, step, reason))

    rank_0 = reporter.Reporter(Listener({}), RunConfig(), peak_flops=1.0)
    monkeypatch.setattr(reporter, "PROGRESS_S", 3600)
    tell = rank_0.migrating(7)
    tell(1, 2)
    tell(2, 2)
    assert told == []
    monkeypatch.setattr(reporter, "PROGRESS_S", 0)
    tell = rank_0.migrating(7)
    for done in (1, 2, 3):
        tell(done, 3)
    assert told == [
        ("training", 7, "migrating 1/3 rounds"),
        ("training", 7, "migrating 2/3 rounds"),
        ("training", 7, ""),
    ]
