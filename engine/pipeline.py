"""Running one step of one stage: the schedule's actions in a dumb loop.

Boundary tensors travel by a courier (`engine.courier`); each receiver has one sender.
Layers run backward one by one, so that each device's compute is timed by layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.clock import Work
from engine.courier import Courier, TaggedCourier, Transfer, holds
from engine.data import Corpus
from engine.layout import Place
from engine.model import Decoder
from engine.packing import packing_of
from engine.placement import placed
from engine.schedule import one_f_one_b, receivers_of, sender_of
from engine.tensor_parallel import TensorParallel
from planner.plan import Plan


@dataclass(slots=True)
class _InFlight:
    """What a stage keeps of a micro-batch between its forward and its backward."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    embedded: Tensor | None = None
    loss_input: Tensor | None = None
    loss: Tensor | None = None


class StageRunner:
    """Executes a stage's schedule on one rank.

    Collective: every computing rank calls `run_step` once a step.

    Args:
        weights: this rank's bound leaf tensors by parameter name.
        courier: hands tensors to the neighbouring stages; the one for gloo if none is given.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        place: Place,
        decoder: Decoder,
        weights: dict[str, Tensor],
        tp: TensorParallel,
        data: Corpus,
        courier: Courier | None = None,
    ) -> None:
        self._plan, self._place, self._decoder, self._tp, self._data = plan, place, decoder, tp, data
        self._weights = weights
        self._layers = [_of_layer(weights, layer) for layer in range(*place.stage.layers)]
        pipeline = plan.pipelines[place.pipeline_index]
        self._num_micro_batches = pipeline.num_micro_batches
        self._previous = pipeline.stages[place.stage_index - 1].devices if place.stage_index else ()
        is_last = place.stage_index == len(pipeline.stages) - 1
        self._next = () if is_last else pipeline.stages[place.stage_index + 1].devices
        self._actions = one_f_one_b(place.stage_index, len(pipeline.stages), self._num_micro_batches)
        before = sum(other.num_micro_batches for other in plan.pipelines[: place.pipeline_index])
        self._first_sequence = before * plan.micro_batch_size
        self._holds = holds(self._actions)
        self._courier = courier or TaggedCourier()
        self._sending: list[Transfer] = []
        self._flights: dict[int, _InFlight] = {}
        self.consumed: list[int] = []

    @property
    def num_work_units(self) -> int:
        """Layers times micro-batches that this device computes in a step."""
        return self._place.stage.num_layers * self._num_micro_batches

    def run_step(self, first_sample: int, num_tokens: int) -> Tensor | float:
        """Forward and backward of all micro-batches; gradients add up in place.

        Args:
            first_sample: global index of the step's first sample.
            num_tokens: targets of the global batch that count, the weight of the loss.

        Returns:
            The summed loss over this pipeline's tokens divided by `num_tokens`, on the last stage's
            first member (still on its device: reading it waits for the step); 0 elsewhere.
        """
        self._tp.clock.configure(num_sequences=self._plan.micro_batch_size, tp_degree=self._place.stage.tp_degree)
        self.consumed = []
        total: Tensor | float = 0.0
        for action, is_holding in zip(self._actions, self._holds, strict=True):
            self._courier.is_holding = is_holding
            if action.kind == "F":
                total += self._forward(action.micro_batch, first_sample, num_tokens)
            else:
                self._backward(action.micro_batch)
        for transfer in self._sending:
            transfer.wait()
        self._sending.clear()
        assert not self._flights, f"micro-batches {sorted(self._flights)} never ran backward"
        return total

    def _forward(self, micro_batch: int, first_sample: int, num_tokens: int) -> Tensor | float:
        flight = self._flights[micro_batch] = _InFlight()
        size = self._plan.micro_batch_size
        sample = first_sample + self._first_sequence + micro_batch * size
        batch = self._data.batch(sample, size)
        packing = packing_of(batch, self._decoder.torch_device)
        if self._previous:
            x = self._receive(self._previous, tag=2 * micro_batch)
        else:
            if self._place.tp_rank == 0:
                self.consumed += range(sample, sample + size)
            inputs = placed(batch.inputs, self._decoder.torch_device)
            x = flight.embedded = self._decoder.embed(inputs, self._weights, self._tp)
        for weights in self._layers:
            x_in = x.detach().requires_grad_()
            x = self._decoder.layer(x_in, weights, self._tp, packing)
            flight.layers.append((x_in, x))
        if self._next:
            self._send(x.detach(), self._next, tag=2 * micro_batch)
            return 0.0
        flight.loss_input = x.detach().requires_grad_()
        targets = placed(batch.targets, self._decoder.torch_device)
        flight.loss = self._decoder.loss(flight.loss_input, targets, self._weights, self._tp) / num_tokens
        return flight.loss.detach().double() if self._place.tp_rank == 0 else 0.0

    def _backward(self, micro_batch: int) -> None:
        flight = self._flights.pop(micro_batch)
        clock = self._tp.clock
        if flight.loss is not None and flight.loss_input is not None:
            clock.start(Work.HEAD)
            torch.autograd.backward(flight.loss)
            clock.drop()
            grad = flight.loss_input.grad
        else:
            grad = self._receive(self._next, tag=2 * micro_batch + 1)
        for x_in, x in reversed(flight.layers):
            clock.start(Work.BACKWARD)
            torch.autograd.backward(x, grad)
            clock.drop()
            grad = x_in.grad
        assert grad is not None
        if flight.embedded is not None:
            torch.autograd.backward(flight.embedded, grad)
        else:
            self._send(grad, self._previous, tag=2 * micro_batch + 1)

    def _receive(self, senders: tuple[int, ...], tag: int) -> Tensor:
        config = self._decoder.config
        shape = (self._plan.micro_batch_size, config.seq_len, config.hidden_size)
        x = torch.empty(shape, dtype=self._decoder.dtype, device=self._decoder.torch_device)
        source = senders[sender_of(self._place.tp_rank, self._place.stage.tp_degree, len(senders))]
        return self._courier.post(x, source, tag).wait()

    def _send(self, x: Tensor, receivers: tuple[int, ...], tag: int) -> None:
        x = x.contiguous()
        for index in receivers_of(self._place.tp_rank, self._place.stage.tp_degree, len(receivers)):
            self._sending.append(self._courier.send(x, receivers[index], tag))


def _of_layer(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
