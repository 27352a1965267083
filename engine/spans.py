"""A rank's tensors: spans of parameters, one 1-D tensor for each.

Weights, gradients, master weights and moments are all kept this way, so copying, sending and
digesting them is the same few lines whatever they are. Because each span has a tensor of its own, a
migration takes spans over one by one and gives memory back as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.layout import Span
from engine.placement import CPU


class SpanTensors:
    """Spans and their elements.

    Args:
        spans: disjoint.
        dtype: of the tensors; they start at zero.
        torch_device: where they live.
        is_hollow: no span has a tensor yet; `allocate` and `put` bring them.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        dtype: torch.dtype,
        torch_device: torch.device = CPU,
        *,
        is_hollow: bool = False,
    ) -> None:
        self.spans, self.dtype, self.torch_device = tuple(spans), dtype, torch_device
        self._tensors: dict[Span, Tensor] = {}
        self._by_parameter: dict[int, list[Span]] = {}
        for span in self.spans:
            self._by_parameter.setdefault(span.parameter, []).append(span)
        if not is_hollow:
            for span in self.spans:
                self.allocate(span)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """One tensor of `[num_elements]` for each span, in the order of `spans`; all must be there."""
        return tuple(self._tensors[span] for span in self.spans)

    @property
    def num_bytes(self) -> int:
        """Of the tensors that are there."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def spans_of(self, parameter: int) -> Sequence[Span]:
        """The spans of one parameter."""
        return self._by_parameter.get(parameter, ())

    def has(self, span: Span) -> bool:
        """Whether exactly this span has a tensor."""
        return span in self._tensors

    def view(self, span: Span) -> Tensor:
        """The elements of `span`, which lies inside one held span."""
        for held in self._by_parameter.get(span.parameter, ()):
            if held.start <= span.start and span.stop <= held.stop and held in self._tensors:
                return self._tensors[held][span.start - held.start : span.stop - held.start]
        raise AssertionError(f"{span} is not held; held are {self.spans}")

    def gather(self, spans: Sequence[Span]) -> Tensor:
        """A new tensor with the given spans, one after the other."""
        if not spans:
            return torch.empty(0, dtype=self.dtype, device=self.torch_device)
        return torch.cat([self.view(span) for span in spans])

    def scatter(self, spans: Sequence[Span], values: Tensor) -> None:
        """Writes `values` (spans one after the other) to the held elements."""
        offset = 0
        for span in spans:
            self.view(span).copy_(values[offset : offset + span.num_elements])
            offset += span.num_elements

    def allocate(self, span: Span) -> None:
        """Gives a span of `spans` a tensor of zeros."""
        self.put(span, torch.zeros(span.num_elements, dtype=self.dtype, device=self.torch_device))

    def put(self, span: Span, tensor: Tensor) -> None:
        """Makes `tensor` the elements of a span of `spans`."""
        assert span in self._by_parameter[span.parameter]
        assert tensor.shape == (span.num_elements,)
        self._tensors[span] = tensor

    def release(self, span: Span) -> None:
        """Lets go of a span's tensor, if it has one."""
        self._tensors.pop(span, None)
