"""Training that stops and goes on, elsewhere and otherwise, stays on the curve of the uninterrupted reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from db.messages import Checkpoint, Desired, Step
from db.run_config import RunConfig
from engine.checkpoint.folder import complete
from engine.checkpoint.manifest import read_manifest
from planner.plan import Plan, even_plan
from tests.engine.checkpoint.states import a_plan, small_config
from tests.engine.reference import reference_losses
from tests.engine.world import ScriptedUplink, run_world

EIGHT: dict[str, Any] = {"num_nodes": 2, "devices_per_node": 4}
FOUR: dict[str, Any] = {"num_nodes": 1, "devices_per_node": 4}


def config(cluster: dict[str, Any], num_steps: int, **checkpoint: Any) -> RunConfig:
    return small_config(
        train={"dtype": "float64", "num_steps": num_steps}, cluster=cluster, checkpoint={"every_steps": 4} | checkpoint
    )


def document(version: int, plan: Plan, **fields: Any) -> Desired:
    return Desired(run=1, version=version, plan_version=1, plan=plan.to_json(), **fields)


def train(rank: int, settings: RunConfig, plan: Plan, script: dict[int, Desired], folder: Path | None) -> Any:
    from engine.trainer import Trainer

    uplink = ScriptedUplink(script) if rank == 0 else None
    trainer = Trainer(settings, uplink, checkpoints=folder)
    ending = trainer.train(document(1, plan))
    return ending, (uplink.sent if uplink else None)


def losses(sent: list[Any]) -> dict[int, float]:
    return {message.step: message.loss for message in sent if isinstance(message, Step)}


def checkpoints(sent: list[Any]) -> list[Checkpoint]:
    return [message for message in sent if isinstance(message, Checkpoint)]


def eight() -> Plan:
    return even_plan(
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        num_layers=6,
        num_micro_batches=8,
        micro_batch_size=1,
        dp_degree=2,
        tp_degree=2,
        pp_degree=2,
    )


def test_eight_ranks_save_and_four_go_on_under_another_plan(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    _, sent = run_world(8, train, config(EIGHT, 10), eight(), {}, own)[0]
    reference = reference_losses(config(EIGHT, 10), 16)
    assert list(losses(sent)) == list(range(10))
    told = checkpoints(sent)
    assert [(message.step, message.outcome, message.reason) for message in told] == [
        (4, "saved", ""),
        (8, "saved", ""),
        (10, "saved", ""),  # the end of the run
    ]
    assert [path.name for path in complete(own)] == ["step-00000008", "step-00000010"]
    assert [message.path for message in told[1:]] == [str(path) for path in complete(own)]
    assert all(message.num_bytes > 0 and 0 < message.pause_s < message.seconds for message in told)
    phases = {message.step: message.phase for message in sent if isinstance(message, Step)}
    assert {step for step, phase in phases.items() if phase == "checkpoint"} == {4, 8}

    four = config(FOUR, 16, start_from=str(own))
    _, sent = run_world(4, train, four, a_plan(four, 3), {}, other)[0]
    assert list(losses(sent)) == list(range(10, 16))
    assert list(losses(sent).values()) == pytest.approx(reference[10:], rel=1e-9)
    assert read_manifest(complete(other)[-1]).step == 16

    longer = config(EIGHT, 14)
    _, sent = run_world(8, train, longer, a_plan(longer, 5), {}, own)[0]
    assert list(losses(sent)) == list(range(10, 14))
    assert list(losses(sent).values()) == pytest.approx(reference[10:14], rel=1e-9)


def test_requests_stops_and_pauses(tmp_path: Path) -> None:
    """Each request is answered once, whatever else the document says."""
    settings = config(FOUR, 20, every_steps=0, keep=9)
    plan = a_plan(settings, 1)
    script = {
        2: document(2, plan, checkpoint=1),
        6: document(3, plan, checkpoint=2, paused=True),
        9: document(4, plan, checkpoint=2),
        12: document(5, plan, checkpoint=3, stop=True),
    }
    ending, sent = run_world(4, train, settings, plan, script, tmp_path)[0]
    assert ending == "stopped"
    told = checkpoints(sent)
    assert [(message.request, message.outcome) for message in told] == [(1, "saved"), (2, "saved"), (3, "saved")]
    last = max(losses(sent)) + 1
    assert told[-1].step == last
    assert [read_manifest(path).request for path in complete(tmp_path)] == [1, 2, 3]

    ending, sent = run_world(4, train, settings, plan, {0: document(9, plan, checkpoint=3, stop=True)}, tmp_path)[0]
    assert checkpoints(sent) == [], "request 3 is answered already"
    assert all(step >= last for step in losses(sent))


def test_without_a_folder_a_request_is_refused_and_training_goes_on() -> None:
    settings = config(FOUR, 6, every_steps=0)
    plan = a_plan(settings, 1)
    ending, sent = run_world(4, train, settings, plan, {1: document(2, plan, checkpoint=1)}, None)[0]
    assert ending == "finished"
    (told,) = checkpoints(sent)
    assert (told.outcome, told.request) == ("failed", 1)
    assert "--checkpoints" in told.reason
    assert len(losses(sent)) == 6


def slow_disk(rank: int, settings: RunConfig, plan: Plan, folder: Path) -> Any:
    """The first save hangs for some steps; a periodic save and a request fall into that time."""
    import threading

    from engine.checkpoint import saver as saver_module

    released = threading.Event()
    real = saver_module._write

    def slow(*arguments: Any) -> None:
        released.wait()
        real(*arguments)

    saver_module._write = slow
    real_poll = saver_module.Saver.poll
    num_polls = 0

    def poll(self: Any, **options: Any) -> Any:
        nonlocal num_polls
        num_polls += 1
        if num_polls > 7:
            released.set()
        return real_poll(self, **options)

    saver_module.Saver.poll = poll  # type: ignore[method-assign]
    return train(rank, settings, plan, {5: document(2, plan, checkpoint=1)}, folder)


def test_a_save_that_falls_into_another_is_skipped_and_a_request_waits(tmp_path: Path) -> None:
    settings = config(FOUR, 16, every_steps=2, keep=99)
    _, sent = run_world(4, slow_disk, settings, a_plan(settings, 1), tmp_path)[0]
    told = checkpoints(sent)
    skipped = [message for message in told if message.outcome == "failed"]
    assert skipped
    assert all("still being written" in message.reason for message in skipped)
    saved = [message for message in told if message.outcome == "saved"]
    assert saved[0].step == 2
    answer = next(message for message in saved if message.request == 1)
    assert answer.step > 6
    assert saved[-1].step == 16
    assert len(losses(sent)) == 16
    assert not any(math.isnan(loss) for loss in losses(sent).values())
