"""The cases of the planner that the paper's authors released: never worse, with every plan checked.

The data lies beside the repository where it is developed; elsewhere these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT.parent / "shared" / "reference" / "planner_cases.json"


def _bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_planner", ROOT / "bench" / "planner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cases() -> list[Any]:
    if not CASES.is_file():
        return [pytest.param(None, None, marks=pytest.mark.skip(reason=f"{CASES} is not there"))]
    document = json.loads(CASES.read_text(encoding="utf-8"))
    return [
        pytest.param(document["profiles"][case["profile"]], case, id=f"{case['profile']}-{case['case']}")
        for case in document["cases"]
    ]


@pytest.mark.parametrize(("numbers", "case"), _cases())
def test_never_worse_than_the_reference(numbers: dict[str, Any], case: dict[str, Any]) -> None:
    found = _bench().run_case(numbers, case, is_free=False)
    assert found["objective"] <= case["reference_objective"] * (1 + 1e-9)
    if (case["profile"], case["case"]) in {("110b", "C"), ("70b", "C")}:
        assert found["objective"] <= {"110b": 690, "70b": 665}[case["profile"]]


@pytest.mark.parametrize("profile", ["32b", "70b", "110b"])
@pytest.mark.parametrize("rate", [1.1, 2.57, 12.53, None])
def test_a_straggler_or_a_failure_in_every_node_ends_in_a_valid_plan_or_none(profile: str, rate: float | None) -> None:
    if not CASES.is_file():
        pytest.skip(f"{CASES} is not there")
    numbers = json.loads(CASES.read_text(encoding="utf-8"))["profiles"][profile]
    rates = {str(device): rate for device in range(0, numbers["gpus"], numbers["gpus_per_node"])}
    found = _bench().run_case(numbers, {"profile": profile, "case": "every node", "rates": rates}, is_free=False)
    assert found["objective"] is None or found["objective"] > 0
