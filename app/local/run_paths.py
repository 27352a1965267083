"""The paths in a run's configuration, made absolute: the engine works in another folder than who wrote them."""

from __future__ import annotations

from pathlib import Path

from db.errors import InputError
from db.run_config import RunConfig

STDLIB = "stdlib"
BYTES = "bytes"


def with_absolute_source(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the paths of its data made absolute: the engine works in another folder.

    Raises:
        InputError: there is nothing at a path.
    """
    source, tokenizer = config.data.source, config.data.tokenizer
    if config.data.format == "megatron":
        source = _absolute(source, folder)
        for path in (f"{source}.idx", f"{source}.bin"):
            if not Path(path).is_file():
                raise InputError(f"data.source must be the common path of an .idx and a .bin file, found no {path}")
    else:
        if source != STDLIB:
            source = _absolute(source, folder)
            if not Path(source).exists():
                raise InputError(f"data.source must be {STDLIB!r} or an existing file or folder, given {source!r}")
        if tokenizer != BYTES:
            tokenizer = _absolute(tokenizer, folder)
            if not Path(tokenizer).is_file():
                raise InputError(f"data.tokenizer must be {BYTES!r} or an existing tokenizer.json, given {tokenizer!r}")
    data = config.data.model_copy(update={"source": source, "tokenizer": tokenizer})
    return config.model_copy(update={"data": data})


def with_checkpoint_paths(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the paths of its checkpoints made absolute: the engine works in another folder.

    Raises:
        InputError: there is nothing to start from.
    """
    given = config.checkpoint
    if given.folder:
        kept = given.model_copy(update={"folder": _absolute(given.folder, folder)})
        config = config.model_copy(update={"checkpoint": kept})
    return starting_from(config, folder / Path(given.start_from).expanduser()) if given.start_from else config


def starting_from(config: RunConfig, path: Path) -> RunConfig:
    """The configuration of a run that starts from a checkpoint, or from a model in the form of Hugging Face.

    Raises:
        InputError: there is no folder with something in it.
    """
    path = path.resolve()
    if not path.is_dir() or not any(path.iterdir()):
        raise InputError(f"checkpoint.start_from must be a folder with a checkpoint or a model, given {str(path)!r}")
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"start_from": str(path)})})


def _absolute(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute())
