"""The system's Chromium as a stopwatch: how long until a page shows what it is for."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WAIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, and what is on it once its main content is there (a selector)."""

    name: str
    address: str
    sign: str


def chromium() -> str:
    """The system's Chromium or Chrome.

    Raises:
        FileNotFoundError: there is none on the PATH.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    raise FileNotFoundError("neither chromium nor google-chrome is on the PATH")


@contextmanager
def browsers() -> Iterator[Callable[[], Any]]:
    """A function that opens one more browser with an empty cache; all are closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened: list[Any] = []

        def another() -> Any:
            opened.append(playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS)))
            return opened[-1]

        try:
            yield another
        finally:
            for browser in opened:
                browser.close()


def paints(browser: Any, url: str, page: Page, *, num: int, is_cold: bool) -> list[float]:
    """Seconds from asking for the address until the sign can be seen.

    Args:
        is_cold: with an empty browser cache each time; else after one load that is not counted.
    """
    if is_cold:
        return [_cold(browser, url, page) for _ in range(num)]
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        opened = context.new_page()
        return [_paint(opened, url, page) for _ in range(num + 1)][1:]
    finally:
        context.close()


def look(browser: Any, url: str, page: Page) -> Any:
    """A tab that shows the page and stays open."""
    opened = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    _paint(opened, url, page)
    return opened


def middle(values: list[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median_s": statistics.median(values), "min_s": min(values), "max_s": max(values)}


def _cold(browser: Any, url: str, page: Page) -> float:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        return _paint(context.new_page(), url, page)
    finally:
        context.close()


def _paint(opened: Any, url: str, page: Page) -> float:
    if opened.url != "about:blank":
        opened.goto("about:blank")
    began = time.perf_counter()
    opened.goto(url + page.address, wait_until="commit")
    opened.wait_for_selector(page.sign, timeout=WAIT_S * 1000)
    return time.perf_counter() - began
