"""Messages between real ranks: any size, both ways at once, in order; and what happens when a rank is gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.world import run_world


def make_links(kind: str) -> Any:
    from engine.links import TorchLinks
    from engine.socket_links import connect

    return connect() if kind == "socket" else TorchLinks()


def both_ways_at_once(rank: int, kind: str) -> list[float]:
    """Everyone sends large and small messages to everyone before anyone receives."""
    import torch

    links = make_links(kind)
    others = [other for other in range(3) if other != rank]
    sizes = (1, 3_000_000, 5)
    arriving = [
        links.post(torch.empty(size, dtype=torch.float64), other, tag)
        for other in others
        for tag, size in enumerate(sizes)
    ]
    leaving = [
        links.send(torch.full((size,), rank + tag / 10, dtype=torch.float64), other, tag)
        for other in others
        for tag, size in enumerate(sizes)
    ]
    values = [transfer.wait() for transfer in reversed(arriving)]
    for transfer in leaving:
        transfer.wait()
    assert all(bool((value == value[0]).all()) for value in values)
    return sorted(float(value[0]) for value in values)


@pytest.mark.parametrize("kind", ["socket", "torch"])
def test_messages_of_any_size_cross(kind: str) -> None:
    results = run_world(3, both_ways_at_once, kind)
    for rank, values in enumerate(results):
        assert values == sorted(other + tag / 10 for other in range(3) if other != rank for tag in range(3))


def late_receive(rank: int) -> list[float]:
    """Messages wait for their receives, and those keep the order of the sends; bf16 and views travel too."""
    import torch

    from engine.socket_links import SocketLinks

    links = make_links("socket")
    assert isinstance(links, SocketLinks)
    if rank == 0:
        numbers = torch.arange(8, dtype=torch.bfloat16)
        for index in range(8):
            links.send(numbers[index : index + 1], 1).wait()
        links.post(torch.empty(1), 1).wait()
        return []
    arrived = [float(links.post(torch.empty(1, dtype=torch.bfloat16), 0).wait()) for _ in range(8)]
    links.send(torch.zeros(1), 0).wait()
    return arrived


def test_messages_wait_for_their_receive() -> None:
    assert run_world(2, late_receive)[1] == [float(index) for index in range(8)]


def left_alone(rank: int) -> str:
    import torch

    links = make_links("socket")
    if rank == 1:
        links.close()
        return "left"
    try:
        links.post(torch.empty(1), 1).wait()
    except RuntimeError as error:
        return str(error)
    return "nothing happened"


def test_who_waits_for_a_rank_that_is_gone_is_told() -> None:
    told, _ = run_world(2, left_alone)
    assert told.startswith("rank 1 has closed its link")


def sums(rank: int, size: int) -> list[float]:
    import torch

    from engine.collectives import world_sum

    row = torch.tensor([0.1 * (rank + 1), float(rank)], dtype=torch.float64)
    return world_sum(row, make_links("socket")).tolist()


@pytest.mark.parametrize("size", [3, 4])  # by the process group, and by doubling
def test_the_sum_over_the_world_is_the_same_everywhere(size: int) -> None:
    results = run_world(size, sums, size)
    assert all(row == results[0] for row in results)
    assert results[0] == pytest.approx([0.1 * size * (size + 1) / 2, size * (size - 1) / 2])
