"""The parameters of the decoder as data: names, shapes, the layer they belong to, how they are cut.

Every tensor-parallel tensor is stored with its TP dimension first, so that one of its `num_slices`
fine slices is one contiguous range of its flattened elements. Parameters without a TP dimension
(norms) are replicated in a group; their flat range is cut the same way, only to share out gradient
sync and optimizer state. No torch here: layouts and transfers are computed from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from db.run_config import ModelConfig

Place = Literal["first", "layer", "last", "ends"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of the model.

    Args:
        index: position in `parameters(...)`; the canonical order of everything computed from it.
        shape: full shape, TP dimension first.
        place: on the first stage, with a layer, on the last stage, or at both ends (tied weights).
        layer: the layer's index where `place` is "layer", else -1.
        is_sliced: cut over the TP group (else replicated in it).
        is_decayed: weight decay applies (matrices, not norms).
    """

    index: int
    name: str
    shape: tuple[int, ...]
    place: Place
    layer: int
    is_sliced: bool
    is_decayed: bool

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def is_on(self, layers: tuple[int, int], num_layers: int) -> bool:
        """Whether the stage that holds `layers` holds this parameter."""
        if self.place == "first":
            return layers[0] == 0
        if self.place == "last":
            return layers[1] == num_layers
        if self.place == "ends":
            return layers[0] == 0 or layers[1] == num_layers
        return layers[0] <= self.layer < layers[1]


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """All parameters of the decoder in canonical order: embedding, layers, final norm, head.

    Tied, the embedding is the head too: it lies at both ends of a pipeline and there is no `head`.
    """
    hidden, ffn, vocab = model.hidden_size, model.ffn_size, model.vocab_size
    head_size = hidden // model.num_heads
    heads, kv_heads = model.num_heads * head_size, model.num_kv_heads * head_size
    rows: list[tuple[str, tuple[int, ...], Place, int]] = [
        ("embedding", (vocab, hidden), "ends" if model.tie_embeddings else "first", -1)
    ]
    for layer in range(model.num_layers):
        shapes = {
            "attention_norm": (hidden,),
            "wq": (heads, hidden),
            "wk": (kv_heads, hidden),
            "wv": (kv_heads, hidden),
            "wo": (heads, hidden),
            "ffn_norm": (hidden,),
            "w_gate": (ffn, hidden),
            "w_up": (ffn, hidden),
            "w_down": (ffn, hidden),
        }
        rows += [(f"layers.{layer}.{name}", shape, "layer", layer) for name, shape in shapes.items()]
    rows.append(("final_norm", (hidden,), "last", -1))
    if not model.tie_embeddings:
        rows.append(("head", (vocab, hidden), "last", -1))
    return tuple(
        Parameter(
            index=index,
            name=name,
            shape=shape,
            place=place,
            layer=layer,
            is_sliced=len(shape) > 1,
            is_decayed=len(shape) > 1,
        )
        for index, (name, shape, place, layer) in enumerate(rows)
    )
