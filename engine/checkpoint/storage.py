"""Storage of `torch.distributed.checkpoint` in safetensors files and JSON, without pickle.

Each rank writes one tensor file and, when that is on the disk, a record of it. The library's steps
(plan, write, finish; plan, read) are taken here, by each rank on its own: its `save` and `load` would
exchange plans between ranks, as pickled objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from engine.checkpoint.folder import share_name, write_synced
from engine.checkpoint.manifest import FileEntry, Manifest, Record, TensorEntry
from engine.checkpoint.pieces import Pieces
from engine.checkpoint.planners import SpanLoadPlanner, SpanSavePlanner
from engine.errors import CheckpointError
from engine.tensor_file import DTYPE_NAMES, DTYPES, Entry, TensorFile


def write_share(pieces: dict[str, Pieces], folder: Path, rank: int) -> None:
    """Writes one rank's pieces and its record; not collective.

    Raises:
        OSError: the file cannot be written.
    """
    writer, planner = ShareWriter(folder, rank), SpanSavePlanner()
    planner.set_up_planner(pieces, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).wait()])


def read_share(pieces: dict[str, Pieces], folder: Path, manifest: Manifest) -> None:
    """Fills pieces from a complete checkpoint, reading no more than they need; not collective.

    Raises:
        CheckpointError: a tensor is missing, or a file is not what the manifest says.
    """
    reader, planner = FolderReader(folder, manifest), SpanLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(pieces, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plans = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    try:
        reader.read_data(planner.finish_plan(reader.prepare_global_plan(plans)[0]), planner).wait()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error


class ShareWriter(StorageWriter):
    """Writes a rank's pieces to one safetensors file, then a record of it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    @property
    def checkpoint_id(self) -> str:
        return str(self._folder)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        path = self._folder / f"{share_name(self._rank)}.safetensors"
        with TensorFile(path, [_file_entry(item) for item in plan.items]) as file:
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, Tensor)
                file.write(tensor)
        entry = FileEntry(name=path.name, num_bytes=file.num_bytes, sha256=file.sha256)
        results = [
            WriteResult(index=item.index, size_in_bytes=_file_entry(item).num_bytes, storage_data=entry)
            for item in plan.items
        ]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files = {result.storage_data for row in results for result in row}
        assert len(files) == 1, f"a rank writes one file, given {sorted(file.name for file in files)}"
        record = Record(file=files.pop(), tensors=_entries(metadata))
        write_synced(self._folder / f"{share_name(self._rank)}.json", record.model_dump_json())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class FolderReader(StorageReader):
    """Reads a complete checkpoint; also with the library's own planner, into flat tensors."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._files = {
            (key, start): manifest.files[index].name
            for key, entry in manifest.tensors.items()
            for start, _, index in entry.chunks
        }

    @property
    def checkpoint_id(self) -> str:
        return str(self._folder)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, STORAGE_TYPES] = {
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=DTYPES[entry.dtype]),
                size=torch.Size([entry.num_elements]),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size([start]), sizes=torch.Size([stop - start]))
                    for start, stop, _ in entry.chunks
                ],
            )
            for key, entry in self._manifest.tensors.items()
        }
        return Metadata(state_dict_metadata=tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            assert item.storage_index.offset is not None
            place = (item.storage_index.fqn, item.storage_index.offset[0])
            by_file.setdefault(self._files[place], []).append(item)
        for name, items in sorted(by_file.items()):
            with safe_open(self._folder / name, framework="pt") as file:
                for item in items:
                    assert item.storage_index.offset is not None
                    key = _name_in_file(item.storage_index.fqn, item.storage_index.offset[0])
                    first = item.storage_offsets[0]
                    target = planner.resolve_tensor(item)
                    target.copy_(file.get_slice(key)[first : first + item.lengths[0]])
                    planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _entries(metadata: Metadata) -> dict[str, TensorEntry]:
    entries = {}
    for key, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        chunks: Iterable[ChunkStorageMetadata] = entry.chunks
        entries[key] = TensorEntry(
            num_elements=entry.size[0],
            dtype=DTYPE_NAMES[entry.properties.dtype],
            chunks=tuple(sorted((c.offsets[0], c.offsets[0] + c.sizes[0], 0) for c in chunks)),
        )
    return entries


def _file_entry(item: Any) -> Entry:
    data = item.tensor_data
    return Entry(
        name=_name_in_file(item.index.fqn, item.index.offset[0]),
        dtype=data.properties.dtype,
        shape=(data.chunk.sizes[0],),
    )


def _name_in_file(key: str, start: int) -> str:
    return f"{key}@{start}"


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
