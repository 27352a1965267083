"""Where asked, every refresh of a live part leaves a line in a file: what it cost the server.

`MALLEUS_REFRESH_LOG` names the file; without it nothing is measured. For `bench/dashboard.py` and for whoever looks for
a slow page.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

VARIABLE = "MALLEUS_REFRESH_LOG"


def logged(draw: Callable[..., None]) -> Callable[..., None]:
    """The same function; each call appends part, `seconds`, `cpu_s` and `at` to the log, also when it is cut short."""
    file = os.environ.get(VARIABLE)
    if not file:
        return draw

    @wraps(draw)
    def measured(*args: Any) -> None:
        began, cpu_began = time.perf_counter(), time.thread_time()
        try:
            draw(*args)
        finally:
            seconds, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
            entry = {"part": draw.__module__.rpartition(".")[2], "seconds": seconds, "cpu_s": cpu_s, "at": time.time()}
            with open(file, "a", encoding="utf-8") as log:
                log.write(json.dumps(entry) + "\n")

    return measured
