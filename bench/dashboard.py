"""The dashboard on a large store: first paint, live refresh, memory.

    python bench/dashboard.py                                 256 devices, 10,000 plans, 2 million samples, 30 minutes
    python bench/dashboard.py --json --database postgresql    a throw-away PostgreSQL server
    python bench/dashboard.py --minutes 0 --pages Live Plans  first paint and refresh only

The store is seeded (`bench/large_store.py`), the dashboard is its real process, the browser is the system's Chromium
without a window; one run goes on meanwhile, a step a second, as its recorder would write it. Memory is that of the
dashboard's process while three browsers watch the live page. An empty page of the same framework is measured beside
the others: what is below it cannot be had. One JSON object a line with --json, else a table; nothing is left behind.
"""

from __future__ import annotations

# ruff: noqa: E402 (imports follow the change of sys.path)
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if sys.path and Path(sys.path[0]).resolve() == _HERE:  # run as a program; bench/planner.py hides the package
    sys.path[0] = str(_HERE.parent)

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from app.dashboard import launch
from app.dashboard.refresh_log import VARIABLE
from bench import large_store
from bench.browsing import Page, browsers, look, middle, paints
from bench.large_store import Size
from db.settings import Settings
from db.store import Store
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, database_url
from tests.db.postgres import PostgresServer, installed_programs

Row = dict[str, Any]

WARM_S, COLD_S, REFRESH_S = 2.5, 5.0, 0.5
"""What is aimed at: first paint with a warm and with a cold browser cache, and a refresh's time in the server."""

NUM_BROWSERS = 3
PAGES = (
    Page(name="Runs", address="/", sign="table[aria-label=Runs] tbody tr"),
    Page(name="Live", address="/live?run={run}", sign=".plot .main-svg"),
    Page(name="Live, one device", address="/live?run={run}&device=0", sign="text=Rate of device 0"),
    Page(name="Live, all steps", address="/live?run={run}&window=all", sign=".plot .main-svg"),
    Page(name="Stragglers", address="/stragglers?run={run}", sign=".plot .main-svg"),
    Page(name="Stragglers, all steps", address="/stragglers?run={run}&range=all", sign=".plot .main-svg"),
    Page(name="Inject", address="/inject?run={run}", sign="ol.drill"),
    Page(name="Plans", address="/plans?run={run}", sign=".map .stage"),
    Page(name="Plans, two compared", address="/plans?run={run}&version={version}&diff=1", sign=".map >> nth=1"),
    Page(name="What-if", address="/what-if?run={run}", sign="button:has-text('Plan this')"),
    Page(name="Health", address="/health", sign="table[aria-label='Health of services']"),
    Page(name="Audit", address="/audit", sign="table[aria-label=Audit] tbody tr"),
)
EMPTY = Page(name="(empty page)", address="/", sign="text=nothing else")
EMPTY_SCRIPT = 'import streamlit as st\n\nst.write("nothing else")\n'


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends too
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="malleus-bench-")))
        size = Size(num_devices=options.devices, num_plans=options.plans, num_samples=options.samples)

        def tell(row: Row) -> None:
            print(json.dumps(row) if options.json else _line(row), flush=True)

        url = _database(options.database, folder, stack)
        store = stack.enter_context(Store.open(url, migrate=True))
        began = time.perf_counter()
        story = large_store.seed(store, size)
        large_store.analyze(store)
        seconds = time.perf_counter() - began
        kind = "sqlite" if store.is_sqlite else "postgresql"
        tell({"what": "store", "database": kind, **_sizes(size), "seconds": seconds})
        stack.enter_context(_going_on(story))
        log = folder / "refreshes.jsonl"
        server, address = stack.enter_context(_dashboard(folder, url, log))
        empty_address = stack.enter_context(_empty_page(folder))
        another = stack.enter_context(browsers())
        for row in _paints(another(), address, empty_address, story, options):
            tell(row)
        for row in _watched(another, address, story, server.pid, log, options.minutes):
            tell(row)


def _paints(browser: Any, address: str, empty_address: str, story: SeededRun, options: Any) -> Iterator[Row]:
    pages = [page for page in PAGES if not options.pages or page.name.split(",")[0] in options.pages]
    for page in (EMPTY, *pages):
        place = page.address.format(run=story.id, version=story.version)
        at = Page(name=page.name, address=place, sign=page.sign)
        for cache, limit_s in (("cold", COLD_S), ("warm", WARM_S)):
            url = empty_address if page is EMPTY else address
            found = middle(paints(browser, url, at, num=options.repeat, is_cold=cache == "cold"))
            yield {
                "what": "first paint",
                "page": page.name,
                "cache": cache,
                **found,
                "at_most_s": limit_s,
                "is_met": found["median_s"] <= limit_s,
            }


def _watched(another: Any, address: str, story: SeededRun, pid: int, log: Path, minutes: float) -> Iterator[Row]:
    """Live view, first by one browser, then by three; memory at the start, every minute and at the end."""
    page = Page(name="Live", address=f"/live?run={story.id}", sign=".plot .main-svg")
    tabs = [look(another(), address, page)]
    yield _refreshes(log, tabs, 15.0)
    tabs += [look(another(), address, page) for _ in range(NUM_BROWSERS - 1)]
    began = time.monotonic()
    first = _memory(pid)
    yield {"what": "memory", "minute": 0.0, **first}
    yield _refreshes(log, tabs, 15.0)
    while time.monotonic() - began < 60 * minutes:
        left_s = 60 * minutes - (time.monotonic() - began)
        tabs[0].wait_for_timeout(1000 * min(60.0, left_s))
        yield {"what": "memory", "minute": (time.monotonic() - began) / 60, **_memory(pid)}
    if minutes:
        yield _refreshes(log, tabs, 15.0)


def _refreshes(log: Path, tabs: Sequence[Any], seconds: float) -> Row:
    """What the refreshes of the next seconds cost the server."""
    since = time.time()
    tabs[0].wait_for_timeout(1000 * seconds)
    lines = log.read_text(encoding="utf-8").splitlines()
    found = [entry for entry in map(json.loads, lines) if entry["at"] >= since and entry["part"] == "live"]
    times = middle([entry["seconds"] for entry in found])
    return {
        "what": "refresh",
        "page": "Live",
        "browsers": len(tabs),
        "number": len(found),
        **times,
        "cpu_s": statistics.median(entry["cpu_s"] for entry in found),
        "at_most_s": REFRESH_S,
        "is_met": times["median_s"] <= REFRESH_S,
    }


def _memory(pid: int) -> Row:
    """Resident and proportional bytes of a process (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return {"rss_bytes": sizes["Rss"], "pss_bytes": sizes["Pss"]}


def _database(given: str, folder: Path, stack: ExitStack) -> str:
    if given == "sqlite":
        return database_url(folder)
    if given != "postgresql":
        return given
    programs = installed_programs()
    if programs is None:
        sys.exit("postgresql needs its server programs on this machine, none in /usr/lib/postgresql")
    server = PostgresServer(programs)
    stack.callback(server.stop)
    return server.create("bench")


@contextmanager
def _dashboard(folder: Path, url: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The dashboard's own process, and its address."""
    port = _free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLEUS_")}
    environ |= {"MALLEUS_HOME": str(folder), "MALLEUS_PORT": str(port), "MALLEUS_DATABASE_URL": url, VARIABLE: str(log)}
    environ["MALLEUS_TOKEN"] = "bench"
    environ["PYTHONPATH"] = str(_HERE.parent)
    log.touch()
    argv, environment = launch.command(Settings.from_env(environ), environ)
    with _serving(argv, environment, folder, port) as process:
        yield process, f"http://127.0.0.1:{port}"


@contextmanager
def _empty_page(folder: Path) -> Iterator[str]:
    """A page of the same framework with the same settings and one word on it."""
    home, port = folder / "empty", _free_port()
    shutil.copytree(launch.SCRIPT.parent / ".streamlit", home / ".streamlit")
    (home / "empty.py").write_text(EMPTY_SCRIPT, encoding="utf-8")
    argv = [sys.executable, "-m", "streamlit", "run", str(home / "empty.py"), f"--server.port={port}"]
    with _serving(argv, dict(os.environ), home, port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _serving(
    argv: list[str], environment: dict[str, str], folder: Path, port: int
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _answers(f"http://127.0.0.1:{port}{launch.HEALTH_PATH}"):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{argv[4]} does not come up")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def _going_on(story: SeededRun) -> Iterator[None]:
    """The run goes on, a step a second, and the services beat."""
    ended = threading.Event()

    def play() -> None:
        while not ended.wait(1.0):
            story.now = datetime.now(UTC) - timedelta(seconds=1.0)
            story.steps(1, step_s=1.0)
            alive(story.store)

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        ended.set()
        player.join()


def _sizes(size: Size) -> Row:
    return {
        "devices": size.num_devices,
        "plans": size.num_plans,
        "samples": size.num_steps * size.num_devices,
        "steps": size.num_steps,
    }


def _line(row: Row) -> str:
    if row["what"] == "store":
        sizes = ", ".join(f"{row[name]:,} {name}" for name in ("devices", "plans", "samples"))
        return f"{row['database']}: {sizes}, seeded in {row['seconds']:.1f} s"
    if row["what"] == "memory":
        sizes = ", ".join(f"{name.upper()} {row[f'{name}_bytes'] / 1e6:.0f} MB" for name in ("rss", "pss"))
        return f"memory after {row['minute']:5.1f} minutes: {sizes}"
    how = row.get("cache") or f"{row['browsers']} browsers, processor {row['cpu_s']:.3f} s"
    verdict = "met" if row["is_met"] else "MISSED"
    return (
        f"{row['what']:12} {row['page']:20} {how:32} {row['median_s']:.3f} s "
        f"({row['min_s']:.3f} to {row['max_s']:.3f}), at most {row['at_most_s']} s: {verdict}"
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=256, help="a multiple of 16, or 1, 2, 4 or 8")
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or the URL of an empty database")
    parser.add_argument("--minutes", type=float, default=30.0, help="of live view by three browsers")
    parser.add_argument("--repeat", type=int, default=5, help="first paints of each page; the median counts")
    parser.add_argument("--pages", nargs="*", default=(), help="these pages only, such as Live Plans")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
