"""Stragglers: devices' rates over a range of steps, which steps have samples, and a run's episodes."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.dashboard.rate_feed import RateFeed, RatePicture
from app.dashboard.reads.feed import RELOAD_S, SNAPSHOT_EPISODES
from app.dashboard.reads.progress import snapshot
from app.dashboard.reads.source import store
from db import episodes, rates
from db.episodes import EpisodeView
from db.rates import RateBlock, SampleSpan

SAMPLES_AT_ONCE = 60_000
"""Samples summed up by one query of a rate feed over all devices, which reads them in a row."""

SAMPLES_FOUND_AT_ONCE = 20_000
"""The same over chosen devices, whose samples are found one by one."""

MAX_EPISODES = 2_000
"""Episodes of a run that are listed, newest first."""

EPISODES_FRESH_S = 5.0
"""How long that list is kept."""


def rate_picture(
    run: int, devices: tuple[int, ...] | None, first: int, last: int, *, width: int, data: str, budget_s: float
) -> RatePicture:
    """Rates of a range in blocks, as far as they could be read within the budget; later calls go on from there.

    Args:
        devices: None: all.
        width: steps a block, a power of two.
        data: `raw`, `minute` (what was rolled up), or `auto`: rolled up as far back as there are no raw samples.
    """
    found = snapshot(run)
    if found.run.step is None:
        return RatePicture(blocks=(), width=width, missing=0.0)
    attempt = found.steps[-1].attempt if found.steps else None
    number = found.run.config.num_devices if devices is None else len(devices)
    feed = _rate_feed(run, attempt, devices, width, data, max(1, number))
    return feed.read(first, last, newest_step=found.run.step, budget_s=budget_s)


@st.cache_resource(show_spinner=False, ttl=RELOAD_S, max_entries=50)
def sample_span(run: int) -> SampleSpan:
    """Which steps have raw and which rolled-up samples."""
    return rates.span(store(), run)


def episodes_of(run: int) -> Sequence[EpisodeView]:
    """Episodes of a run, newest first, `MAX_EPISODES` at most."""
    found = snapshot(run).episodes
    return found if len(found) < SNAPSHOT_EPISODES else _episodes(run)


@st.cache_resource(show_spinner=False, max_entries=24)
def _rate_feed(
    run: int, attempt: str | None, devices: tuple[int, ...] | None, width: int, data: str, num_devices: int
) -> RateFeed:
    del attempt  # a new one has other steps

    def fetch(first: int, last: int) -> list[RateBlock]:
        first_raw = (sample_span(run).raw or (0, 0))[0] if data == "auto" else 0 if data == "raw" else last + 1
        found: list[RateBlock] = []
        if first < first_raw:
            until = min(last, first_raw - 1)
            found += rates.minute_blocks(store(), run, devices=devices, since_step=first, until_step=until, width=width)
        if last >= first_raw:
            since = max(first, first_raw)
            found += rates.raw_blocks(store(), run, devices=devices, since_step=since, until_step=last, width=width)
        return found

    at_once = SAMPLES_AT_ONCE if devices is None else SAMPLES_FOUND_AT_ONCE
    return RateFeed(fetch, width=width, max_steps=at_once // num_devices)


@st.cache_resource(show_spinner=False, ttl=EPISODES_FRESH_S, max_entries=20)
def _episodes(run: int) -> list[EpisodeView]:
    return episodes.all_episodes(store(), run, limit=MAX_EPISODES)
