"""Sweeps, many cases of one kind: `make test` runs some cases of each, `SWEEPS=all make test` and `.ci/run` all."""

from __future__ import annotations

import os

import pytest

IS_WHOLE = os.environ.get("SWEEPS") == "all"

of_whole_sweep = pytest.mark.skipif(not IS_WHOLE, reason="a case of a sweep that SWEEPS=all runs whole")
