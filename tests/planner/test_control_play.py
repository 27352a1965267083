"""Schedules played by the controller, on the bench: due entries, restarts, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db import commands, injections
from db.commands import CommandView
from db.injections import InjectionView
from db.schedule import Entry, arguments
from tests.planner.control_rig import Rig

TWO = (Entry(at_s=0.0, device=3, rate=2.57), Entry(at_s=30.0, device=5, rate=5.42, for_s=20.0))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A run that trains."""
    made = Rig(tmp_path)
    made.start()
    made.steps(8)
    yield made
    made.close()


def play(rig: Rig, *entries: Entry) -> CommandView:
    return commands.submit(rig.store, rig.run.id, "play", arguments("drill", entries), actor="ann", source="cli")


def open_rates(rig: Rig) -> dict[int, float]:
    return {entry.device: entry.rate for entry in injections.open_injections(rig.store, rig.run.id)}


def played(rig: Rig, command: CommandView) -> list[InjectionView]:
    return injections.of_command(rig.store, rig.run.id, command.id)


def now(rig: Rig, command: CommandView) -> CommandView:
    return commands.get(rig.store, command.id)


def test_entries_become_injections_when_they_are_due(rig: Rig) -> None:
    command = play(rig, *TWO)
    rig.turn()
    rig.turn(1.0)
    assert now(rig, command).status == "accepted"
    assert open_rates(rig) == {3: 2.57}
    rig.steps(2)
    assert rig.engine.rates == {3: 2.57}
    rig.turn(31.0)
    assert open_rates(rig) == {3: 2.57, 5: 5.42}
    assert now(rig, command).status == "accepted", "the engine has not applied the last one"
    rig.steps(2)
    rig.turn(1.0)
    done = now(rig, command)
    assert (done.status, done.result) == ("applied", "2 injections played")
    assert done.applied_step == played(rig, command)[-1].applied_step
    rig.turn(25.0)
    assert open_rates(rig) == {3: 2.57}, "what lasts for a time ends by itself"


def test_another_controller_goes_on_and_repeats_nothing(rig: Rig) -> None:
    command = play(rig, *TWO)
    rig.turn(1.0)
    rig.turn(1.0)
    assert len(played(rig, command)) == 1
    rig.clock.seconds += 31.0
    rig.loop = rig.new_loop()
    rig.turn(1.0)
    rig.turn(1.0)
    assert [entry.device for entry in played(rig, command)] == [3, 5]
    rig.loop = rig.new_loop()
    rig.turn(1.0)
    assert len(played(rig, command)) == 2


def test_what_was_over_while_nobody_controlled_is_not_played_late(rig: Rig) -> None:
    command = play(rig, *TWO)
    rig.turn(1.0)
    rig.turn(1.0)
    rig.clock.seconds += 100.0
    rig.loop = rig.new_loop()
    rig.turn(1.0)
    rig.steps(2)
    rig.turn(1.0)
    late = played(rig, command)[1]
    assert (late.status, late.applied_step) == ("cleared", None)
    assert now(rig, command).result == "2 injections played, 1 of them over before the engine could"


def test_a_rate_of_one_heals(rig: Rig) -> None:
    command = play(rig, TWO[0], Entry(at_s=10.0, device=3, rate=1.0))
    rig.turn(1.0)
    rig.steps(2)
    rig.turn(11.0)
    assert open_rates(rig) == {}
    assert now(rig, command).status == "accepted", "the engine is slow still"
    rig.steps(2)
    rig.turn(1.0)
    assert rig.engine.rates == {}
    assert now(rig, command).status == "applied"


def test_clearing_all_ends_what_is_to_come(rig: Rig) -> None:
    command = play(rig, *TWO)
    rig.turn(1.0)
    rig.turn(1.0)
    commands.submit(rig.store, rig.run.id, "clear", {"devices": [3]}, actor="bob", source="cli")
    rig.turn(1.0)
    assert now(rig, command).status == "accepted", "clearing one device leaves the others to come"
    commands.submit(rig.store, rig.run.id, "clear", {"devices": None}, actor="bob", source="cli")
    rig.turn(60.0)
    rig.turn(1.0)
    done = now(rig, command)
    assert done.status == "failed"
    assert done.result == "ended by bob, who cleared all injections, after 1 of 2 injections"
    assert len(played(rig, command)) == 1
    play(rig, *TWO)


def test_it_waits_until_the_run_trains(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    command = play(rig, *TWO)
    rig.turn()
    rig.engine.start()
    rig.turn(1.0)
    assert now(rig, command).status == "pending", "calibration must see healthy devices"
    rig.steps(2)
    rig.turn(1.0)
    assert now(rig, command).status == "accepted"
    rig.close()


def test_the_end_of_the_run_ends_it(rig: Rig) -> None:
    command = play(rig, *TWO)
    rig.turn(1.0)
    commands.submit(rig.store, rig.run.id, "stop", {}, actor="bob", source="cli")
    rig.turn(1.0)
    rig.steps(1)
    rig.turn(1.0)
    assert now(rig, command).status == "failed"
    assert "the run ended before" in now(rig, command).result
    assert open_rates(rig) == {}
