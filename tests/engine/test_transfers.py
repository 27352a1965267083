"""Who sends what: the nearest copy, senders that share the load, pieces no smaller than they must be."""

from __future__ import annotations

from hypothesis import given, settings

from db.run_config import ModelConfig
from engine.layout import Span, layout
from engine.parameters import parameters
from engine.transfers import Transfer, elements_sent, sent_by, transfers
from planner.plan import even_plan
from tests.engine.layouts import layout_of
from tests.engine.test_layout import SEEDS


def node_of(device: int) -> int:
    return device // 4


def test_a_span_that_stays_is_one_local_piece() -> None:
    held = {0: (Span(0, 0, 8), Span(1, 0, 4)), 1: (Span(0, 0, 3), Span(0, 3, 8))}
    assert transfers(held, {0: (Span(0, 0, 8),)}, node_of) == (Transfer(0, 0, Span(0, 0, 8)),)


def test_neighbours_out_of_one_held_span_travel_together() -> None:
    """Device 2 cuts the parameter where nobody sends a cut."""
    held = {1: (Span(0, 0, 8),), 4: (Span(0, 2, 5),)}
    assert transfers(held, {0: (Span(0, 0, 8),)}, node_of) == (Transfer(1, 0, Span(0, 0, 8)),)


def test_pieces_never_reach_over_two_held_spans() -> None:
    held = {1: (Span(0, 0, 4), Span(0, 4, 8))}
    assert transfers(held, {0: (Span(0, 2, 8),)}, node_of) == (
        Transfer(1, 0, Span(0, 2, 4)),
        Transfer(1, 0, Span(0, 4, 8)),
    )


def test_equal_copies_share_the_load() -> None:
    held = {device: tuple(Span(parameter, 0, 8) for parameter in range(12)) for device in (0, 1, 2)}
    moves = transfers(held, {3: held[0]}, node_of)
    assert sent_by(moves) == {0: 32, 1: 32, 2: 32}


def test_who_is_busy_already_sends_less() -> None:
    held = {device: tuple(Span(parameter, 0, 8) for parameter in range(6)) for device in (0, 1)}
    moves = transfers(held, {3: held[0]}, node_of, {0: 32})
    assert sent_by(moves) == {0: 8, 1: 40}


def test_a_near_copy_sends_even_if_it_is_busy() -> None:
    held = {0: (Span(0, 0, 8),), 4: (Span(0, 0, 8),)}
    assert transfers(held, {5: held[0]}, node_of, {4: 1_000}) == (Transfer(4, 5, Span(0, 0, 8)),)


@given(SEEDS, SEEDS)
@settings(max_examples=60, deadline=None)
def test_every_source_is_as_near_as_any_holder_and_holds_the_piece_in_one_span(one: int, other: int) -> None:
    old, new = layout_of(one), layout_of(other)
    for move in transfers(old.weights, new.weights, node_of):
        able = {
            device
            for device, spans in old.weights.items()
            if any(
                held.parameter == move.span.parameter and held.start <= move.span.start and move.span.stop <= held.stop
                for held in spans
            )
        }
        assert move.source in able
        if move.source != move.target:
            assert move.target not in able
            is_near = node_of(move.source) == node_of(move.target)
            assert is_near or all(node_of(device) != node_of(move.target) for device in able)


def test_nobody_sends_much_more_than_its_part() -> None:
    """Eight replicas of a layer, one new holder on another node: each sends an eighth, as near as pieces allow."""
    model = ModelConfig(num_layers=8)
    held = parameters(model)
    nodes = (tuple(range(8)), tuple(range(8, 16)))
    first = even_plan(
        nodes[:1], num_layers=8, num_micro_batches=16, micro_batch_size=1, dp_degree=8, tp_degree=1, pp_degree=1
    )
    second = even_plan(
        nodes[1:], num_layers=8, num_micro_batches=16, micro_batch_size=1, dp_degree=1, tp_degree=8, pp_degree=1
    )
    moves = transfers(layout(first, held, 8).weights, layout(second, held, 8).weights, lambda device: device // 8)
    sent = sent_by(moves)
    assert sum(sent.values()) == elements_sent(moves)
    assert max(sent.values()) <= 1.1 * elements_sent(moves) / 8
