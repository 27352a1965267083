"""The plan document: which devices hold which layers, and how many micro-batches each pipeline runs.

The one shape that planner, store, engine, dashboard and command line share (schema 1). This module
only represents and parses it; `planner.validate` checks it against a cluster and a model,
`planner.diff` compares two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import PlanError

SCHEMA = 1
GROUP_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers on one tensor-parallel group.

    Args:
        devices: the group's devices in order of TP rank; its length is the TP degree.
        layers: first layer and one past the last, `[first, stop)`.
    """

    devices: tuple[int, ...]
    layers: tuple[int, int]

    @property
    def tp_degree(self) -> int:
        return len(self.devices)

    @property
    def num_layers(self) -> int:
        return self.layers[1] - self.layers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that hold the whole model once (a data-parallel replica)."""

    num_micro_batches: int
    stages: tuple[Stage, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(device for stage in self.stages for device in stage.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A parallelisation of one model over some devices.

    Args:
        num_layers: decoder layers of the model.
        micro_batch_size: sequences in a micro-batch.
        pipelines: the data-parallel replicas; their micro-batches add up to the global batch.
        standby: devices that stay in the job without work.
        failed: devices that are gone.
    """

    num_layers: int
    micro_batch_size: int
    pipelines: tuple[Pipeline, ...]
    standby: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def num_micro_batches(self) -> int:
        return sum(pipeline.num_micro_batches for pipeline in self.pipelines)

    @property
    def dp_degree(self) -> int:
        return len(self.pipelines)

    @property
    def active(self) -> tuple[int, ...]:
        """The devices that compute, in plan order."""
        return tuple(device for pipeline in self.pipelines for device in pipeline.devices)

    def places(self) -> Iterator[tuple[int, int, Stage]]:
        """Every stage with its `(pipeline_index, stage_index, stage)`, in plan order."""
        for pipeline_index, pipeline in enumerate(self.pipelines):
            for stage_index, stage in enumerate(pipeline.stages):
                yield pipeline_index, stage_index, stage

    def to_json(self) -> dict[str, Any]:
        """The document (schema 1), ready for `json.dumps`."""
        return {
            "schema": SCHEMA,
            "num_layers": self.num_layers,
            "micro_batch_size": self.micro_batch_size,
            "pipelines": [
                {
                    "num_micro_batches": pipeline.num_micro_batches,
                    "stages": [
                        {"devices": list(stage.devices), "layers": list(stage.layers)} for stage in pipeline.stages
                    ],
                }
                for pipeline in self.pipelines
            ],
            "standby": list(self.standby),
            "failed": list(self.failed),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Parses a document; checks its form, not its rules (see `planner.validate`).

        Raises:
            PlanError: the schema is another one, or a field is missing, unknown or of a wrong type.
        """
        if not isinstance(document, Mapping):
            raise PlanError([f"a plan is a JSON object, given {type(document).__name__}"])
        if document.get("schema") != SCHEMA:
            raise PlanError([f"schema must be {SCHEMA}, given {document.get('schema')!r}"])
        _only(document, ("schema", "num_layers", "micro_batch_size", "pipelines", "standby", "failed"), "plan")
        return cls(
            num_layers=_int(document, "num_layers", "plan"),
            micro_batch_size=_int(document, "micro_batch_size", "plan"),
            pipelines=tuple(_pipeline(item, index) for index, item in enumerate(_list(document, "pipelines", "plan"))),
            standby=_ints(document.get("standby", []), "standby"),
            failed=_ints(document.get("failed", []), "failed"),
        )


def even_plan(
    nodes: Sequence[Sequence[int]],
    *,
    num_layers: int,
    num_micro_batches: int,
    micro_batch_size: int,
    dp_degree: int,
    tp_degree: int,
    pp_degree: int,
) -> Plan:
    """The uniform plan that a conventional job starts with.

    Groups are filled node by node with consecutive devices; layers and micro-batches are divided as
    evenly as they go, the earlier ones taking the remainder. Devices left over stand by.

    Args:
        nodes: device ids of every node.

    Raises:
        PlanError: the devices do not yield `dp * pp` groups of `tp_degree`, or a stage or pipeline
            would be empty.
    """
    groups = [
        tuple(node[first : first + tp_degree])
        for node in nodes
        for first in range(0, len(node) - tp_degree + 1, tp_degree)
    ]
    problems = []
    if tp_degree not in GROUP_SIZES:
        problems.append(f"tp must be one of {GROUP_SIZES}, given {tp_degree}")
    if len(groups) < dp_degree * pp_degree:
        problems.append(
            f"dp {dp_degree} x pp {pp_degree} needs {dp_degree * pp_degree} groups of {tp_degree} devices "
            f"on one node each, the cluster has {len(groups)}"
        )
    if num_layers < pp_degree:
        problems.append(f"pp must be at most the {num_layers} layers, given {pp_degree}")
    if num_micro_batches < dp_degree * pp_degree:
        problems.append(
            f"every pipeline needs at least pp = {pp_degree} micro-batches, "
            f"given {num_micro_batches} for {dp_degree} pipelines"
        )
    if problems:
        raise PlanError(problems)
    layers = _shares(num_layers, pp_degree)
    starts = [sum(layers[:index]) for index in range(pp_degree + 1)]
    pipelines = tuple(
        Pipeline(
            num_micro_batches=count,
            stages=tuple(
                Stage(
                    devices=groups[replica * pp_degree + index],
                    layers=(starts[index], starts[index + 1]),
                )
                for index in range(pp_degree)
            ),
        )
        for replica, count in enumerate(_shares(num_micro_batches, dp_degree))
    )
    used = {device for pipeline in pipelines for device in pipeline.devices}
    standby = tuple(device for node in nodes for device in node if device not in used)
    return Plan(num_layers=num_layers, micro_batch_size=micro_batch_size, pipelines=pipelines, standby=standby)


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]


def _pipeline(item: Any, index: int) -> Pipeline:
    where = f"pipelines[{index}]"
    if not isinstance(item, Mapping):
        raise PlanError([f"{where} must be an object, given {item!r}"])
    _only(item, ("num_micro_batches", "stages"), where)
    return Pipeline(
        num_micro_batches=_int(item, "num_micro_batches", where),
        stages=tuple(
            _stage(stage, f"{where}.stages[{number}]") for number, stage in enumerate(_list(item, "stages", where))
        ),
    )


def _stage(item: Any, where: str) -> Stage:
    if not isinstance(item, Mapping):
        raise PlanError([f"{where} must be an object, given {item!r}"])
    _only(item, ("devices", "layers"), where)
    layers = _ints(item.get("layers"), f"{where}.layers")
    if len(layers) != 2:
        raise PlanError([f"{where}.layers must be [first, stop], given {list(layers)}"])
    return Stage(devices=_ints(item.get("devices"), f"{where}.devices"), layers=(layers[0], layers[1]))


def _only(item: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = sorted(set(item) - set(known))
    if unknown:
        raise PlanError([f"{where} has unknown fields {unknown}, known are {list(known)}"])


def _int(item: Mapping[str, Any], field: str, where: str) -> int:
    value = item.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanError([f"{where}.{field} must be an integer, given {value!r}"])
    return value


def _list(item: Mapping[str, Any], field: str, where: str) -> list[Any]:
    value = item.get(field)
    if not isinstance(value, list | tuple):
        raise PlanError([f"{where}.{field} must be a list, given {value!r}"])
    return list(value)


def _ints(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or any(
        isinstance(entry, bool) or not isinstance(entry, int) for entry in value
    ):
        raise PlanError([f"{where} must be a list of integers, given {value!r}"])
    return tuple(value)
