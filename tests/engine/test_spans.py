"""Spans with a tensor each: filled, looked into, handed over one by one; the ledger that tests count bytes with."""

from __future__ import annotations

import pytest
import torch

from engine.layout import Span
from engine.spans import SpanTensors
from tests.engine.ledger import Ledger

ONE, TWO = Span(0, 4, 8), Span(3, 0, 2)


def test_values_go_where_their_span_says() -> None:
    store = SpanTensors((ONE, TWO), torch.float32)
    store.scatter([TWO, Span(0, 5, 7)], torch.tensor([1.0, 2, 3, 4]))
    assert store.view(ONE).tolist() == [0, 3, 4, 0]
    assert store.gather([Span(0, 6, 8), TWO]).tolist() == [4, 0, 1, 2]
    assert [len(tensor) for tensor in store.tensors] == [4, 2]


@pytest.mark.parametrize("span", [Span(0, 3, 5), Span(0, 7, 9), Span(1, 0, 1)], ids=str)
def test_what_is_not_held_has_no_view(span: Span) -> None:
    with pytest.raises(AssertionError, match="is not held"):
        SpanTensors((ONE, TWO), torch.float32).view(span)


def test_a_tensor_changes_hands_without_a_copy_and_leaves_nothing_behind() -> None:
    giver = SpanTensors((ONE, TWO), torch.float64)
    taker = SpanTensors((ONE,), torch.float64, is_hollow=True)
    assert (giver.num_bytes, taker.num_bytes) == (48, 0)
    assert not taker.has(ONE)
    taker.put(ONE, giver.view(ONE))
    giver.release(ONE)
    assert (giver.num_bytes, taker.num_bytes) == (16, 32)
    assert taker.has(ONE)
    with pytest.raises(AssertionError, match="is not held"):
        giver.view(ONE)


def test_the_ledger_counts_what_lives() -> None:
    held = torch.zeros(100)
    with Ledger([held]) as ledger:
        assert ledger.now_bytes == 400
        more = torch.zeros(50) + 1
        view = more[10:]
        assert ledger.now_bytes == 600
        assert ledger.peak_bytes == 800, "the zeros and their sum"
        del more
        assert ledger.now_bytes == 600, "a view keeps the whole"
        del view, held
        assert ledger.now_bytes == 0
