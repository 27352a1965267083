"""How the messages of a round are cut into batches that match on both ends."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import shipment
from engine.shipment import Message, batches

ENDS = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda ends: ends[0] != ends[1])


def messages(ends: list[tuple[int, int]], device: int) -> list[Message]:
    """As one rank lists them: it has the tensors of those that concern it."""
    return [
        Message(sender=sender, receiver=receiver, tensor=torch.zeros(1) if device in (sender, receiver) else None)
        for sender, receiver in ends
    ]


@given(st.lists(ENDS, max_size=40), st.integers(1, 5))
def test_all_ranks_cut_alike_and_no_rank_has_too_many(ends: list[tuple[int, int]], limit: int) -> None:
    before, shipment.MAX_IN_FLIGHT = shipment.MAX_IN_FLIGHT, limit
    try:
        views = [
            [[(m.sender, m.receiver) for m in batch] for batch in batches(messages(ends, device))]
            for device in range(5)
        ]
    finally:
        shipment.MAX_IN_FLIGHT = before
    assert all(view == views[0] for view in views)
    assert [pair for batch in views[0] for pair in batch] == ends
    for batch in views[0]:
        assert all(sum(rank in pair for pair in batch) <= limit for rank in range(5))
    for batch, following in zip(views[0], views[0][1:], strict=False):  # cut only where it must be
        assert any(sum(rank in pair for pair in batch) == limit for rank in following[0])
