"""The Stragglers page in a real browser: one choice of devices in three places, zoom, links, unfolded evidence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.test_browser import Installation, Watched, browser, installation, page, pytestmark, watched

__all__ = ["browser", "installation", "page", "pytestmark", "watched"]  # fixtures and marks of this module too


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_loads_clean(installation: Installation, page: Any, watched: Watched, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{installation.url}/stragglers?run=1")
    page.wait_for_selector(".plot .main-svg")
    page.wait_for_selector("table[aria-label=Episodes]")
    assert page.locator("[data-testid=stException], [data-testid=stAlert]").count() == 0
    assert watched.problems == []


def test_one_choice_in_grid_list_and_address_survives_a_reload(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/stragglers?run=1")
    page.locator("button.cell[data-pick='5']").click()
    page.wait_for_url("**devices=5")
    box = page.get_by_role("textbox", name="Devices")
    page.wait_for_function("document.querySelector('.st-key-stragglers_devices input').value === '5'")
    box.fill("5-7")
    box.press("Enter")
    page.wait_for_url("**devices=5-7")
    page.wait_for_selector("button.cell[data-pick='6'][data-picked]")
    page.reload()
    page.wait_for_selector("button.cell[data-pick='7'][data-picked]")
    page.wait_for_function("document.querySelector('.st-key-stragglers_devices input').value === '5-7'")
    page.wait_for_function("document.querySelector('.plot')?.data?.filter((trace) => trace.name).length === 3")


def test_zoom_and_unfolded_evidence_survive_refreshes(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/stragglers?run=1&devices=3")
    page.wait_for_selector(".plot .main-svg")
    before = page.evaluate("document.querySelector('.plot').layout.xaxis.range")
    box = page.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 150, steps=5)
    page.mouse.up()
    page.wait_for_function(f"document.querySelector('.plot').layout.xaxis.range[0] > {before[0] + 10}")
    page.locator("details.evidence summary").click()
    zoomed = page.evaluate("document.querySelector('.plot').layout.xaxis.range")
    newest = "document.querySelector('.plot')?.data?.find((trace) => trace.name).x.at(-1)"
    seen = page.evaluate(newest)
    assert zoomed[1] < seen
    page.wait_for_function(f"{newest} > {seen + 1}")
    assert page.evaluate("document.querySelector('.plot').layout.xaxis.range") == zoomed
    assert page.locator("details.evidence[open]").count() == 1
    with page.expect_download() as download:
        page.locator("details.evidence a", has_text="raw JSON").click()
    assert download.value.suggested_filename == "run-1-episode-1-evidence.json"


def test_a_row_leads_to_its_steps_and_a_plan_in_the_band_to_its_page(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/stragglers?run=1&range=100")
    page.locator("table[aria-label=Episodes] a", has_text="step 90").click()
    page.wait_for_url("**devices=3&range=70-&episode=1")
    page.wait_for_function("document.querySelector('.st-key-stragglers_between input').value === '70-'")
    page.wait_for_function("document.querySelector('.plot')?.layout?.shapes?.some((shape) => shape.opacity === 0.2)")
    band = page.evaluate(
        """() => {
            const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
            const { xaxis, yaxis2 } = plot._fullLayout;
            return [box.left + xaxis._offset + xaxis._length - 30, box.top + yaxis2._offset + yaxis2._length / 2];
        }"""
    )
    page.mouse.move(*band)
    page.wait_for_selector(".hoverlayer .hovertext")
    page.mouse.click(*band)
    page.wait_for_url("**/plans?run=1&version=2")


def test_a_click_on_the_strip_chooses_its_device(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/stragglers?run=1")
    page.wait_for_selector(".plot .main-svg")
    place = page.evaluate(
        """() => {
            const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
            const { xaxis, yaxis3 } = plot._fullLayout;
            return [box.left + xaxis._offset + 200, box.top + yaxis3._offset + yaxis3.c2p(4)];
        }"""
    )
    page.mouse.move(*place)
    page.wait_for_selector(".hoverlayer .hovertext")
    page.mouse.click(*place)
    page.wait_for_url("**devices=4")
    page.wait_for_selector("button.cell[data-pick='4'][data-picked]")
