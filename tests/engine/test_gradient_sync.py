"""Sums of gradients and new weights: the same by messages and by process groups, complete on every owner."""

from __future__ import annotations

from typing import Any

import pytest

from engine.parameters import parameters
from tests.engine.test_training import plans, small_config
from tests.engine.world import run_world


def both_ways(rank: int, number: int) -> Any:
    import torch
    import torch.distributed as dist

    from engine.gradient_sync import GradientSync
    from engine.groups import Groups, needed_groups
    from engine.layout import layout
    from engine.shard import Shard
    from engine.socket_links import connect

    spread = layout(plans()[number], parameters(small_config("float64").model), 4)
    links = connect()
    results = []
    for is_used in (False, True):
        groups = Groups(is_used=is_used)
        groups.prepare(needed_groups(spread))
        shard = Shard(spread, rank, torch.float64, torch.float64)
        shard.initialise(1)
        generator = torch.Generator().manual_seed(rank)
        for gradient in shard.grads.tensors:
            gradient.copy_(torch.randn(gradient.shape, generator=generator, dtype=torch.float64))
        expected = torch.zeros(sum(parameter.num_elements for parameter in spread.parameters), dtype=torch.float64)
        starts = [sum(p.num_elements for p in spread.parameters[:index]) for index in range(len(spread.parameters))]
        place = spread.places.get(rank)
        for bucket in spread.buckets if place else ():
            for span in bucket.spans if rank in bucket.owners else ():
                expected[starts[span.parameter] + span.start : starts[span.parameter] + span.stop] = shard.grads.view(
                    span
                )
        dist.all_reduce(expected)
        sums: list[Any] = []
        if place:
            sync = GradientSync(shard, links, groups)
            for layer in reversed(range(*place.stage.layers)):
                sync.passed(layer)
            sums = sync.reduce()
            for span, total in zip(shard.states["master"].spans, sums, strict=True):
                wanted = expected[starts[span.parameter] + span.start : starts[span.parameter] + span.stop]
                torch.testing.assert_close(total, wanted)
                shard.states["master"].view(span).copy_(total)
            sync.spread()
            assert not any(gradient.any() for gradient in shard.grads.tensors)
            for span in shard.weights.spans:
                wanted = expected[starts[span.parameter] + span.start : starts[span.parameter] + span.stop]
                torch.testing.assert_close(shard.weights.view(span), wanted)
        results.append(len(sums))
    return results


@pytest.mark.parametrize("number", [1, 2])  # different degrees in two pipelines; three pipelines
def test_every_owner_gets_the_sum_and_every_holder_the_weights(number: int) -> None:
    results = run_world(8, both_ways, number)
    assert all(one == other for one, other in results)
    assert sum(one for one, _ in results) > 0
