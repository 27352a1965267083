"""What the doctor says of torch and GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from app import doctor

PLAIN: dict[str, Any] = {"version": "2.13.0", "gloo": True, "cuda": None, "gpus": [], "nccl": None}
H200 = "NVIDIA H200"


@pytest.mark.parametrize(
    ("answer", "states", "found"),
    [
        (PLAIN, ["ok", "off"], "torch built without CUDA): emulated devices only"),
        (PLAIN | {"cuda": "12.8"}, ["ok", "off"], "none found (CUDA 12.8): emulated"),  # no driver, or hidden
        (
            PLAIN | {"cuda": "12.8", "gpus": [H200, H200, "NVIDIA L4"], "nccl": "2.27.3"},
            ["ok", "ok"],
            "2 x NVIDIA H200, 1 x NVIDIA L4, CUDA 12.8, NCCL 2.27.3",
        ),
        (PLAIN | {"cuda": "12.8", "gpus": [H200]}, ["ok", "off"], "torch without NCCL: emulated devices only"),
        (PLAIN | {"gloo": False}, ["failed", "off"], "emulated devices only"),
    ],
)
def test_what_torch_answers_is_said(answer: dict[str, Any], states: list[str], found: str) -> None:
    checks = doctor._engine(answer)
    assert [check.name for check in checks] == ["engine", "gpus"]
    assert [check.state for check in checks] == states
    assert found in checks[1].found


@pytest.mark.parametrize(("answer", "found"), [(None, "cannot be imported"), ({}, "is not installed")])
def test_no_torch_is_a_failure_with_a_reason(answer: dict[str, Any] | None, found: str) -> None:
    (check,) = doctor._engine(answer)
    assert check.state == "failed"
    assert found in check.found


def test_the_script_answers_here() -> None:
    answer = doctor._tried(doctor._TORCH)
    assert answer is not None
    assert set(answer) == set(PLAIN)
    assert answer["gloo"] is True
