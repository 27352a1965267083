"""Rates in blocks: peaks and silence survive any width, raw and rolled up, for some devices and for all."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from db import rates, recorder, rollup
from db.errors import InputError
from db.rates import RateBlock
from db.runs import RunView
from db.store import Store
from tests.db.query_plan import query_plan
from tests.db.telemetry import batch, hello, step

SPIKE, FAILED, SILENT = 37, 140, 203


def tell(store: Store, number: int = 300) -> None:
    """Device 0 spikes in one step and fails in another, device 1 is silent for one; step 61 carried a switch."""
    messages = []
    for at in range(1, number + 1):
        first = 9.0 if at == SPIKE else math.inf if at == FAILED else 1.0 + at % 5 / 100
        second = math.nan if at == SILENT else 1.0
        phase = "switch" if at == 61 else "train"
        messages.append(step(at, rates=(first, second, *(1.0,) * 6), phase=phase))
    recorder.record(store, 1, batch(hello(0), *messages))


def raw(store: Store, *, devices: list[int] | None, width: int, since: int = 0, until: int = 300) -> list[RateBlock]:
    return rates.raw_blocks(store, 1, devices=devices, since_step=since, until_step=until, width=width)


@pytest.mark.parametrize("width", [1, 7, 64, 1000])
@pytest.mark.parametrize("devices", [None, [0], [0, 1]])
def test_peaks_and_silence_survive_any_width(store: Store, run: RunView, width: int, devices: list[int] | None) -> None:
    tell(store)
    found = raw(store, devices=devices, width=width)
    assert {block.device for block in found} == set(devices if devices is not None else range(8))
    first = [block for block in found if block.device == 0]
    assert sum(block.num_known for block in first) == 299, "the step that carried a switch is left out"
    assert any(block.high == math.inf and block.first_step <= FAILED <= block.last_step for block in first)
    spiked = next(block for block in first if block.first_step <= SPIKE <= block.last_step)
    assert spiked.high in (9.0, math.inf)
    assert [block.first_step for block in first] == sorted(block.first_step for block in first)
    if width > 1:
        assert all(block.first_step // width == block.last_step // width for block in first)


def test_a_block_in_numbers(store: Store, run: RunView) -> None:
    tell(store)
    found = raw(store, devices=[0, 1], width=10, since=30, until=39)
    assert found == [
        RateBlock(0, 30, 39, 10, 0, 1.0, pytest.approx(1.818), 9.0),
        RateBlock(1, 30, 39, 10, 0, 1.0, 1.0, 1.0),
    ]
    silent = raw(store, devices=[1], width=1, since=SILENT, until=SILENT)[0]
    assert (silent.num_known, silent.num_unknown) == (0, 1)
    assert math.isnan(silent.low)
    assert math.isnan(silent.mean)
    assert math.isnan(silent.high)
    around = raw(store, devices=[1], width=10, since=200, until=209)[0]
    assert (around.num_known, around.num_unknown, around.low, around.high) == (9, 1, 1.0, 1.0)


def test_nothing_yet(store: Store, run: RunView) -> None:
    assert raw(store, devices=None, width=5) == []
    assert rates.minute_blocks(store, 1, devices=None, since_step=0, until_step=9, width=5) == []
    assert rates.span(store, 1) == rates.SampleSpan(raw=None, rolled_up=None)
    with pytest.raises(InputError, match="width must be at least 1 step, given 0"):
        raw(store, devices=None, width=0)


def test_rolled_up_samples_keep_their_peaks(store: Store, run: RunView) -> None:
    tell(store)
    assert rates.span(store, 1) == rates.SampleSpan(raw=(1, 300), rolled_up=None)
    rollup.roll_up(store, older_than=timedelta(days=1))
    # step n is at 12:00:00 + n s: the minutes 12:00 to 12:02 were rolled up, steps 1 to 179
    assert rates.span(store, 1) == rates.SampleSpan(raw=(180, 300), rolled_up=(1, 179))
    minutes = rates.minute_blocks(store, 1, devices=[0, 1], since_step=0, until_step=300, width=1)
    assert [(block.device, block.first_step, block.last_step, block.num_known) for block in minutes] == [
        (0, 1, 59, 59),
        (0, 60, 119, 59),
        (0, 120, 179, 60),
        (1, 1, 59, 59),
        (1, 60, 119, 59),
        (1, 120, 179, 60),
    ]
    assert [block.high for block in minutes] == [9.0, 1.04, math.inf, 1.0, 1.0, 1.0]
    assert [block.mean for block in minutes] == pytest.approx([1.02, 1.02, 1.02, 1.0, 1.0, 1.0], abs=0.011)
    whole = rates.minute_blocks(store, 1, devices=[0], since_step=0, until_step=300, width=1000)
    assert [(block.first_step, block.last_step, block.num_known, block.high) for block in whole] == [
        (1, 179, 178, math.inf)
    ]
    assert len(rates.minute_blocks(store, 1, devices=None, since_step=60, until_step=119, width=8)) == 8
    assert [block.first_step for block in raw(store, devices=[0], width=100)] == [180, 200, 300]


def test_minutes_in_which_nothing_was_measured(store: Store, run: RunView) -> None:
    silent = (1.0, math.nan, *(1.0,) * 6)
    recorder.record(store, 1, batch(hello(0), *(step(number, rates=silent) for number in range(1, 301))))
    rollup.roll_up(store, older_than=timedelta(days=1))
    found = rates.minute_blocks(store, 1, devices=[1], since_step=0, until_step=300, width=1000)
    assert [(block.num_known, block.num_unknown) for block in found] == [(0, 179)]
    assert math.isnan(found[0].high)


@pytest.mark.parametrize("devices", [[3], [3, 5]])
def test_a_few_devices_are_found_by_the_index(store: Store, run: RunView, devices: list[int]) -> None:
    if not store.is_sqlite:
        pytest.skip("PostgreSQL plans by statistics")
    tell(store, 20)
    plan = query_plan(store, lambda: raw(store, devices=devices, width=4), of="samples")
    assert "USING INDEX ix_samples_run_device_step (run=? AND device=? AND step>? AND step<?)" in plan
