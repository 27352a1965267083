"""Spans as `torch.distributed.checkpoint` sees them: chunks of flattened parameters.

A state dict maps `"<parameter>.<tensor>"` to the pieces that a rank holds of it. Every element is in
exactly one rank's pieces when saving; when loading, any pieces may be asked for. The library's
resharding finds which saved chunks they need.
"""

from __future__ import annotations

import dataclasses
import io

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    STATE_DICT_TYPE,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from engine.checkpoint.pieces import Pieces
from engine.errors import CheckpointError


class SpanSavePlanner(SavePlanner):
    """Plans the pieces of a state dict `{key: Pieces}` as shards."""

    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._pieces: dict[str, Pieces] = state_dict

    def create_local_plan(self) -> SavePlan:
        return SavePlan(
            [
                _write_item(key, start, tensor, pieces.num_elements)
                for key, pieces in self._pieces.items()
                for start, tensor in pieces.tensors.items()
            ]
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plans as they are: no two ranks hold the same element."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for item in (item for plan in all_plans for item in plan.items):
            data = item.tensor_data
            assert data is not None
            entry = tensors.setdefault(
                item.index.fqn, TensorStorageMetadata(properties=data.properties, size=data.size, chunks=[])
            )
            entry.chunks.append(data.chunk)
        return all_plans, Metadata(state_dict_metadata=dict(tensors))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        index = write_item.index
        assert index.offset is not None
        return self._pieces[index.fqn].tensors[index.offset[0]]


class SpanLoadPlanner(LoadPlanner):
    """Plans which saved chunks fill the pieces of a state dict `{key: Pieces}`, in place.

    Raises:
        CheckpointError: a key is not in the checkpoint, or has another size there.
    """

    def set_up_planner(
        self, state_dict: STATE_DICT_TYPE, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        assert metadata is not None
        self._pieces: dict[str, Pieces] = state_dict
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([item for key, pieces in self._pieces.items() for item in self._read_items(key, pieces)])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise AssertionError("a checkpoint holds tensors only")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The place to fill; it may have another dtype than what was saved."""
        index = read_item.dest_index
        assert index.offset is not None
        tensor = self._pieces[index.fqn].tensors[index.offset[0]]
        return tensor.narrow(0, read_item.dest_offsets[0], read_item.lengths[0])

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        pass

    def _read_items(self, key: str, pieces: Pieces) -> list[ReadItem]:
        source = pieces.source or key
        entry = self._metadata.state_dict_metadata.get(source)
        if not isinstance(entry, TensorStorageMetadata) or entry.size[0] != pieces.num_elements:
            given = entry.size[0] if isinstance(entry, TensorStorageMetadata) else "none"
            raise CheckpointError(f"{source}: expected {pieces.num_elements} elements in the checkpoint, given {given}")
        chunks = [_chunk(start, len(tensor)) for start, tensor in pieces.tensors.items()]
        return [
            dataclasses.replace(item, dest_index=MetadataIndex(key, item.dest_index.offset))
            for item in create_read_items_for_chunk_list(source, entry, chunks)
        ]


def _write_item(key: str, start: int, tensor: Tensor, num_elements: int) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(key, torch.Size([start])),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_chunk(start, len(tensor)),
            properties=TensorProperties(dtype=tensor.dtype),
            size=torch.Size([num_elements]),
        ),
    )


def _chunk(start: int, num_elements: int) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size([start]), sizes=torch.Size([num_elements]))
