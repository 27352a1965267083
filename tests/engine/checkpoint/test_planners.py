"""Save plans partition every tensor, load plans cover what is asked for exactly once, for random plans."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from engine.checkpoint.pieces import Pieces, staged, to_fill
from engine.checkpoint.planners import SpanLoadPlanner, SpanSavePlanner
from engine.errors import CheckpointError
from engine.parameters import parameters
from engine.shard import STATES
from planner.plan import Plan
from tests.engine.checkpoint.states import a_plan, empty_shard, small_config

CONFIG = small_config()
SEEDS = st.integers(0, 10_000)


def metadata_of(plan: Plan) -> Metadata:
    planner = SpanSavePlanner()
    local = []
    for device in range(CONFIG.num_devices):
        planner.set_up_planner(staged(empty_shard(CONFIG, plan, device)))
        local.append(planner.create_local_plan())
    return planner.create_global_plan(local)[1]


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_what_ranks_save_partitions_every_tensor(seed: int) -> None:
    metadata = metadata_of(a_plan(CONFIG, seed))
    every = parameters(CONFIG.model)
    assert set(metadata.state_dict_metadata) == {f"{p.name}.{name}" for p in every for name in STATES}
    for parameter in every:
        for name in STATES:
            entry = metadata.state_dict_metadata[f"{parameter.name}.{name}"]
            assert isinstance(entry, TensorStorageMetadata)
            assert list(entry.size) == [parameter.num_elements]
            counts = torch.zeros(parameter.num_elements, dtype=torch.int64)
            for chunk in entry.chunks:
                counts[chunk.offsets[0] : chunk.offsets[0] + chunk.sizes[0]] += 1
            assert (counts == 1).all()


@settings(max_examples=30, deadline=None)
@given(saved=SEEDS, loaded=SEEDS, device=st.integers(0, CONFIG.num_devices - 1))
def test_a_load_covers_every_element_exactly_once(saved: int, loaded: int, device: int) -> None:
    metadata = metadata_of(a_plan(CONFIG, saved))
    wanted = to_fill(empty_shard(CONFIG, a_plan(CONFIG, loaded), device))
    planner = SpanLoadPlanner()
    planner.set_up_planner(wanted, metadata)
    counts = {
        (key, start): torch.zeros(len(tensor), dtype=torch.int64)
        for key, pieces in wanted.items()
        for start, tensor in pieces.tensors.items()
    }
    for item in planner.create_local_plan().items:
        key, offset = item.dest_index.fqn, item.dest_index.offset
        assert offset is not None
        assert item.storage_index.offset is not None
        first = item.dest_offsets[0]
        counts[key, offset[0]][first : first + item.lengths[0]] += 1
        assert item.storage_index.fqn == key.replace(".weight", ".master")
        assert offset[0] + first == item.storage_index.offset[0] + item.storage_offsets[0]  # the same element
    assert all((count == 1).all() for count in counts.values())


@pytest.mark.parametrize(("key", "size"), [("nothing.master", 4), ("final_norm.master", 33)])
def test_a_tensor_that_is_missing_or_of_another_size_is_refused(key: str, size: int) -> None:
    planner = SpanLoadPlanner()
    planner.set_up_planner(
        {key: Pieces(num_elements=size, tensors={0: torch.zeros(size)})}, metadata_of(a_plan(CONFIG, 0))
    )
    with pytest.raises(CheckpointError, match=rf"{key}: expected {size} elements"):
        planner.create_local_plan()
