"""A run's configuration: one TOML file, the document that a person writes.

Shared by the command line and dashboard (which validate it), the store (which keeps it) and the
engine (which obeys it). URLs and secrets are not part of it; they come from the environment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from db.errors import ConfigError, InputError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Section):
    """A LLaMA-style decoder. `tie_embeddings`: the head uses the embedding's weights."""

    num_layers: int = Field(16, ge=1)
    hidden_size: int = Field(64, ge=8)
    num_heads: int = Field(8, ge=1)
    num_kv_heads: int = Field(4, ge=1)
    ffn_size: int = Field(128, ge=8)
    vocab_size: int = Field(256, ge=2)
    seq_len: int = Field(64, ge=2)
    rope_theta: float = Field(10_000.0, gt=0)
    norm_eps: float = Field(1e-5, gt=0)
    tie_embeddings: bool = False

    @property
    def num_parameters(self) -> int:
        """Elements of all weights."""
        hidden, kv_size = self.hidden_size, self.hidden_size // self.num_heads * self.num_kv_heads
        layer = 2 * hidden * (hidden + kv_size) + 3 * hidden * self.ffn_size + 2 * hidden
        ends = self.vocab_size * hidden * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + ends + hidden


class TrainConfig(_Section):
    """Batch, optimizer (AdamW) and length of the run.

    Args:
        warmup_steps: steps in which the learning rate rises linearly.
        decay: what follows: `constant`, or `cosine` down to `min_learning_rate` at `num_steps`.
        max_grad_norm: gradients are scaled down to this global norm; 0 leaves them alone.
        dtype: of weights, activations and gradients. `bfloat16` keeps master weights, moments and
            gradient sums in fp32.
        recompute: layers keep only their input and compute the rest again in the backward.
        eval_every: steps between two evaluations on text that is not trained on; 0: none.
        eval_batches: global batches of an evaluation.
    """

    num_steps: int = Field(1_000, ge=1)
    global_batch: int = Field(16, ge=1)
    micro_batch_sizes: tuple[int, ...] = (1,)
    learning_rate: float = Field(3e-3, gt=0)
    min_learning_rate: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    decay: Literal["constant", "cosine"] = "constant"
    max_grad_norm: float = Field(1.0, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    seed: int = 0
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    recompute: bool = False
    eval_every: int = Field(0, ge=0)
    eval_batches: int = Field(1, ge=1)


class DataConfig(_Section):
    """Where training text comes from.

    Args:
        source: `stdlib` (Python's own sources), a text file or folder; for `megatron` the common
            path of a `.bin` and an `.idx` file, without the ending.
        format: `text`, or `megatron` (already tokens).
        tokenizer: `bytes`, or the path of a Hugging Face `tokenizer.json`.
        packed: samples are documents one after the other; attention and positions stop at their
            boundaries. Else windows at random places of one long text.
        max_bytes: how much text is read.
    """

    source: str = "stdlib"
    format: Literal["text", "megatron"] = "text"
    tokenizer: str = "bytes"
    packed: bool = False
    max_bytes: int = Field(8_000_000, ge=1_000)


class CheckpointConfig(_Section):
    """Saving the state of a run, and where it starts from.

    Args:
        every_steps: steps between two checkpoints; 0: only on request.
        keep: how many stay; older ones are removed once a newer one is complete.
        folder: where they go; empty: `checkpoints` in the run's own folder.
        start_from: a checkpoint to go on from (its folder), or a folder in the form of Hugging Face
            whose weights to start with; empty: random weights.
    """

    every_steps: int = Field(0, ge=0)
    keep: int = Field(2, ge=1)
    folder: str = ""
    start_from: str = ""


class ClusterConfig(_Section):
    """Devices of the job; device ids count from 0, node by node.

    `memory_bytes` of a device is what the planner may fill. The default holds about half of the
    default model at TP degree 2, so that plans need pipelines and groups, as large models do.
    """

    num_nodes: int = Field(2, ge=1)
    devices_per_node: int = Field(4, ge=1)
    memory_bytes: float = Field(12e6, gt=0)


class ParallelConfig(_Section):
    """The uniform plan that the run starts with, and the bounds of later ones."""

    dp: int = Field(2, ge=1)
    tp: Literal[1, 2, 4, 8] = 2
    pp: int = Field(2, ge=1)
    max_tp: Literal[1, 2, 4, 8] = 4
    max_dp: int = Field(4, ge=1)


class DeviceConfig(_Section):
    """How ranks compute.

    Args:
        backend: `emulated` really computes on the CPU, then waits until `layer_s` (times the
            device's rate) has passed; `cuda` computes on GPUs, one a rank, over NCCL.
        layer_s: emulated seconds of one layer, forward + backward, one sequence, TP degree 1.
        head_layers: emulated cost of head + loss, in layers.
        peak_flops: floating-point operations per second of a device, what MFU is measured against; 0:
            known GPUs by name, and what `layer_s` means for emulated devices.
    """

    backend: Literal["emulated", "cuda"] = "emulated"
    layer_s: float = Field(0.04, gt=0)
    head_layers: float = Field(0.25, ge=0)
    peak_flops: float = Field(0.0, ge=0)


class ControlConfig(_Section):
    """When the controller re-plans.

    Args:
        mode: `automatic` publishes a better plan at once, `manual` waits for a person's approval,
            `off` never plans (the run keeps its first plan).
        shift_threshold: relative change of a rate against what the active plan assumed.
        patience_steps: how many steps in a row it must last.
        window_steps: steps in the running median.
        cooldown_steps: steps after a switch in which nothing is decided.
    """

    mode: Literal["automatic", "manual", "off"] = "automatic"
    shift_threshold: float = Field(0.05, gt=0)
    patience_steps: int = Field(3, ge=1)
    window_steps: int = Field(5, ge=1)
    cooldown_steps: int = Field(3, ge=0)
    plan_time_limit_s: float = Field(30.0, gt=0)


class RunConfig(_Section):
    """The whole file."""

    name: str = Field("run", min_length=1, max_length=100, pattern=r"^[\w .:+-]+$")
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    cluster: ClusterConfig = ClusterConfig()
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    control: ControlConfig = ControlConfig()

    @property
    def num_devices(self) -> int:
        return self.cluster.num_nodes * self.cluster.devices_per_node

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Device ids of every node."""
        per_node = self.cluster.devices_per_node
        return tuple(tuple(range(node * per_node, (node + 1) * per_node)) for node in range(self.cluster.num_nodes))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        model, train, parallel = self.model, self.train, self.parallel
        problems = []
        if model.hidden_size % model.num_heads or (model.hidden_size // model.num_heads) % 2:
            problems.append(
                f"hidden_size must be num_heads times an even number, given {model.hidden_size} and {model.num_heads}"
            )
        if model.num_heads % model.num_kv_heads:
            problems.append(
                f"num_heads must be a multiple of num_kv_heads, given {model.num_heads} and {model.num_kv_heads}"
            )
        for name in ("hidden_size", "num_kv_heads", "ffn_size", "vocab_size"):
            if getattr(model, name) % parallel.max_tp:
                problems.append(f"{name} must be a multiple of max_tp {parallel.max_tp}, given {getattr(model, name)}")
        if parallel.tp > parallel.max_tp:
            problems.append(f"tp must be at most max_tp {parallel.max_tp}, given {parallel.tp}")
        if parallel.max_tp > self.cluster.devices_per_node:
            problems.append(
                f"max_tp must be at most devices_per_node {self.cluster.devices_per_node}, given {parallel.max_tp}"
            )
        if parallel.dp > parallel.max_dp:
            problems.append(f"dp must be at most max_dp {parallel.max_dp}, given {parallel.dp}")
        for size in train.micro_batch_sizes:
            if size < 1 or train.global_batch % size:
                problems.append(f"micro_batch_sizes must divide global_batch {train.global_batch}, given {size}")
        if train.min_learning_rate > train.learning_rate:
            most = train.learning_rate
            problems.append(f"min_learning_rate must be at most learning_rate {most}, given {train.min_learning_rate}")
        if not train.micro_batch_sizes:
            problems.append("micro_batch_sizes must name at least one size, given none")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @classmethod
    def from_toml(cls, text: str) -> RunConfig:
        """Parses and checks a TOML text.

        Raises:
            InputError: one line that names the field, what was expected and what was given; a `ConfigError` if
                the text is TOML.
        """
        try:
            return cls.from_document(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"not valid TOML: {error}") from error

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RunConfig:
        """Checks what a TOML text holds.

        Raises:
            ConfigError: with every problem by its field.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            problems = tuple(_problem(item) for item in error.errors())
            raise ConfigError("; ".join(map(_sentence, problems)), problems=problems) from error

    @classmethod
    def from_file(cls, path: str | Path) -> RunConfig:
        """Reads a TOML file.

        Raises:
            InputError: the file cannot be read or does not hold a valid configuration.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from error
        try:
            return cls.from_toml(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def _problem(item: object) -> tuple[str, str]:
    assert isinstance(item, dict)
    where = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    return where, f"{message}, given {item['input']!r}" if where else message


def _sentence(problem: tuple[str, str]) -> str:
    where, message = problem
    return f"{where}: {message}" if where else message
