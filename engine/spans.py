"""A rank's tensors: spans of parameters in one flat buffer.

Weights, gradients, master weights and moments are all kept this way, so copying, sending and
digesting them is the same few lines whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.layout import Span


class FlatSpans:
    """Spans joined in one contiguous 1-D buffer.

    Args:
        spans: disjoint, in the order they lie in the buffer.
        dtype: of the buffer; it starts at zero.
    """

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype) -> None:
        self.spans = tuple(spans)
        self.buffer = torch.zeros(sum(span.num_elements for span in spans), dtype=dtype)
        self._by_parameter: dict[int, list[tuple[Span, int]]] = {}
        offset = 0
        for span in self.spans:
            self._by_parameter.setdefault(span.parameter, []).append((span, offset))
            offset += span.num_elements

    def view(self, span: Span) -> Tensor:
        """The part of the buffer that holds `span`, which lies inside one held span."""
        for held, offset in self._by_parameter.get(span.parameter, []):
            if held.start <= span.start and span.stop <= held.stop:
                return self.buffer[offset + span.start - held.start : offset + span.stop - held.start]
        raise AssertionError(f"{span} is not held; held are {self.spans}")

    def gather(self, spans: Sequence[Span]) -> Tensor:
        """A new tensor with the given spans, one after the other."""
        parts = [self.view(span) for span in spans]
        return torch.cat(parts) if parts else self.buffer.new_empty(0)

    def scatter(self, spans: Sequence[Span], values: Tensor) -> None:
        """Writes `values` (spans one after the other) into the buffer."""
        offset = 0
        for span in spans:
            self.view(span).copy_(values[offset : offset + span.num_elements])
            offset += span.num_elements
