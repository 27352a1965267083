"""Export of a checkpoint as a LLaMA of Hugging Face.

    python -m engine.export --checkpoint PATH --config run.toml --out DIR

One process, no process group, one tensor in memory at a time. Exit status: 0 written, 2 the input
was wrong (one line on stderr), 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from db.errors import InputError
from db.run_config import RunConfig
from engine.checkpoint.manifest import MANIFEST, Manifest, check_model, read_manifest
from engine.checkpoint.start import check_files, resolve
from engine.errors import CheckpointError
from engine.hf_llama import CONFIG, INDEX, hf_config, hf_name, hf_shape, is_transposed
from engine.parameters import Parameter, parameters
from engine.tensor_file import DTYPES, Entry, TensorFile

MAX_FILE_BYTES = 5_000_000_000
"""Larger models are cut into several files. Source: the default of transformers' save_pretrained."""
EXPORT_DTYPES = ("float32", "bfloat16", "float16", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the export; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.export", description="Write a checkpoint as a LLaMA of Hugging Face."
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a checkpoint, or a folder of them (the newest)")
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML file")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist or be empty")
    parser.add_argument("--dtype", choices=EXPORT_DTYPES, help="of the weights (default: train.dtype)")
    parser.add_argument("--max-file-bytes", type=int, default=MAX_FILE_BYTES, help="cut larger models (default: 5 GB)")
    given = parser.parse_args(arguments)
    try:
        config = RunConfig.from_file(given.config)
        export(given.checkpoint, config, given.out, dtype=given.dtype, max_file_bytes=given.max_file_bytes)
    except (InputError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def export(
    checkpoint: Path, config: RunConfig, out: Path, *, dtype: str | None = None, max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Writes `config.json`, `generation_config.json`, the weights, and the tokenizer if the run used one.

    Everything is written beside `out` and renamed, so `out` is whole or not there.

    Args:
        dtype: of the weights, as torch names it; None: that of training.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or of another model, or `out` is not empty.
        OSError: the disk is full, or a folder is not writable.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"expected a new or empty folder to write to, given {out}")
    path = resolve(checkpoint)
    if not (path / MANIFEST).is_file():
        raise CheckpointError(f"expected a checkpoint to export, given {path}")
    manifest = read_manifest(path)
    every = parameters(config.model)
    check_model(manifest, config.model, every, path)
    check_files(manifest, path)
    tokenizer = _tokenizer(config)
    name = dtype or config.train.dtype
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_weights(partial, path, manifest, every, getattr(torch, name), max_file_bytes)
        _write_json(partial / CONFIG, hf_config(config.model, name))
        _write_json(partial / "generation_config.json", {"_from_model_config": True})
        if tokenizer:
            shutil.copyfile(tokenizer, partial / "tokenizer.json")
            _write_json(
                partial / "tokenizer_config.json",
                {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.model.seq_len},
            )
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _tokenizer(config: RunConfig) -> Path | None:
    if config.data.tokenizer == "bytes":
        return None
    path = Path(config.data.tokenizer).expanduser()
    if not path.is_file():
        raise CheckpointError(f"data.tokenizer must be a file to go with the export, given {path}")
    return path


def _write_weights(
    out: Path,
    checkpoint: Path,
    manifest: Manifest,
    every: Sequence[Parameter],
    dtype: torch.dtype,
    max_file_bytes: int,
) -> None:
    entries = [(p, Entry(name=hf_name(p), dtype=dtype, shape=hf_shape(p))) for p in every]
    parts = list(_parts(entries, max_file_bytes))
    files = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors" if len(parts) > 1 else "model.safetensors"
        with TensorFile(out / name, [entry for _, entry in part], {"format": "pt"}) as file:
            for parameter, entry in part:
                whole = _whole(checkpoint, manifest, f"{parameter.name}.master").view(parameter.shape)
                file.write((whole.T if is_transposed(parameter) else whole).to(dtype))
                files[entry.name] = name
    if len(parts) > 1:
        total = sum(entry.num_bytes for _, entry in entries)
        _write_json(out / INDEX, {"metadata": {"total_size": total}, "weight_map": files})


def _parts(entries: list[tuple[Parameter, Entry]], max_file_bytes: int) -> Iterator[list[tuple[Parameter, Entry]]]:
    """The tensors in order, cut where a file would become too large; a tensor stays whole."""
    part: list[tuple[Parameter, Entry]] = []
    for item in entries:
        if part and sum(entry.num_bytes for _, entry in part) + item[1].num_bytes > max_file_bytes:
            yield part
            part = []
        part.append(item)
    yield part


def _whole(checkpoint: Path, manifest: Manifest, key: str) -> Tensor:
    """One flattened tensor of the checkpoint."""
    entry = manifest.tensors[key]
    result = torch.empty(entry.num_elements, dtype=DTYPES[entry.dtype])
    for start, stop, index in entry.chunks:
        path = checkpoint / manifest.files[index].name
        try:
            with safe_open(path, framework="pt") as file:
                result[start:stop] = file.get_tensor(f"{key}@{start}")
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return result


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
