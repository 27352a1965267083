"""Recomputation, evaluation and the trace of a step, with real ranks, against the single-process reference."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from db.messages import Evaluation, Step
from db.run_config import RunConfig
from planner.plan import Plan
from tests.engine.reference import reference_steps
from tests.engine.test_training import document, plans, small_config
from tests.engine.world import ScriptedUplink, run_world

NUM_STEPS = 8
TRACED = 6


def config() -> RunConfig:
    base = small_config("float64")
    train = base.train.model_copy(
        update={"num_steps": NUM_STEPS, "recompute": True, "eval_every": 2, "eval_batches": 2}
    )
    return base.model_copy(update={"train": train})


def train(rank: int, path: str, is_host: bool) -> Any:
    from engine.step_trace import TraceRequest
    from engine.trainer import Trainer
    from tests.engine.host_backend import HostBackend

    first, second, *_ = (document(number, plan) for number, plan in enumerate(plans(), start=1))
    uplink = ScriptedUplink({3: second}) if rank == 0 else None
    backend = HostBackend(config()) if is_host else None
    trainer = Trainer(config(), uplink, backend, trace=TraceRequest(step=TRACED, path=Path(path)))
    assert trainer.train(first) == "finished"
    return uplink.sent if uplink else None


@pytest.fixture(scope="module", params=[False, True], ids=["emulated", "as on GPUs"])
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], list[dict[str, Any]]]:
    """What the engine said, and the rows of its trace."""
    path = tmp_path_factory.mktemp("trace") / "folder" / "trace.json"
    sent = run_world(8, train, str(path), request.param)[0]
    return sent, json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def test_recomputed_layers_keep_the_reference_loss(outcome: tuple[list[Any], Any]) -> None:
    steps = [message for message in outcome[0] if isinstance(message, Step)]
    assert steps[0].plan_version == 1
    assert steps[-1].plan_version == 2
    expected = [step.loss for step in reference_steps(config(), NUM_STEPS)]
    assert [message.loss for message in steps] == pytest.approx(expected, rel=1e-9)


def test_evaluations_are_those_of_the_reference_under_any_plan(outcome: tuple[list[Any], Any]) -> None:
    evaluations = [message for message in outcome[0] if isinstance(message, Evaluation)]
    reference = reference_steps(config(), NUM_STEPS + 1)
    assert [message.step for message in evaluations] == [2, 4, 6, 8]
    for message in evaluations:
        assert message.loss == pytest.approx(reference[message.step].evaluation, rel=1e-9)
        assert message.num_tokens == 2 * 8 * config().model.seq_len


def test_the_step_after_an_evaluation_is_left_out_of_detection(outcome: tuple[list[Any], Any]) -> None:
    phases = {message.step: message.phase for message in outcome[0] if isinstance(message, Step)}
    assert phases[0] == "first"
    assert phases[2] == phases[6] == "evaluation"
    assert phases[3] == phases[7] == "train"
    assert "switch" in phases.values()


def test_the_trace_shows_every_micro_batch_once_per_stage_and_direction(outcome: tuple[Any, Any]) -> None:
    plan = plans()[1]
    computed = Counter((row["pid"], row["tid"], row["name"]) for row in spans(outcome[1]) if row["cat"] == "compute")
    expected = {
        (pipeline_index, device, f"{kind}{micro_batch}")
        for pipeline_index, _, stage in plan.places()
        for device in stage.devices
        for kind in "FB"
        for micro_batch in range(plan.pipelines[pipeline_index].num_micro_batches)
    }
    assert computed == dict.fromkeys(expected, 1)


def test_the_trace_names_waits_sends_and_sync(outcome: tuple[Any, Any]) -> None:
    plan = plans()[1]
    for pipeline_index, stage_index, stage in plan.places():
        has_neighbour = len(plan.pipelines[pipeline_index].stages) > 1
        for device in stage.devices:
            found = {row["cat"] for row in spans(outcome[1]) if row["tid"] == device}
            expected = {"compute", "layers", "sync", "update"}
            expected |= {"tp"} if stage.tp_degree > 1 else set()
            expected |= {"wait"} if has_neighbour else set()
            expected |= {"send"} if has_neighbour else set()
            assert found == expected, f"device {device} of stage {stage_index}"


def test_the_trace_nests(outcome: tuple[Any, Any]) -> None:
    """On one device, two spans are one inside the other or apart; none has a negative length."""
    rows = spans(outcome[1])
    for device in {row["tid"] for row in rows}:
        open_until: list[float] = []
        for row in (row for row in rows if row["tid"] == device):
            assert row["dur"] >= 0
            assert row["ts"] >= 0
            while open_until and open_until[-1] <= row["ts"]:
                open_until.pop()
            assert not open_until or row["ts"] + row["dur"] <= open_until[-1]
            open_until.append(row["ts"] + row["dur"])


def test_processes_and_threads_of_the_trace_have_names(outcome: tuple[Any, Any]) -> None:
    names = {(row["pid"], row["tid"]): row["args"]["name"] for row in outcome[1] if row["name"] == "thread_name"}
    plan: Plan = plans()[1]
    assert names == {
        (pipeline_index, device): f"stage {stage_index} device {device}"
        for pipeline_index, stage_index, stage in plan.places()
        for device in stage.devices
    } | {(-1, device): f"device {device}" for device in plan.standby}


def spans(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["ph"] == "X"]
