"""Every page in a real browser: drawn without an error, whole in every width, and photographed.

The pictures go to the folder that `SCREENSHOTS` names (`make screenshots`: the ones of `docs/tour.md`), else nowhere
that lasts; without it, dark is left out, which differs in colours alone and takes as long again. What they show is
told by `tests/app/toured_store.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from db.store import Store
from tests.app import toured_store
from tests.app.seeded_store import database_url
from tests.app.seeded_world import unlock
from tests.app.test_browser import CHROMIUM, WAIT_S, Watched, browser, serving, watched

__all__ = ["browser", "watched"]  # fixtures of this module too

WIDTH, HEIGHT = 1440, 900
WIDTHS = (1280, 2560, WIDTH)
MAX_BYTES = 120_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture.

    Args:
        address: `{run}` and `{waiting}` stand for the two runs that go on.
        sign: what is on the page once its main content is there.
        until: the picture ends above the expander of this name; empty: it shows the whole page.
        press: a button to press first.
    """

    name: str
    address: str
    sign: str
    until: str = ""
    is_unlocked: bool = False
    press: str = ""


SHOTS = (
    Shot(name="runs", address="/", sign="table[aria-label=Runs] tbody tr"),
    Shot(name="live", address="/live?run={run}", sign=".plot .main-svg"),
    Shot(name="stragglers", address="/stragglers?run={run}&devices=3,6", sign=".plot .main-svg"),
    Shot(name="inject", address="/inject?run={run}&devices=5,6", sign=".plot .main-svg", is_unlocked=True),
    Shot(name="plans", address="/plans?run={run}", sign="text=Runners-up", until="Runners-up"),
    Shot(
        name="plan",
        address="/plans?run={waiting}",
        sign="text=Runners-up",
        until="Runners-up",
        is_unlocked=True,
    ),
    Shot(name="plans-compared", address="/plans?run={run}&version=2&diff=1", sign="i.moved.new"),
    Shot(
        name="what-if",
        address="/what-if?from=run-{run}&rates=3:2.57,6:5.42",
        sign=".plot .main-svg",
        until="One step",
        is_unlocked=True,
        press="Plan this",
    ),
    Shot(name="health", address="/health", sign="table[aria-label='Health of services']"),
    Shot(name="audit", address="/audit", sign="table[aria-label=Audit] tbody tr"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toured:
    url: str
    runs: dict[str, int]


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toured]:
    folder = tmp_path_factory.mktemp("home")
    with Store.open(database_url(folder), migrate=True) as store:
        waiting, run = stories = toured_store.tell(store)
        with toured_store.going_on(stories), serving(folder) as (url, _):
            yield Toured(url=url, runs={"run": run.id, "waiting": waiting.id})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = os.environ.get("SCREENSHOTS")
    return Path(asked) if asked else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="module", params=["light", "dark"] if "SCREENSHOTS" in os.environ else ["light"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def page(browser: Any, scheme: str) -> Iterator[Any]:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(WAIT_S * 1000)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_a_page_is_whole(toured: Toured, page: Any, watched: Watched, pictures: Path, scheme: str, shot: Shot) -> None:
    watched.of(page)
    page.goto(toured.url + shot.address.format_map(toured.runs))
    if shot.is_unlocked:
        unlock(page, "ada")
    if shot.press:
        page.get_by_role("button", name=shot.press).click()
    page.mouse.move(0, 0)
    page.wait_for_selector(shot.sign)
    for width in WIDTHS if scheme == "light" else (WIDTH,):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        _settle(page)
        assert page.evaluate(_CUT) == [], f"at {width}"
    page.set_viewport_size({"width": WIDTH, "height": math.ceil(_height(page, shot.until))})
    _settle(page)
    file = pictures / f"{shot.name}-{scheme}.png"
    drawn = Image.open(BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    drawn.quantize(kmeans=1).save(file, optimize=True)
    assert page.locator("[data-testid=stException], [data-testid=stAlert], [data-freshness=stale]").count() == 0
    assert watched.problems == []
    assert file.stat().st_size < MAX_BYTES


_CUT = """() => {
    const scrolls = (element) => element && element.dataset.testid !== 'stMain' && element !== document.body &&
        (getComputedStyle(element).overflowX !== 'visible' || scrolls(element.parentElement));
    const cut = [...document.querySelectorAll('[data-testid=stApp] *')].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width && box.right > innerWidth + 1 && !scrolls(element.parentElement);
    });
    if (document.documentElement.scrollWidth > innerWidth) cut.push(document.documentElement);
    return cut.map((element) => `${element.tagName}.${element.className}: ${element.textContent.slice(0, 40)}`);
}"""


def _height(page: Any, until: str) -> float:
    """Of the page, or of the part above an expander."""
    if until:
        return float(page.locator("[data-testid=stExpander]", has_text=until).bounding_box()["y"])
    return float(page.locator("[data-testid=stMainBlockContainer]").bounding_box()["height"])


def _settle(page: Any) -> None:
    """Waits until fonts are there and the layout has kept its size for a moment."""
    page.evaluate(
        """async () => {
            await document.fonts.ready;
            const main = document.querySelector('[data-testid=stMainBlockContainer]');
            const size = () => [main, ...main.querySelectorAll('.plot .main-svg, .picture')]
                .map((element) => `${element.clientWidth}x${element.clientHeight}`).join();
            for (let last = '', since = performance.now(); performance.now() - since < 300;) {
                await new Promise(requestAnimationFrame);
                if (size() !== last) [last, since] = [size(), performance.now()];
            }
        }"""
    )
