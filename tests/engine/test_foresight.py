"""The look ahead: prepared in the background on every rank, refused or unknown plans included."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist

from engine.errors import LayoutError
from engine.foresight import Foresight
from engine.layout import Layout
from engine.preparation import ItemBytes, Preparation, prepare
from tests.engine.layouts import layout_of

NOW = layout_of(1)


class Maker:
    """Prepares seeds instead of plans, and notes in which thread."""

    def __init__(self) -> None:
        self.is_done = threading.Condition()
        self.calls: list[tuple[Any, str]] = []

    def __call__(self, old: Layout, plan: Any) -> Preparation:
        try:
            if plan["seed"] == 13:
                raise LayoutError("thirteen is refused")
            size = ItemBytes(weight=4, gradient=4, state=4)
            return prepare(old, layout_of(plan["seed"]), lambda device: device // 4, size)
        finally:
            with self.is_done:
                self.calls.append((plan, threading.current_thread().name))
                self.is_done.notify_all()

    def wait_for(self, count: int) -> None:
        with self.is_done:
            assert self.is_done.wait_for(lambda: len(self.calls) >= count, timeout=30)


@contextmanager
def two_ranks(offered: dict[str, Any]) -> Iterator[list[tuple[Foresight, Maker]]]:
    """Rank 0, which reads what is `offered`, and another one."""
    store = dist.HashStore()
    makers = [Maker(), Maker()]
    ranks = [
        Foresight(store, lambda: offered.get("plan"), makers[0]),
        Foresight(store, None, makers[1]),
    ]
    for rank in ranks:
        rank.trains(NOW)
    try:
        yield list(zip(ranks, makers, strict=True))
    finally:
        for rank in ranks:
            rank.close()


def test_what_rank_0_has_read_is_ready_on_every_rank() -> None:
    offered = {}
    with two_ranks(offered) as ranks:
        offered["plan"] = {"seed": 2}
        for foresight, maker in ranks:
            maker.wait_for(1)
            ready = foresight.take(NOW, {"seed": 2})
            assert ready.old is NOW
            assert ready.new.plan == layout_of(2).plan
            assert maker.calls == [({"seed": 2}, "foresight")], "not again at the boundary, not again in the background"
            assert foresight.num_ahead == 1


def test_another_plan_is_prepared_at_the_boundary() -> None:
    offered = {"plan": {"seed": 2}}
    with two_ranks(offered) as ranks:
        for foresight, maker in ranks:
            maker.wait_for(1)
            assert foresight.take(NOW, {"seed": 3}).new.plan == layout_of(3).plan
            assert foresight.num_ahead == 0


def test_a_preparation_from_an_older_layout_is_not_used() -> None:
    offered = {"plan": {"seed": 2}}
    later = layout_of(5)
    with two_ranks(offered) as ranks:
        for foresight, maker in ranks:
            maker.wait_for(1)
            foresight.trains(later)
            assert foresight.take(later, {"seed": 2}).old is later
            assert foresight.num_ahead == 0


def test_a_refusal_is_told_at_the_boundary_and_the_look_ahead_goes_on() -> None:
    offered = {"plan": {"seed": 13}}
    with two_ranks(offered) as ranks:
        for _, maker in ranks:
            maker.wait_for(1)
        for foresight, _ in ranks:
            with pytest.raises(LayoutError, match="thirteen"):
                foresight.take(NOW, {"seed": 13})
        offered["plan"] = {"seed": 4}
        for foresight, maker in ranks:
            maker.wait_for(2)
            assert foresight.take(NOW, {"seed": 4}).new.plan == layout_of(4).plan
            assert foresight.num_ahead == 2
