"""Where a run starts from: its own newest checkpoint, another one, weights of Hugging Face, or random weights.

A load is collective and all or nothing: whatever one rank finds wrong, all raise the same error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from db.run_config import RunConfig
from engine.agreement import broadcast_text, vote
from engine.checkpoint.folder import complete, remove_leftovers
from engine.checkpoint.manifest import MANIFEST, Manifest, check_model, read_manifest
from engine.checkpoint.pieces import to_fill
from engine.errors import CheckpointError
from engine.hf_llama import HuggingFaceFolder
from engine.shard import Shard
from engine.tensor_file import DTYPE_NAMES, sha256_of

log = logging.getLogger("malleus.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where training goes on.

    Args:
        step: the next step to run.
        request: the newest request for a checkpoint that is answered already.
        path: of the checkpoint or weights; None after random weights.
        num_bytes: size of the checkpoint.
        is_own: it is a checkpoint of the run's own folder.
    """

    step: int = 0
    request: int = 0
    path: Path | None = None
    num_bytes: int = 0
    is_own: bool = False


def start(shard: Shard, config: RunConfig, folder: Path | None) -> Start:
    """Fills a fresh shard, whatever its layout. Collective.

    Args:
        folder: the run's own checkpoints; the newest complete one goes before `checkpoint.start_from`.

    Raises:
        CheckpointError: what should be loaded is missing, damaged or of another model; equal on all ranks.
    """
    chosen, problem = "", ""
    if dist.get_rank() == 0:
        try:
            chosen = str(_chosen(config, folder) or "")
        except (OSError, CheckpointError) as error:
            problem = str(error)
    if problem := vote(problem):
        raise CheckpointError(problem)
    chosen = broadcast_text(chosen)
    if not chosen:
        shard.initialise(config.train.seed)
        return Start()
    path = Path(chosen)
    if not (path / MANIFEST).is_file():
        _load_weights(shard, config, path)
        return Start(path=path)
    manifest = load(shard, config, path)
    is_own = folder is not None and path.parent == folder
    if dist.get_rank() == 0:
        log.info("going on from %s: step %d", path, manifest.step)
    return Start(
        step=manifest.step,
        request=manifest.request if is_own else 0,
        path=path,
        num_bytes=manifest.num_bytes,
        is_own=is_own,
    )


def load(shard: Shard, config: RunConfig, path: Path) -> Manifest:
    """Fills a shard from a complete checkpoint. Collective.

    Each file's checksum is taken by one rank; each rank reads only what it keeps.

    Raises:
        CheckpointError: see `start`.
    """
    manifest, problem = None, ""
    try:
        manifest = read_manifest(path)
        check_model(manifest, config.model, shard.layout.parameters, path)
        _check_dtype(manifest, shard, path)
        check_files(manifest, path, dist.get_rank(), dist.get_world_size())
    except CheckpointError as error:
        problem = str(error)
    _agree(problem)
    assert manifest is not None
    try:
        from engine.checkpoint.storage import read_share  # a second of imports, only where they are needed

        read_share(to_fill(shard), path, manifest)
    except CheckpointError as error:
        problem = str(error)
    _agree(problem)
    shard.num_updates = manifest.num_updates
    return manifest


def check_files(manifest: Manifest, path: Path, part: int = 0, num_parts: int = 1) -> None:
    """Size and checksum of every `num_parts`-th file, from number `part` on; not collective.

    Raises:
        CheckpointError: a file is missing or is not what was written.
    """
    for entry in manifest.files[part::num_parts]:
        file = path / entry.name
        try:
            size = file.stat().st_size
            if size != entry.num_bytes:
                raise CheckpointError(f"{file} is damaged: expected {entry.num_bytes} bytes, given {size}")
            if sha256_of(file) != entry.sha256:
                raise CheckpointError(f"{file} is damaged: its checksum is not that of the manifest")
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror}") from error


def resolve(path: Path) -> Path:
    """A checkpoint, a folder of Hugging Face, or the newest complete checkpoint inside a folder.

    Raises:
        CheckpointError: it is none of them.
    """
    if (path / MANIFEST).is_file() or (path / "config.json").is_file():
        return path
    found = complete(path)
    if not found:
        raise CheckpointError(
            f"expected a checkpoint, a folder with complete checkpoints, or a folder of Hugging Face "
            f"(config.json and *.safetensors), given {path}"
        )
    return found[-1]


def _chosen(config: RunConfig, folder: Path | None) -> Path | None:
    if folder is not None:
        remove_leftovers(folder)
        if own := complete(folder):
            return own[-1]
    source = config.checkpoint.start_from
    return resolve(Path(source).expanduser()) if source else None


def _load_weights(shard: Shard, config: RunConfig, path: Path) -> None:
    """Weights and master weights from a folder of Hugging Face; moments stay zero. Collective."""
    problem = ""
    try:
        source = HuggingFaceFolder(path)
        source.check(config.model)
        for store in (shard.states["master"], shard.weights):
            for span in store.spans:
                values = source.read(shard.layout.parameters[span.parameter], span.start, span.stop)
                store.view(span).copy_(values)
    except CheckpointError as error:
        problem = str(error)
    _agree(problem)
    if dist.get_rank() == 0:
        log.info("starting with the weights of %s", path)


def _check_dtype(manifest: Manifest, shard: Shard, path: Path) -> None:
    expected = DTYPE_NAMES[shard.states["master"].dtype]
    if manifest.state_dtype != expected:
        raise CheckpointError(
            f"{path} has optimizer state of another dtype: expected {expected}, given {manifest.state_dtype} "
            f"(train.dtype was {manifest.config['train']['dtype']})"
        )


def _agree(problem: str) -> None:
    if reason := vote(problem):
        raise CheckpointError(reason)
