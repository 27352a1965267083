"""Layouts and transfers as pure data, over random plans."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from db.run_config import ModelConfig
from engine.errors import LayoutError
from engine.layout import (
    MAX_BUCKET_ELEMENTS,
    MIN_BUCKET_ELEMENTS,
    Holdings,
    Layout,
    Span,
    bucket_bound,
    layout,
    merged,
)
from engine.parameters import Parameter, parameters
from engine.transfers import elements_sent, transfers
from planner.plan import Pipeline, Plan, Stage
from planner.spec import ClusterSpec
from planner.validate import violations
from tests.engine.plans import random_plan

NODES = ((0, 1, 2, 3), (4, 5, 6, 7))
WIDE_NODES = (tuple(range(8)), tuple(range(8, 16)))
MODEL = ModelConfig(num_layers=5, hidden_size=16, num_heads=4, num_kv_heads=4, ffn_size=24, vocab_size=256, seq_len=8)
PARAMETERS = parameters(MODEL)
TIED = parameters(MODEL.model_copy(update={"tie_embeddings": True}))
SEEDS = st.integers(0, 10_000)


def plan_of(seed: int) -> Plan:
    return random_plan(seed, nodes=NODES, num_layers=5, num_micro_batches=9, max_tp=4)


def wide_plan_of(seed: int) -> Plan:
    return random_plan(seed, nodes=WIDE_NODES, num_layers=5, num_micro_batches=9, max_tp=8)


def layout_of(seed: int) -> Layout:
    """Groups of up to 4 and an untied head, or of up to 8 and a tied one."""
    if seed % 2:
        return layout(wide_plan_of(seed), TIED, 8)
    return layout(plan_of(seed), PARAMETERS, 4)


def covered(holdings: Holdings, parameter: Parameter) -> list[int]:
    """How many devices hold each element."""
    counts = [0] * parameter.num_elements
    for spans in holdings.values():
        for span in spans:
            if span.parameter == parameter.index:
                for element in range(span.start, span.stop):
                    counts[element] += 1
    return counts


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_random_plans_are_valid(seed: int) -> None:
    cluster = ClusterSpec(nodes=NODES, memory_bytes=dict.fromkeys(range(8), 1e9))
    assert violations(plan_of(seed), cluster=cluster, num_layers=5, global_batch=9, max_tp=4) == []
    wide = ClusterSpec(nodes=WIDE_NODES, memory_bytes=dict.fromkeys(range(16), 1e9))
    assert violations(wide_plan_of(seed), cluster=wide, num_layers=5, global_batch=9, max_tp=8) == []


def test_random_plans_mix_groups_of_eight_with_smaller_ones() -> None:
    degrees = [{stage.tp_degree for _, _, stage in wide_plan_of(seed).places()} for seed in range(100)]
    assert any(8 in found and found & {1, 2, 4} for found in degrees)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_every_element_has_one_state_owner_and_one_weight_in_each_pipeline(seed: int) -> None:
    spread = layout_of(seed)
    for parameter in spread.parameters:
        assert set(covered(spread.states, parameter)) == {1}
        weights = covered(spread.weights, parameter)
        if parameter.place == "ends":
            assert set(weights) == {sum(min(2, len(pipeline.stages)) for pipeline in spread.plan.pipelines)}
        elif parameter.is_sliced:
            assert set(weights) == {spread.plan.dp_degree}
        else:
            degrees = sum(
                stage.tp_degree
                for _, _, stage in spread.plan.places()
                if parameter.is_on(stage.layers, spread.plan.num_layers)
            )
            assert set(weights) == {degrees}


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_buckets_hold_every_element_once_and_shares_split_them(seed: int) -> None:
    spread = layout_of(seed)
    spans = [span for bucket in spread.buckets for span in bucket.spans]
    assert sum(span.num_elements for span in spans) == sum(parameter.num_elements for parameter in spread.parameters)
    for bucket in spread.buckets:
        assert list(bucket.owners) == sorted(bucket.owners), "process groups order their members by rank"
        shares = [bucket.share(device) for device in bucket.owners]
        assert merged(span for share in shares for span in share) == merged(bucket.spans)
        assert len({spread.places[device].pipeline_index for device in bucket.owners}) == spread.plan.dp_degree
        for device, span in itertools.product(bucket.owners, bucket.spans):
            held = [other for other in spread.weights[device] if other.parameter == span.parameter]
            assert any(other.start <= span.start and span.stop <= other.stop for other in held)


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_buckets_come_in_the_order_in_which_a_backward_completes_them(seed: int) -> None:
    """So that any two owners send each other the same buckets in the same order, whatever their stages."""
    spread = layout_of(seed)
    depths = {"first": -1, "ends": -1, "last": MODEL.num_layers}
    for bucket in spread.buckets:
        held = [spread.parameters[span.parameter] for span in bucket.spans]
        assert bucket.layer == min(depths.get(parameter.place, parameter.layer) for parameter in held)
    layers = [bucket.layer for bucket in spread.buckets]
    assert layers == sorted(layers, reverse=True)
    for _, _, one in spread.plan.places():
        own = [bucket.layer for bucket in spread.buckets if one.devices[0] in bucket.owners]
        within = [layer for layer in own if 0 <= layer < MODEL.num_layers]
        assert all(one.layers[0] <= layer < one.layers[1] for layer in within)


@given(SEEDS, st.integers(50, 2_000))
@settings(max_examples=50, deadline=None)
def test_buckets_stay_within_their_bound(seed: int, bound: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.layout.bucket_bound", lambda parameters: bound)
        spread = layout_of(seed)
    for bucket in spread.buckets:
        assert bucket.num_elements <= bound or len(bucket.spans) == 1
        covered_layers = {spread.parameters[span.parameter].layer for span in bucket.spans} - {-1}
        assert covered_layers == set(range(min(covered_layers, default=0), max(covered_layers, default=-1) + 1))
    for parameter in spread.parameters:
        assert set(covered(spread.states, parameter)) == {1}


@pytest.mark.parametrize(
    ("hidden", "layers", "expected"),
    [
        (16, 4, MIN_BUCKET_ELEMENTS),  # a toy: a message costs more than its bytes
        (4096, 32, MAX_BUCKET_ELEMENTS),  # seven billion: the first bucket is not a whole layer
    ],
)
def test_the_bound_grows_with_the_model(hidden: int, layers: int, expected: int) -> None:
    model = ModelConfig(num_layers=layers, hidden_size=hidden, num_heads=4, ffn_size=2 * hidden)
    assert bucket_bound(parameters(model)) == expected


@given(SEEDS, SEEDS)
@settings(max_examples=50, deadline=None)
def test_transfers_deliver_every_needed_element_once(one: int, other: int) -> None:
    old, new = layout_of(one), layout_of(other - other % 2 + one % 2)
    for before, after in ((old.weights, new.weights), (old.states, new.states)):
        moves = transfers(before, after, lambda device: device // 4)
        arrived = {device: [move.span for move in moves if move.target == device] for device in range(16)}
        for device, spans in after.items():
            assert merged(sorted(arrived[device])) == merged(sorted(spans))
        for move in moves:
            assert any(
                held.parameter == move.span.parameter and held.start <= move.span.start and move.span.stop <= held.stop
                for held in before[move.source]
            )
        minimum = sum(
            sum(1 for element in range(span.start, span.stop) if not _holds(before.get(device, ()), span, element))
            for device, spans in after.items()
            for span in spans
        )
        assert elements_sent(moves) == minimum


def _holds(spans: tuple[Span, ...], like: Span, element: int) -> bool:
    return any(span.parameter == like.parameter and span.start <= element < span.stop for span in spans)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_nothing_moves_between_equal_layouts(seed: int) -> None:
    spread = layout_of(seed)
    assert elements_sent(transfers(spread.states, spread.states, lambda device: device // 4)) == 0
    assert elements_sent(transfers(spread.weights, spread.weights, lambda device: device // 4)) == 0


def test_the_nearest_copy_is_preferred() -> None:
    held = {0: (Span(0, 0, 8),), 4: (Span(0, 0, 8),)}
    moves = transfers(held, {5: (Span(0, 0, 8),), 1: (Span(0, 0, 8),)}, lambda device: device // 4)
    assert {(move.source, move.target) for move in moves} == {(0, 1), (4, 5)}


def test_what_nobody_holds_cannot_move() -> None:
    with pytest.raises(LayoutError, match="no device holds"):
        transfers({0: (Span(0, 0, 4),)}, {1: (Span(0, 0, 8),)}, lambda device: 0)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_tied_weights_are_at_both_ends_once_each(num_stages: int) -> None:
    bounds = [0, *range(1, num_stages), 5]
    stages = tuple(Stage(devices=(i,), layers=(bounds[i], bounds[i + 1])) for i in range(num_stages))
    plan = Plan(num_layers=5, micro_batch_size=1, pipelines=(Pipeline(num_micro_batches=9, stages=stages),))
    spread = layout(plan, TIED, 4)
    assert [parameter.name for parameter in TIED if parameter.place != "layer"] == ["embedding", "final_norm"]
    holders = [device for device, spans in spread.weights.items() for span in spans if span.parameter == 0]
    assert holders == sorted({0, num_stages - 1})
    assert {bucket.owners for bucket in spread.buckets if any(span.parameter == 0 for span in bucket.spans)} == {
        tuple(holders)
    }


def test_a_tensor_must_divide_into_slices() -> None:
    odd = parameters(MODEL.model_copy(update={"ffn_size": 26}))
    with pytest.raises(LayoutError, match="must divide into 4 slices, its first dimension is 26"):
        layout(plan_of(1), odd, 4)
