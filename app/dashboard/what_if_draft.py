"""The question that is being written on the What-if page, in one browser session, and its form in the address.

Several widgets show the same rates (grid, box, table). They are kept here; a widget's key holds a counter that grows
when another one has changed what it shows: it is then a new widget (see `injection_form`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from app.dashboard.what_if_origin import Origin, as_request
from db.what_if_request import WhatIfRequest
from planner.spec import TrainSpec, check_rates

PRESETS = (1.0, 2.57, 3.75, 5.42, 12.53, math.inf)
"""Healthy, rates of 1, 2, 3 and 8 co-running jobs, failed."""

MAX_RATE = 1000.0
RATE, FAILED = "Rate", "Failed"
_DRAFT = "what_if_draft"


@dataclass
class Draft:
    """The question so far.

    Args:
        rates: of devices that are not healthy.
        selected: devices that the rate buttons act on.
        table_rates: what the table showed when it was new; its edits come on top.
    """

    origin: Origin
    rates: dict[int, float]
    sizes: tuple[int, ...]
    dp: tuple[int, int]
    max_tp: int
    selected: list[int] = field(default_factory=list)
    table_rates: dict[int, float] = field(default_factory=dict)
    rate_number: int = 0
    table_number: int = 0
    fields_number: int = 0

    @property
    def shared_rate(self) -> float | None:
        """The rate of the selected devices, if it is one."""
        found = {self.rates.get(device, 1.0) for device in self.selected}
        return found.pop() if len(found) == 1 else None

    def train(self) -> TrainSpec:
        """The training settings.

        Raises:
            SpecError: they contradict each other.
        """
        return TrainSpec(
            global_batch=self.origin.train.global_batch,
            micro_batch_sizes=self.sizes,
            dp_range=self.dp,
            max_tp=self.max_tp,
        )

    def request(self) -> WhatIfRequest:
        """The question, ready to be asked.

        Raises:
            SpecError: settings or rates are not valid.
        """
        check_rates(self.rates, self.origin.cluster)
        return as_request(self.origin, self.train(), self.rates)

    def params(self) -> dict[str, str]:
        """Its form in the address; what is as the origin has it is left out."""
        train = self.origin.train
        params = {"from": self.origin.name}
        if self.rates != dict(self.origin.rates) or self.origin.run is not None:
            params["rates"] = ",".join(f"{device}:{rate:g}" for device, rate in sorted(self.rates.items()))
        if self.sizes != train.micro_batch_sizes:
            params["b"] = ",".join(str(size) for size in self.sizes)
        if self.dp != train.dp_range:
            params["dp"] = f"{self.dp[0]}-{self.dp[1]}"
        if self.max_tp != train.max_tp:
            params["tp"] = str(self.max_tp)
        return params

    def apply(self, params: Mapping[str, str]) -> None:
        """Takes up what an address says; what makes no sense is left as it is."""
        if "rates" in params:
            self.rates = _rates(params["rates"], self.origin.cluster.devices)
            self.table_rates = dict(self.rates)
        sizes = tuple(int(part) for part in params.get("b", "").split(",") if part.isdigit())
        self.sizes = tuple(size for size in sizes if size in possible_sizes(self.origin)) or self.sizes
        low, _, high = params.get("dp", "").partition("-")
        if low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high) <= most_dp(self.origin):
            self.dp = (int(low), int(high))
        if params.get("tp", "").isdigit() and int(params["tp"]) in possible_tp(self.origin):
            self.max_tp = int(params["tp"])


def current() -> Draft | None:
    """This session's draft."""
    found: Draft | None = st.session_state.get(_DRAFT)
    return found


def start(origin: Origin) -> Draft:
    """Begins anew from an origin."""
    former = current()
    number = 0 if former is None else former.fields_number + 1
    draft = Draft(
        origin=origin,
        rates=dict(origin.rates),
        sizes=origin.train.micro_batch_sizes,
        dp=(origin.train.dp_range[0], min(origin.train.dp_range[1], most_dp(origin))),
        max_tp=origin.train.max_tp,
        table_rates=dict(origin.rates),
        rate_number=number,
        table_number=number,
        fields_number=number,
    )
    draft.dp = (min(draft.dp), draft.dp[1])
    st.session_state[_DRAFT] = draft
    return draft


def possible_sizes(origin: Origin) -> list[int]:
    """Micro-batch sizes that the profile knows and the batch allows."""
    return [size for size in sorted(origin.profile.compute_s) if origin.train.global_batch % size == 0]


def possible_tp(origin: Origin) -> list[int]:
    """TP degrees that the profile knows."""
    return sorted({degree for row in origin.profile.compute_s.values() for degree in row} | {origin.train.max_tp})


def most_dp(origin: Origin) -> int:
    """Pipelines that there could be at most."""
    return max(1, min(len(origin.cluster.devices), origin.train.global_batch))


def picked(values: list[str]) -> None:
    """The selection of the grid has changed."""
    draft = _draft()
    draft.selected = sorted(int(value) for value in values)
    draft.rate_number += 1


def preset_chosen() -> None:
    """A preset was pressed: it is the rate of the selected devices."""
    draft = _draft()
    rate = st.session_state.get(f"what_if_preset_{draft.rate_number}")
    if rate is not None:
        set_rates(dict.fromkeys(draft.selected, rate))


def rate_typed() -> None:
    """The rate box has changed."""
    draft = _draft()
    rate = st.session_state.get(f"what_if_rate_{draft.rate_number}")
    if rate is not None:
        set_rates(dict.fromkeys(draft.selected, float(rate)))


def set_rates(rates: Mapping[int, float]) -> None:
    """Gives devices another rate."""
    _replace({**_draft().rates, **rates})


def all_healthy() -> None:
    """Every device is healthy."""
    _replace({})


def as_measured() -> None:
    """Every device has the rate of the origin."""
    _replace(_draft().origin.rates)


def table_edited() -> None:
    """Cells of the table have changed: the edits of this table, on top of what it showed when it was new."""
    draft = _draft()
    table = st.session_state.get(f"what_if_table_{draft.table_number}")
    if table is None:
        return  # not drawn any more
    devices = sorted(draft.origin.cluster.devices)
    rates = dict(draft.table_rates)
    for row, edits in table["edited_rows"].items():
        device = devices[int(row)]
        rates[device] = edited_rate(rates.get(device, 1.0), edits)
    draft.rates = {device: rate for device, rate in rates.items() if rate != 1.0}
    draft.rate_number += 1


def edited_rate(rate: float, edits: Mapping[str, Any]) -> float:
    """A device's rate after edits of its row; a tick at "failed" counts more than a number."""
    number = edits.get(RATE, None if math.isinf(rate) else rate)
    usable = float(number) if isinstance(number, int | float) and 0 < number <= MAX_RATE else 1.0
    return math.inf if edits.get(FAILED, math.isinf(rate)) else usable


def _draft() -> Draft:
    draft = current()
    assert draft is not None, "the page starts one before it shows a widget"
    return draft


def _replace(rates: Mapping[int, float]) -> None:
    draft = _draft()
    draft.rates = {device: rate for device, rate in rates.items() if rate != 1.0}
    draft.table_rates = dict(draft.rates)
    draft.table_number += 1
    draft.rate_number += 1


def _rates(text: str, devices: tuple[int, ...]) -> dict[int, float]:
    found = {}
    for part in text.split(","):
        device, _, value = part.partition(":")
        try:
            rate = float(value)
        except ValueError:
            continue
        if device.isdigit() and int(device) in devices and rate > 0 and rate != 1.0:
            found[int(device)] = rate
    return found
