"""Running one step of one stage: the schedule's actions in a dumb loop.

Boundary tensors travel by messages between neighbouring stages; each receiver has one sender. The
receive of an action is posted while an earlier one computes, and the host waits for nobody to send. Layers
run backward one by one, so that each device's compute is timed by layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.clock import Work
from engine.data import Corpus
from engine.data.batch import Batch
from engine.gradient_sync import GradientSync
from engine.layout import Place
from engine.links import Transfer
from engine.model import Decoder
from engine.packing import Packing, packing_of
from engine.placement import placed
from engine.schedule import Action, forward_only, holds, one_f_one_b, receivers_of, sender_of
from engine.tensor_parallel import TensorParallel
from planner.plan import Plan

KEPT_BEYOND_WARM_UP = 2
"""Actions, of either kind, whose sent tensors are kept beyond as many as the warm-up has.

In 1F1B older ones have arrived: before it sent what is received last, the neighbour has received them.
"""
POSTED_AHEAD = 2
"""Actions whose receives are posted beyond the one that computes: one from either neighbour in 1F1B."""


@dataclass(slots=True)
class _InFlight:
    """What a stage keeps of a micro-batch between its forward and its backward.

    Args:
        layers: input and output of each layer; no outputs where they are computed again.
    """

    layers: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    packing: Packing | None = None
    embedded: Tensor | None = None
    loss_input: Tensor | None = None
    loss: Tensor | None = None


class StageRunner:
    """Executes a stage's schedule on one rank.

    Collective: every computing rank calls `run_step` once a step; `evaluate` between two steps.

    Args:
        weights: this rank's bound leaf tensors by parameter name.
        is_recomputing: layers keep only their input and run forward again before their backward.
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
        is_recomputing: bool = False,
    ) -> None:
        self._plan, self._place, self._decoder, self._tp, self._data = plan, place, decoder, tp, data
        self._weights, self._is_recomputing = weights, is_recomputing
        self._layers = [(layer, _of_layer(weights, layer)) for layer in range(*place.stage.layers)]
        pipeline = plan.pipelines[place.pipeline_index]
        self._num_micro_batches = pipeline.num_micro_batches
        self._previous = pipeline.stages[place.stage_index - 1].devices if place.stage_index else ()
        is_last = place.stage_index == len(pipeline.stages) - 1
        self._next = () if is_last else pipeline.stages[place.stage_index + 1].devices
        self._actions = one_f_one_b(place.stage_index, len(pipeline.stages), self._num_micro_batches)
        before = sum(other.num_micro_batches for other in plan.pipelines[: place.pipeline_index])
        self._first_sequence = before * plan.micro_batch_size
        self._joins_next = dict(zip(self._actions, holds(self._actions), strict=True))
        self._num_kept = len(pipeline.stages) - place.stage_index - 1 + KEPT_BEYOND_WARM_UP
        self._sending: dict[str, deque[list[Transfer]]] = {"F": deque(), "B": deque()}
        self._arriving: dict[Action, Transfer] = {}
        self._flights: dict[int, _InFlight] = {}
        self.consumed: list[int] = []

    @property
    def num_work_units(self) -> int:
        """Layers times micro-batches that this device computes in a step."""
        return self._place.stage.num_layers * self._num_micro_batches

    def run_step(self, first_sample: int, num_tokens: int, sync: GradientSync | None = None) -> Tensor | float:
        """Forward and backward of all micro-batches; gradients add up in place.

        Args:
            first_sample: global index of the step's first sample.
            num_tokens: targets of the global batch that count, the weight of the loss.
            sync: is told of each layer that the step's last backward has passed.

        Returns:
            The summed loss over this pipeline's tokens divided by `num_tokens`, on the last stage's
            first member (still on its device: reading it waits for the step); 0 elsewhere.
        """
        self._begin()
        self.consumed = []
        total: Tensor | float = 0.0
        for index, action in enumerate(self._actions):
            self._post(self._actions[: index + POSTED_AHEAD + 1])
            name = f"{action.kind}{action.micro_batch}"
            with self._tp.recorder.span(name, "compute", micro_batch=action.micro_batch, kind=action.kind):
                if action.kind == "F":
                    total += self._forward(action, first_sample, num_tokens)
                else:
                    self._backward(action, sync if action.micro_batch == self._num_micro_batches - 1 else None)
        self._end()
        assert not self._flights, f"micro-batches {sorted(self._flights)} never ran backward"
        return total

    def evaluate(self, first_sample: int, num_tokens: int) -> Tensor | float:
        """Forward of one global batch that is not trained on, by the same division into micro-batches.

        Args:
            first_sample: index of its first evaluation sample.
            num_tokens: targets of the whole evaluation that count, the weight of the loss.

        Returns:
            As `run_step`.
        """
        self._begin()
        actions = forward_only(self._num_micro_batches)
        total: Tensor | float = 0.0
        with torch.no_grad():
            for index, action in enumerate(actions):
                self._post(actions[: index + POSTED_AHEAD + 1])
                total += self._evaluated(action, first_sample, num_tokens)
        self._end()
        return total

    def _begin(self) -> None:
        self._tp.clock.configure(num_sequences=self._plan.micro_batch_size, tp_degree=self._place.stage.tp_degree)
        self._num_posted = 0

    def _end(self) -> None:
        for sent in self._sending.values():
            self._wait_for_sent(sent, num_kept=0)
        assert not self._arriving, f"the tensors of {list(map(str, self._arriving))} were never taken"

    def _forward(self, action: Action, first_sample: int, num_tokens: int) -> Tensor | float:
        flight = self._flights[action.micro_batch] = _InFlight()
        sample, size = self._sample(action, first_sample), self._plan.micro_batch_size
        batch = self._data.batch(sample, size)
        flight.packing = packing_of(batch, self._decoder.torch_device)
        if self._previous:
            x = self._received(action)
        else:
            if self._place.tp_rank == 0:
                self.consumed += range(sample, sample + size)
            x = flight.embedded = self._embedded(batch)
        with self._layer_span("forward"), torch.set_grad_enabled(not self._is_recomputing):
            for _, weights in self._layers:
                x_in = x.detach().requires_grad_()
                x = self._decoder.layer(x_in, weights, self._tp, flight.packing)
                flight.layers.append((x_in, None if self._is_recomputing else x))
        if self._next:
            self._send(x.detach(), self._next, action, joins_next=self._joins_next[action])
            return 0.0
        flight.loss_input = x.detach().requires_grad_()
        flight.loss = self._loss(flight.loss_input, batch, num_tokens)
        return flight.loss.detach().double() if self._place.tp_rank == 0 else 0.0

    def _evaluated(self, action: Action, first_sample: int, num_tokens: int) -> Tensor | float:
        batch = self._data.evaluation_batch(self._sample(action, first_sample), self._plan.micro_batch_size)
        packing = packing_of(batch, self._decoder.torch_device)
        x = self._received(action) if self._previous else self._embedded(batch)
        for _, weights in self._layers:
            x = self._decoder.layer(x, weights, self._tp, packing)
        if self._next:
            self._send(x, self._next, action)
            return 0.0
        loss = self._loss(x, batch, num_tokens)
        return loss.double() if self._place.tp_rank == 0 else 0.0

    def _embedded(self, batch: Batch) -> Tensor:
        return self._decoder.embed(placed(batch.inputs, self._decoder.torch_device), self._weights, self._tp)

    def _loss(self, x: Tensor, batch: Batch, num_tokens: int) -> Tensor:
        targets = placed(batch.targets, self._decoder.torch_device)
        return self._decoder.loss(x, targets, self._weights, self._tp) / num_tokens

    def _backward(self, action: Action, sync: GradientSync | None) -> None:
        flight = self._flights.pop(action.micro_batch)
        clock = self._tp.clock
        grad: Tensor | None
        if flight.loss is not None and flight.loss_input is not None:
            clock.start(Work.HEAD)
            torch.autograd.backward(flight.loss)
            clock.drop()
            grad = flight.loss_input.grad
        else:
            grad = self._received(action)
        with self._layer_span("backward"):
            for layer, weights in reversed(self._layers):
                x_in, x = flight.layers.pop()
                if x is None:
                    x = self._decoder.layer(x_in, weights, self._tp, flight.packing)
                clock.start(Work.BACKWARD)
                torch.autograd.backward(x, grad)
                clock.drop()
                grad = x_in.grad
                if sync:
                    sync.passed(layer)
        assert grad is not None
        if flight.embedded is not None:
            torch.autograd.backward(flight.embedded, grad)
        else:
            self._send(grad, self._previous, action, joins_next=self._joins_next[action])

    def _layer_span(self, kind: str) -> AbstractContextManager[None]:
        first, stop = self._place.stage.layers
        return self._tp.recorder.span(f"{kind} of layers {first} to {stop - 1}", "layers")

    def _sample(self, action: Action, first_sample: int) -> int:
        return first_sample + self._first_sequence + action.micro_batch * self._plan.micro_batch_size

    def _post(self, actions: Sequence[Action]) -> None:
        """Posts the receives of the actions, those excepted that are posted already."""
        decoder, config = self._decoder, self._decoder.config
        shape = (self._plan.micro_batch_size, config.seq_len, config.hidden_size)
        for action in actions[self._num_posted :]:
            senders = self._previous if action.kind == "F" else self._next
            if senders:
                x = torch.empty(shape, dtype=decoder.dtype, device=decoder.torch_device)
                source = senders[sender_of(self._place.tp_rank, self._place.stage.tp_degree, len(senders))]
                self._arriving[action] = self._tp.links.post(x, source, _tag(action))
        self._num_posted = len(actions)

    def _received(self, action: Action) -> Tensor:
        with self._tp.recorder.span(f"receive for {action}", "wait"):
            return self._arriving.pop(action).wait()

    def _send(self, x: Tensor, receivers: tuple[int, ...], action: Action, *, joins_next: bool = False) -> None:
        x, sent = x.contiguous(), self._sending[action.kind]
        with self._tp.recorder.span("send", "send"):
            sent.append(
                [
                    self._tp.links.send(x, receivers[index], _tag(action), joins_next=joins_next)
                    for index in receivers_of(self._place.tp_rank, self._place.stage.tp_degree, len(receivers))
                ]
            )
            self._wait_for_sent(sent, self._num_kept)

    def _wait_for_sent(self, sent: deque[list[Transfer]], num_kept: int) -> None:
        while len(sent) > num_kept:
            for transfer in sent.popleft():
                transfer.wait()


def _tag(action: Action) -> int:
    """Of what an action sends or receives: activations of a micro-batch, or gradients."""
    return 2 * action.micro_batch + (action.kind == "B")


def _of_layer(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
