"""What one rank keeps under a layout: weights to compute with, and its share of the optimizer state.

    weights  spans it computes with (replicated ones in full), with gradients beside them
    states   `master`, `exp_avg`, `exp_avg_sq` of the spans whose update it does (ZeRO-1)

The parameters that the model's functions see are views of these tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layout import Layout, Span
from engine.model import initial_slice
from engine.placement import CPU
from engine.spans import SpanTensors

STATES = ("master", "exp_avg", "exp_avg_sq")


class Shard:
    """One rank's tensors; empty on standby.

    Args:
        dtype: of weights and gradients; `state_dtype` of master weights and moments.
        torch_device: where they live.
    """

    def __init__(
        self,
        layout: Layout,
        device: int,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        torch_device: torch.device = CPU,
    ) -> None:
        self.layout, self.device, self.torch_device = layout, device, torch_device
        held = layout.weights.get(device, ())
        self.weights = SpanTensors(held, dtype, torch_device)
        self.grads = SpanTensors(held, dtype, torch_device)
        self.states = {name: SpanTensors(layout.states.get(device, ()), state_dtype, torch_device) for name in STATES}
        self.num_updates = 0

    def initialise(self, seed: int) -> None:
        """Fills weights and master weights with the model's starting values; moments stay zero."""
        for store in (self.weights, self.states["master"]):
            for span in store.spans:
                store.view(span).copy_(_initial(span, self.layout, seed))

    def bind(self) -> dict[str, Tensor]:
        """The held weights as leaf tensors by parameter name, local shape, gradients preset."""
        bound = {}
        for span in self.weights.spans:
            parameter = self.layout.parameters[span.parameter]
            shape = (span.num_elements // (parameter.num_elements // parameter.shape[0]), *parameter.shape[1:])
            leaf = self.weights.view(span).view(shape).requires_grad_()
            leaf.grad = self.grads.view(span).view(shape)
            bound[parameter.name] = leaf
        return bound

    def tensors(self) -> dict[str, SpanTensors]:
        """Everything that a migration moves, by name, in the order it moves."""
        return {"weight": self.weights, **self.states}


def _initial(span: Span, layout: Layout, seed: int) -> Tensor:
    parameter = layout.parameters[span.parameter]
    if not parameter.is_sliced:
        return initial_slice(seed, parameter.index, 0, (span.num_elements,), layout.plan.num_layers)
    part = parameter.num_elements // layout.num_slices
    shape = (parameter.shape[0] // layout.num_slices, *parameter.shape[1:])
    first, last = span.start // part, (span.stop - 1) // part
    slices = [
        initial_slice(seed, parameter.index, number, shape, layout.plan.num_layers).flatten()
        for number in range(first, last + 1)
    ]
    return torch.cat(slices)[span.start - first * part : span.stop - first * part]
