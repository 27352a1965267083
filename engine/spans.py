"""A rank's tensors: spans of parameters, one 1-D tensor for each.

Weights, gradients, master weights and moments are all kept this way, so copying, sending and
digesting them is the same few lines whatever they are.
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
        torch_device: where the tensors live.

    Attributes:
        tensors: one of `[num_elements]` for each span, in the order of `spans`.
    """

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype, torch_device: torch.device = CPU) -> None:
        self.spans, self.dtype, self.torch_device = tuple(spans), dtype, torch_device
        self.tensors = tuple(torch.zeros(span.num_elements, dtype=dtype, device=torch_device) for span in self.spans)
        self._by_parameter: dict[int, list[tuple[Span, Tensor]]] = {}
        for span, tensor in zip(self.spans, self.tensors, strict=True):
            self._by_parameter.setdefault(span.parameter, []).append((span, tensor))

    def view(self, span: Span) -> Tensor:
        """The elements of `span`, which lies inside one held span."""
        for held, tensor in self._by_parameter.get(span.parameter, []):
            if held.start <= span.start and span.stop <= held.stop:
                return tensor[span.start - held.start : span.stop - held.start]
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
