"""Digests: equal for equal elements however they are cut, different for anything else."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.digest import SCRATCH_BYTES, as_hex, span_digests, weight_census
from engine.layout import Span
from tests.engine.layouts import layout_of
from tests.engine.ledger import Ledger
from tests.engine.test_layout import SEEDS, covered

MASK = (1 << 64) - 1


def slow_digest(span: Span, values: Tensor) -> int:
    """The definition, element by element, in Python's integers."""
    bits = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}[values.dtype]
    total = 0
    for position, word in enumerate(values.view(bits).tolist(), start=span.start + 1):
        mixed = _signed((word + position * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9)
        mixed = _signed((mixed ^ (mixed >> 31)) * 0x9E3779B97F4A7C15)
        total += mixed ^ (mixed >> 29)
    return total & MASK


def _signed(value: int) -> int:
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([1, 3, 200, 9_000])), min_size=1, max_size=8),
    st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
)
@settings(max_examples=25, deadline=None)
def test_digests_are_those_of_the_definition(rows: list[tuple[int, int]], dtype: torch.dtype) -> None:
    pieces = [(Span(0, start, start + length), torch.randn(length).to(dtype)) for start, length in rows]
    found = [int(value) & MASK for value in span_digests(pieces)]
    assert found == [slow_digest(span, values) for span, values in pieces]


@given(st.lists(st.integers(1, 99_999), max_size=6))
@settings(max_examples=25, deadline=None)
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(len(cuts)))
    edges = [0, *sorted(set(cuts)), 100_000]
    parts = [(Span(0, start, stop), values[start:stop]) for start, stop in itertools.pairwise(edges)]
    assert int(span_digests(parts).sum()) == int(span_digests([(Span(0, 0, 100_000), values)]).sum())


@pytest.mark.parametrize("change", ["one bit", "swapped", "shifted", "sign of zero"])
def test_any_change_shows(change: str) -> None:
    values = torch.randn(5_000, generator=torch.Generator().manual_seed(1))
    values[7] = 0.0
    other = values.clone()
    if change == "one bit":
        other.view(torch.int32)[4_000] ^= 1
    elif change == "swapped":
        other[[10, 4_990]] = other[[4_990, 10]]
    elif change == "shifted":
        other = other.roll(1)
    else:
        other[7] = -0.0
    span = Span(0, 0, 5_000)
    assert int(span_digests([(span, values)])) != int(span_digests([(span, other)]))


def test_digests_need_little_memory() -> None:
    pieces = [(Span(0, 0, 400_000), torch.randn(400_000)), (Span(1, 0, 70_000), torch.randn(70_000))]
    with Ledger(values for _, values in pieces) as ledger:
        held = ledger.now_bytes
        span_digests(pieces)
        assert held < ledger.peak_bytes <= held + SCRATCH_BYTES


@given(SEEDS, st.booleans())
@settings(max_examples=30, deadline=None)
def test_first_holders_hold_every_element_once(seed: int, is_tied: bool) -> None:
    spread = layout_of(seed, is_tied=is_tied)
    counted = weight_census(spread)
    primary = {device: tuple(spans) for device, spans in counted.primary.items()}
    for parameter in spread.parameters:
        assert set(covered(primary, parameter)) == {1}
        assert set(covered(spread.weights, parameter)) == {counted.num_copies[parameter.index]}


def test_a_digest_is_written_with_16_digits() -> None:
    assert (as_hex(-1), as_hex(10)) == ("f" * 16, "0" * 15 + "a")
