"""A rank's share of a checkpoint: which flattened tensors it holds pieces of.

Saved are the states (`master` and the moments), whose spans hold every element exactly once. Weights
are not saved: after every update they are the master weights, rounded to the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.placement import host_copies
from engine.shard import Shard
from engine.spans import SpanTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What a rank holds of one flattened tensor.

    Args:
        num_elements: of the whole tensor.
        tensors: 1-D, by the index of their first element.
        source: the saved key to load them from, if it is another one than their own.
    """

    num_elements: int
    tensors: Mapping[int, Tensor]
    source: str = ""


def staged(shard: Shard) -> dict[str, Pieces]:
    """Copies in host memory of what a rank saves, by `"<parameter>.<tensor>"`.

    Raises:
        RuntimeError: there is no memory for them.
    """
    held = {key: row for name, store in shard.states.items() for key, row in _pieces(shard, name, store).items()}
    copies = iter(host_copies(tensor for pieces in held.values() for tensor in pieces.tensors.values()))
    return {
        key: Pieces(
            num_elements=pieces.num_elements,
            tensors={start: next(copies) for start in pieces.tensors},
        )
        for key, pieces in held.items()
    }


def to_fill(shard: Shard) -> dict[str, Pieces]:
    """The shard's own tensors, states and weights, as pieces that a load fills in place."""
    result: dict[str, Pieces] = {}
    for name, store in shard.states.items():
        result |= _pieces(shard, name, store)
    return result | _pieces(shard, "weight", shard.weights, source="master")


def _pieces(shard: Shard, name: str, store: SpanTensors, source: str = "") -> dict[str, Pieces]:
    held: dict[int, dict[int, Tensor]] = {}
    for span, tensor in zip(store.spans, store.tensors, strict=True):
        held.setdefault(span.parameter, {})[span.start] = tensor.detach()
    rows = {shard.layout.parameters[index]: tensors for index, tensors in held.items()}
    return {
        f"{parameter.name}.{name}": Pieces(
            num_elements=parameter.num_elements,
            tensors=tensors,
            source=f"{parameter.name}.{source}" if source else "",
        )
        for parameter, tensors in rows.items()
    }
