"""What one rank keeps under a layout: weights to compute with, and its share of the optimizer state.

    weights  spans it computes with (replicated ones in full), with gradients beside them
    states   `master`, `exp_avg`, `exp_avg_sq` of the spans whose update it does (ZeRO-1)

The parameters that the model's functions see are views of these tensors.
"""

from __future__ import annotations

from collections.abc import Callable

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
        dtype: of weights; `state_dtype` of gradient sums, master weights and moments.
        torch_device: where they live.
        is_hollow: no span has a tensor yet; a migration brings them.
    """

    def __init__(
        self,
        layout: Layout,
        device: int,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        torch_device: torch.device = CPU,
        *,
        is_hollow: bool = False,
    ) -> None:
        self.layout, self.device, self.torch_device = layout, device, torch_device
        held, kept = layout.weights.get(device, ()), layout.states.get(device, ())
        self.weights = SpanTensors(held, dtype, torch_device, is_hollow=is_hollow)
        self.grads = SpanTensors(held, state_dtype, torch_device, is_hollow=is_hollow)
        self.states = {name: SpanTensors(kept, state_dtype, torch_device, is_hollow=is_hollow) for name in STATES}
        self.num_updates = 0

    def successor(self, layout: Layout) -> Shard:
        """This rank's shard under another layout, still hollow."""
        dtype, state_dtype = self.weights.dtype, self.states["master"].dtype
        after = Shard(layout, self.device, dtype, state_dtype, self.torch_device, is_hollow=True)
        after.num_updates = self.num_updates
        return after

    def initialise(self, seed: int) -> None:
        """Fills weights and master weights with the model's starting values; moments stay zero."""
        for store in (self.weights, self.states["master"]):
            for span in store.spans:
                store.view(span).copy_(_initial(span, self.layout, seed).to(self.grads.dtype))

    def bind(self) -> dict[str, Tensor]:
        """The held weights as leaf tensors by parameter name, in local shape.

        Backward adds to this shard's gradients: in place where they have the dtype of the weights,
        else each of its gradients is added in the wider dtype and dropped.
        """
        bound = {}
        for span in self.weights.spans:
            parameter = self.layout.parameters[span.parameter]
            shape = (span.num_elements // (parameter.num_elements // parameter.shape[0]), *parameter.shape[1:])
            leaf = self.weights.view(span).view(shape).requires_grad_()
            total = self.grads.view(span).view(shape)
            if total.dtype == leaf.dtype:
                leaf.grad = total
            else:
                leaf.register_post_accumulate_grad_hook(_adder(total))
            bound[parameter.name] = leaf
        return bound

    def drop_gradients(self) -> None:
        """Lets go of the gradients, which are zero at a step boundary; `renew_gradients` brings them back."""
        for span in self.grads.spans:
            self.grads.release(span)

    def renew_gradients(self) -> None:
        """Gradients of zero for every held weight."""
        for span in self.grads.spans:
            self.grads.allocate(span)

    def tensors(self) -> dict[str, SpanTensors]:
        """Everything that a migration moves, by name, in the order it moves."""
        return {"weight": self.weights, **self.states}


def _adder(total: Tensor) -> Callable[[Tensor], None]:
    def add(leaf: Tensor) -> None:
        assert leaf.grad is not None
        total.add_(leaf.grad)
        leaf.grad = None

    return add


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
