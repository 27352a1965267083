"""Rounds as pure data: each unit once, few bytes at a time, and never much more than a device must hold anyway."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from db.run_config import ModelConfig
from engine.layout import Holdings, Layout, layout
from engine.parameters import parameters
from engine.preparation import ItemBytes, Preparation, prepare
from engine.rounds import DIRECT_BYTES
from planner.plan import Plan, even_plan
from tests.engine.layouts import layout_of
from tests.engine.plans import random_plan
from tests.engine.test_layout import PARAMETERS, SEEDS

STORES = ("weight", "master", "exp_avg", "exp_avg_sq")
FLOATS = ItemBytes(weight=4, gradient=4, state=4)
MIXED = ItemBytes(weight=2, gradient=4, state=4)
BUCKETS = st.sampled_from([1, 700, 5_000, 1 << 24])


def node_of(device: int) -> int:
    return device // 4


def prepared(
    one: int, other: int, size: ItemBytes = FLOATS, bucket_bytes: int = 1_000, *, is_tied: bool = False
) -> Preparation:
    old, new = layout_of(one, is_tied=is_tied), layout_of(other, is_tied=is_tied)
    return prepare(old, new, node_of, size, bucket_bytes)


@given(SEEDS, SEEDS, BUCKETS)
@settings(max_examples=60, deadline=None)
def test_every_unit_is_in_one_round(one: int, other: int, bucket_bytes: int) -> None:
    rounds = prepared(one, other, bucket_bytes=bucket_bytes).itinerary.rounds
    units = [(unit.store, unit.parameter) for turn in rounds for unit in turn.units]
    assert sorted(units) == sorted((store, parameter.index) for store in STORES for parameter in PARAMETERS)


@given(SEEDS, SEEDS, BUCKETS, st.sampled_from([FLOATS, MIXED]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_no_device_holds_two_buckets_more_than_before_or_after(
    one: int, other: int, bucket_bytes: int, size: ItemBytes, is_tied: bool
) -> None:
    ready = prepared(one, other, size, bucket_bytes, is_tied=is_tied)
    largest = largest_part(ready, size)
    assert ready.itinerary.bucket_bytes == max(bucket_bytes, largest)
    extra = replayed(ready, size)
    assert extra == {device: max(0, most) for device, most in ready.itinerary.extra_bytes.items()}
    assert max(extra.values()) <= 2 * ready.itinerary.bucket_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_large_model_needs_two_buckets_at_most(seed: int) -> None:
    model = ModelConfig(
        num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_size=11_008, vocab_size=32_000
    )
    held = parameters(model)
    nodes = tuple(tuple(range(first, first + 8)) for first in range(0, 32, 8))
    first, second = (
        layout(random_plan(number, nodes=nodes, num_layers=32, num_micro_batches=64, max_tp=8), held, 8)
        for number in (seed, 100 + seed)
    )
    ready = prepare(first, second, lambda device: device // 8, FLOATS)
    assert max(replayed(ready, FLOATS).values()) <= 2 * ready.itinerary.bucket_bytes
    assert ready.itinerary.bucket_bytes == max(16 << 20, largest_part(ready, FLOATS))


def test_swapped_stages_alternate_between_giving_and_taking() -> None:
    """Both stages change places: in the order of layers, one would take in all before it gave anything."""
    first = plan_of_two((0, 1))
    ready = prepare(
        layout(first, PARAMETERS, 4), layout(plan_of_two((1, 0)), PARAMETERS, 4), node_of, ItemBytes(**NO_GRADIENTS), 1
    )
    assert max(replayed(ready, ItemBytes(**NO_GRADIENTS)).values()) <= 2 * ready.itinerary.bucket_bytes
    held = sum(span.num_elements * 4 * 4 for span in ready.old.weights[0])
    assert 2 * ready.itinerary.bucket_bytes < held / 2, "so the bound says something here"


NO_GRADIENTS = {"weight": 4, "gradient": 0, "state": 4}


def plan_of_two(devices: tuple[int, int]) -> Plan:
    document = even_plan(
        ((0, 1),), num_layers=4, num_micro_batches=9, micro_batch_size=1, dp_degree=1, tp_degree=1, pp_degree=2
    ).to_json()
    document["num_layers"] = 5
    for stage, device, layers in zip(document["pipelines"][0]["stages"], devices, ([0, 3], [3, 5]), strict=True):
        stage["devices"], stage["layers"] = [device], layers
    return Plan.from_json(document)


@given(SEEDS, SEEDS)
@settings(max_examples=30, deadline=None)
def test_bytes_moved_are_the_fewest_possible(one: int, other: int) -> None:
    """Element by element: each new holder of each tensor that has it not yet receives it once."""
    ready = prepared(one, other, MIXED)
    fewest = 0
    for store in STORES:
        item = MIXED.weight if store == "weight" else MIXED.state
        before, after = holdings(ready.old, store), holdings(ready.new, store)
        for device in range(8):
            fewest += item * len(elements(after, device) - elements(before, device))
    assert ready.bytes_moved == fewest


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_equal_layouts_move_nothing_in_one_round(seed: int) -> None:
    ready = prepared(seed, seed, bucket_bytes=1)
    assert (ready.bytes_moved, len(ready.itinerary.rounds)) == (0, 1)
    assert set(replayed(ready, FLOATS).values()) == {0}


def holdings(spread: Layout, store: str) -> Holdings:
    return spread.weights if store == "weight" else spread.states


def elements(held: Holdings, device: int) -> set[tuple[int, int]]:
    return {(span.parameter, number) for span in held.get(device, ()) for number in range(span.start, span.stop)}


def largest_part(ready: Preparation, size: ItemBytes) -> int:
    """The most bytes of one parameter in one tensor that a device takes over."""
    largest = 0
    for store, item in (("weight", size.weight), ("master", size.state)):
        before, after = holdings(ready.old, store), holdings(ready.new, store)
        for device, spans in after.items():
            parts: dict[int, int] = {}
            for span in set(spans) - set(before.get(device, ())):
                parts[span.parameter] = parts.get(span.parameter, 0) + span.num_elements * item
            largest = max(largest, *parts.values(), 0)
    return largest


def replayed(ready: Preparation, size: ItemBytes) -> dict[int, int]:
    """Walks the rounds as the mover does and counts what each device holds beyond the larger of before and after."""
    devices = sorted({*ready.old.weights, *ready.new.weights})
    total = {}
    for spread, name in ((ready.old, "before"), (ready.new, "after")):
        for device in devices:
            weights = sum(span.num_elements for span in spread.weights.get(device, ()))
            states = sum(span.num_elements for span in spread.states.get(device, ()))
            total[device, name] = weights * (size.weight + size.gradient) + 3 * states * size.state
    extra = dict.fromkeys(devices, 0)
    for device in devices:
        ceiling = max(total[device, "before"], total[device, "after"])
        gradients = size.gradient * sum(span.num_elements for span in ready.old.weights.get(device, ()))
        now = total[device, "before"] - gradients
        unreleased, buffers = 0, 0
        for turn in ready.itinerary.rounds:
            if turn.is_alone:
                now, unreleased, buffers = now - unreleased - buffers, 0, 0
            new, gone, packed = footprint(ready, turn.units, device, size)
            packed *= turn.is_packed
            now += new + packed
            extra[device] = max(extra[device], now - ceiling)
            now -= unreleased + buffers
            unreleased, buffers = gone, packed
    return extra


def footprint(ready: Preparation, units: tuple, device: int, size: ItemBytes) -> tuple[int, int, int]:  # type: ignore[type-arg]
    """Bytes that a round allocates, replaces, and packs on a device."""
    new = gone = packed = 0
    for unit in units:
        item = size.weight if unit.store == "weight" else size.state
        before = set(holdings(ready.old, unit.store).get(device, ()))
        after = set(holdings(ready.new, unit.store).get(device, ()))
        new += sum(item * span.num_elements for span in after - before if span.parameter == unit.parameter)
        gone += sum(item * span.num_elements for span in before - after if span.parameter == unit.parameter)
        for move in ready.arrivals[unit.store].get(unit.parameter, ()):
            length = move.span.num_elements * item
            if move.source != move.target and device in (move.source, move.target) and length < DIRECT_BYTES:
                packed += length
    return new, gone, packed
