"""What the planner is told: cluster, model profile, training settings.

All three are plain data with a JSON form, so that a planning job can be stored, exported and solved
again to the same answer. Rates come separately, as `{device: x}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.plan import GROUP_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Nodes and their devices. A tensor-parallel group never spans nodes.

    Args:
        nodes: device ids of each node; ids are unique over the cluster.
        memory_bytes: usable memory of each device, by device id.
    """

    nodes: tuple[tuple[int, ...], ...]
    memory_bytes: Mapping[int, float]

    def __post_init__(self) -> None:
        devices = [device for node in self.nodes for device in node]
        if not devices:
            raise SpecError("a cluster needs at least one device, given none")
        if len(set(devices)) != len(devices):
            raise SpecError(f"device ids must be unique, given {devices}")
        missing = [device for device in devices if device not in self.memory_bytes]
        if missing:
            raise SpecError(f"memory_bytes must name every device, missing {missing}")

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(device for node in self.nodes for device in node)

    def node_of(self, device: int) -> int:
        """Index of the node that holds the device."""
        for index, node in enumerate(self.nodes):
            if device in node:
                return index
        raise SpecError(f"device must be one of {list(self.devices)}, given {device}")

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [list(node) for node in self.nodes],
            "memory_bytes": {str(device): self.memory_bytes[device] for device in self.devices},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ClusterSpec:
        try:
            return cls(
                nodes=tuple(tuple(int(device) for device in node) for node in document["nodes"]),
                memory_bytes={int(key): float(value) for key, value in document["memory_bytes"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"a cluster needs nodes and memory_bytes, given {document!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What one layer costs in time and memory on healthy devices.

    Tables are keyed `[micro_batch_size][tp_degree]`. A straggling rate multiplies own compute
    (`compute_s`, `embed_s`, `head_s`), never collectives (`comm_s`).

    Args:
        compute_s: seconds of own compute of one layer, forward + backward, one micro-batch.
        comm_s: seconds of its TP collectives, forward + backward.
        forward_share: share of a layer's time that is forward, in (0, 1).
        embed_s, head_s: extra seconds of the first stage (embedding) and the last (head + loss).
        send_s: latency of handing one micro-batch to the next stage, one way.
        sync_s: gradient reduction, optimizer and parameter gathering, once a step.
        max_tp: TP degree that the memory numbers below refer to.
        layer_bytes: bytes of one layer on each device of a `max_tp` group, by
            `[micro_batch_size][in_flight - 1]`, where stage j of S holds `min(m, S - j)`
            micro-batches in flight; a deeper pipeline than the table is long does not fit.
        first_extra_bytes, last_extra_bytes: extra bytes of the first and last stage (same degree).
            Layer and extra bytes scale by `max_tp / n` for a group of n.
        reserve_bytes: bytes of a device that are never available.
        provenance: where the numbers come from ("measured" or "given").
    """

    num_layers: int
    compute_s: Mapping[int, Mapping[int, float]]
    comm_s: Mapping[int, Mapping[int, float]]
    forward_share: float
    embed_s: Mapping[int, Mapping[int, float]]
    head_s: Mapping[int, Mapping[int, float]]
    send_s: float
    sync_s: float
    max_tp: int
    layer_bytes: Mapping[int, tuple[float, ...]]
    first_extra_bytes: float
    last_extra_bytes: float
    reserve_bytes: float
    provenance: str = "given"

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise SpecError(f"num_layers must be at least 1, given {self.num_layers}")
        if not 0 < self.forward_share < 1:
            raise SpecError(f"forward_share must be in (0, 1), given {self.forward_share}")
        if self.max_tp not in GROUP_SIZES:
            raise SpecError(f"max_tp must be one of {GROUP_SIZES}, given {self.max_tp}")
        if not self.compute_s:
            raise SpecError("compute_s must name at least one micro-batch size, given none")
        for name in ("comm_s", "embed_s", "head_s", "layer_bytes"):
            if set(getattr(self, name)) != set(self.compute_s):
                raise SpecError(
                    f"{name} must have the micro-batch sizes of compute_s {sorted(self.compute_s)}, "
                    f"given {sorted(getattr(self, name))}"
                )
        for name in ("compute_s", "comm_s", "embed_s", "head_s"):
            for size, row in getattr(self, name).items():
                if set(row) != set(self.compute_s[size]):
                    raise SpecError(
                        f"{name}[{size}] must have the TP degrees {sorted(self.compute_s[size])}, given {sorted(row)}"
                    )
                for degree, value in row.items():
                    _finite(value, f"{name}[{size}][{degree}]")
        for size, row in self.compute_s.items():
            for degree, value in row.items():
                if degree not in GROUP_SIZES:
                    raise SpecError(f"compute_s[{size}] TP degree must be one of {GROUP_SIZES}, given {degree}")
                if value <= 0:
                    raise SpecError(f"compute_s[{size}][{degree}] must be positive, given {value}")
        for name in ("send_s", "sync_s", "first_extra_bytes", "last_extra_bytes", "reserve_bytes"):
            _finite(getattr(self, name), name)
        for size, table in self.layer_bytes.items():
            if not table:
                raise SpecError(f"layer_bytes[{size}] must have at least one entry, given none")
            for value in table:
                _finite(value, f"layer_bytes[{size}]")

    def tp_degrees(self, micro_batch_size: int) -> tuple[int, ...]:
        return tuple(sorted(self.compute_s[micro_batch_size]))

    def to_json(self) -> dict[str, Any]:
        def table(rows: Mapping[int, Mapping[int, float]]) -> dict[str, dict[str, float]]:
            return {str(b): {str(n): value for n, value in row.items()} for b, row in rows.items()}

        return {
            "num_layers": self.num_layers,
            "compute_s": table(self.compute_s),
            "comm_s": table(self.comm_s),
            "forward_share": self.forward_share,
            "embed_s": table(self.embed_s),
            "head_s": table(self.head_s),
            "send_s": self.send_s,
            "sync_s": self.sync_s,
            "max_tp": self.max_tp,
            "layer_bytes": {str(b): list(row) for b, row in self.layer_bytes.items()},
            "first_extra_bytes": self.first_extra_bytes,
            "last_extra_bytes": self.last_extra_bytes,
            "reserve_bytes": self.reserve_bytes,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelProfile:
        def table(rows: Mapping[str, Mapping[str, float]]) -> dict[int, dict[int, float]]:
            return {int(b): {int(n): float(value) for n, value in row.items()} for b, row in rows.items()}

        try:
            return cls(
                num_layers=int(document["num_layers"]),
                compute_s=table(document["compute_s"]),
                comm_s=table(document["comm_s"]),
                forward_share=float(document["forward_share"]),
                embed_s=table(document["embed_s"]),
                head_s=table(document["head_s"]),
                send_s=float(document["send_s"]),
                sync_s=float(document["sync_s"]),
                max_tp=int(document["max_tp"]),
                layer_bytes={
                    int(b): tuple(float(value) for value in row) for b, row in document["layer_bytes"].items()
                },
                first_extra_bytes=float(document["first_extra_bytes"]),
                last_extra_bytes=float(document["last_extra_bytes"]),
                reserve_bytes=float(document["reserve_bytes"]),
                provenance=str(document.get("provenance", "given")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"malformed model profile: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What training asks for.

    Args:
        global_batch: sequences in a step.
        micro_batch_sizes: candidate sequences per micro-batch; each divides `global_batch`.
        dp_range: smallest and largest number of pipelines to consider.
        max_tp: largest TP degree to consider.
    """

    global_batch: int
    micro_batch_sizes: tuple[int, ...]
    dp_range: tuple[int, int]
    max_tp: int

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise SpecError(f"global_batch must be at least 1, given {self.global_batch}")
        bad = [size for size in self.micro_batch_sizes if size < 1 or self.global_batch % size]
        if bad or not self.micro_batch_sizes:
            raise SpecError(
                f"micro_batch_sizes must be divisors of global_batch {self.global_batch}, "
                f"given {list(self.micro_batch_sizes)}"
            )
        low, high = self.dp_range
        if not 1 <= low <= high:
            raise SpecError(f"dp_range must be 1 <= low <= high, given {self.dp_range}")
        if self.max_tp not in GROUP_SIZES:
            raise SpecError(f"max_tp must be one of {GROUP_SIZES}, given {self.max_tp}")

    def to_json(self) -> dict[str, Any]:
        return {
            "global_batch": self.global_batch,
            "micro_batch_sizes": list(self.micro_batch_sizes),
            "dp_range": list(self.dp_range),
            "max_tp": self.max_tp,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrainSpec:
        try:
            low, high = document["dp_range"]
            return cls(
                global_batch=int(document["global_batch"]),
                micro_batch_sizes=tuple(int(size) for size in document["micro_batch_sizes"]),
                dp_range=(int(low), int(high)),
                max_tp=int(document["max_tp"]),
            )
        except (KeyError, TypeError) as error:
            raise SpecError(f"malformed train spec: {error!r}") from error


def check_rates(rates: Mapping[int, float], cluster: ClusterSpec) -> dict[int, float]:
    """Every device's rate; devices not named are healthy (1.0).

    Raises:
        SpecError: an unknown device, or a rate that is NaN, zero or negative. `inf` means failed.
    """
    devices = set(cluster.devices)
    for device, rate in rates.items():
        if device not in devices:
            raise SpecError(f"device must be one of {sorted(devices)}, given {device}")
        if math.isnan(rate) or rate <= 0:
            raise SpecError(f"rate of device {device} must be positive (1 = healthy, inf = failed), given {rate}")
    return {device: float(rates.get(device, 1.0)) for device in cluster.devices}


def _finite(value: float, name: str) -> None:
    if not math.isfinite(value) or value < 0:
        raise SpecError(f"{name} must be finite and not negative, given {value}")
