"""What a checkpoint says of itself: one JSON document beside the tensor files.

A rank describes the file it has written in a record of its own; rank 0 joins the records into the
manifest. No tensor is read here, and nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from db.run_config import ModelConfig
from engine.errors import CheckpointError
from engine.parameters import Parameter

MANIFEST = "manifest.json"
SHAPE_FIELDS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "ffn_size",
    "vocab_size",
    "tie_embeddings",
)
"""Settings of a model without which its weights mean something else."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Document):
    """A tensor file of the folder."""

    name: str = Field(pattern=r"^[\w.-]+$")
    num_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class TensorEntry(_Document):
    """A flattened parameter's tensor (`layers.0.wq.master`) and where its elements are.

    Args:
        dtype: as safetensors names it.
        chunks: `(start, stop, file)`: elements `[start, stop)` are in the file with that index,
            under the name `key@start`.
    """

    num_elements: int = Field(ge=0)
    dtype: str
    chunks: tuple[tuple[int, int, int], ...]


class Record(_Document):
    """What one rank has written: a file, and the chunks in it (file index 0)."""

    schema_version: Literal[1] = 1
    file: FileEntry
    tensors: dict[str, TensorEntry]


class Manifest(_Document):
    """A complete checkpoint.

    Args:
        step: the next step to run.
        request: the newest request for a checkpoint that it answers.
        plan: the plan that was running; a load may use any other.
        config: the run's configuration.
    """

    schema_version: Literal[1] = 1
    kind: Literal["malleus-checkpoint"] = "malleus-checkpoint"
    step: int = Field(ge=0)
    num_updates: int = Field(ge=0)
    request: int = Field(0, ge=0)
    saved_at: AwareDatetime
    torch_version: str
    plan: dict[str, Any]
    config: dict[str, Any]
    files: tuple[FileEntry, ...]
    tensors: dict[str, TensorEntry]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def model(self) -> ModelConfig:
        return ModelConfig.model_validate(self.config["model"])

    @property
    def state_dtype(self) -> str:
        """The dtype of master weights, as safetensors names it."""
        return next(entry.dtype for key, entry in self.tensors.items() if key.endswith(".master"))


def joined(
    records: Sequence[Record],
    *,
    step: int,
    num_updates: int,
    request: int,
    saved_at: datetime,
    torch_version: str,
    plan: dict[str, Any],
    config: dict[str, Any],
) -> Manifest:
    """The manifest of all ranks' records.

    Raises:
        CheckpointError: the chunks of a tensor leave a gap or overlap.
    """
    chunks: dict[str, list[tuple[int, int, int]]] = {}
    kinds: dict[str, tuple[int, str]] = {}
    for index, record in enumerate(records):
        for key, entry in record.tensors.items():
            chunks.setdefault(key, []).extend((start, stop, index) for start, stop, _ in entry.chunks)
            kinds[key] = (entry.num_elements, entry.dtype)
    tensors = {
        key: TensorEntry(num_elements=kinds[key][0], dtype=kinds[key][1], chunks=tuple(sorted(parts)))
        for key, parts in sorted(chunks.items())
    }
    for key, entry in tensors.items():
        check_partition(key, entry)
    return Manifest(
        step=step,
        num_updates=num_updates,
        request=request,
        saved_at=saved_at,
        torch_version=torch_version,
        plan=plan,
        config=config,
        files=tuple(record.file for record in records),
        tensors=tensors,
    )


def check_partition(key: str, entry: TensorEntry) -> None:
    """Every element exactly once.

    Raises:
        CheckpointError: the chunks leave a gap or overlap.
    """
    position = 0
    for start, stop, _ in entry.chunks:
        if start != position or stop <= start:
            raise CheckpointError(f"{key}: expected a chunk from element {position}, given {start} to {stop}")
        position = stop
    if position != entry.num_elements:
        raise CheckpointError(f"{key}: expected {entry.num_elements} elements, given {position}")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete checkpoint.

    Raises:
        CheckpointError: there is none, it cannot be read, or it contradicts itself.
    """
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
        _ = manifest.model
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (pydantic.ValidationError, KeyError) as error:
        first = str(error.errors()[0]["msg"]) if isinstance(error, pydantic.ValidationError) else f"no {error}"
        raise CheckpointError(f"{path} is damaged: {first}") from error
    for key, entry in manifest.tensors.items():
        check_partition(f"{path}: {key}", entry)
        if any(not 0 <= index < len(manifest.files) for _, _, index in entry.chunks):
            raise CheckpointError(f"{path}: {key} names a file that is not listed")
    return manifest


def check_model(manifest: Manifest, model: ModelConfig, parameters: Sequence[Parameter], where: Path) -> None:
    """A checkpoint belongs to this model.

    Raises:
        CheckpointError: names every difference, with expected and given.
    """
    saved = manifest.model
    problems = [
        f"{name}: expected {getattr(model, name)}, given {getattr(saved, name)}"
        for name in SHAPE_FIELDS
        if getattr(saved, name) != getattr(model, name)
    ]
    if not problems:
        expected = {parameter.name: parameter.num_elements for parameter in parameters}
        given = {
            key.removesuffix(".master"): entry.num_elements
            for key, entry in manifest.tensors.items()
            if key.endswith(".master")
        }
        problems = [
            f"{name}: expected {expected.get(name, 'no such parameter')}, given {given.get(name, 'none')} elements"
            for name in sorted(expected.keys() | given.keys())
            if expected.get(name) != given.get(name)
        ]
    if problems:
        raise CheckpointError(f"{where} is of another model: {'; '.join(problems)}")
