"""The division as an integer program, against every division there is."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from planner.kinds import Instance
from planner.program import TOLERANCE, DivisionProgram
from planner.spec import ModelProfile

LAYERS, MICRO_BATCHES = 8, 10


def instance(layer_bytes: float = 1.0) -> Instance:
    degrees = (1, 2, 4)
    return Instance(
        ModelProfile(
            num_layers=LAYERS,
            compute_s={1: {n: 0.04 / n for n in degrees}},
            comm_s={1: {1: 0.0, 2: 0.002, 4: 0.003}},
            forward_share=1 / 3,
            embed_s={1: dict.fromkeys(degrees, 0.0)},
            head_s={1: dict.fromkeys(degrees, 0.0)},
            send_s=0.0,
            sync_s=0.01,
            max_tp=4,
            layer_bytes={1: (layer_bytes,) * 8},
            first_extra_bytes=0.0,
            last_extra_bytes=0.0,
            reserve_bytes=0.0,
        ),
        micro_batch_size=1,
        num_micro_batches=MICRO_BATCHES,
    )


def divisions(kinds: tuple[int, ...], parts: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to put the groups into so many pipelines, none empty."""
    for number in range(parts ** len(kinds)):
        division: list[list[int]] = [[] for _ in range(parts)]
        for kind in kinds:
            number, place = divmod(number, parts)
            division[place].append(kind)
        if all(division):
            yield [tuple(part) for part in division]


def balanced_s(of: Instance, division: list[tuple[int, ...]]) -> float:
    """Smallest step time of a division by the program's own measure: balanced pipelines with their bubble."""
    slot_s = [LAYERS / sum(1 / of.kinds[kind].layer_s for kind in kinds) for kinds in division]
    counts = [len(kinds) for kinds in division]
    if sum(counts) > MICRO_BATCHES:
        return math.inf
    for _ in range(MICRO_BATCHES - sum(counts)):
        place = min(range(len(counts)), key=lambda p: (counts[p] + len(division[p])) * slot_s[p])
        counts[place] += 1
    return of.sync_s + max(
        (count + len(kinds) - 1) * slot for count, kinds, slot in zip(counts, division, slot_s, strict=True)
    )


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_best_of_all_divisions(seed: int) -> None:
    rng = random.Random(seed)
    of = instance()
    kinds = tuple(
        sorted(
            of.kind(rng.choice([1, 2, 4]), rng.choice([1.0, 1.0, 2.57, 5.42]), 100.0) for _ in range(rng.randint(2, 6))
        )
    )
    parts = rng.randint(1, min(3, len(kinds)))
    expected = min(balanced_s(of, division) for division in divisions(kinds, parts))
    found = DivisionProgram(of, {kind: kinds.count(kind) for kind in set(kinds)}, parts).solve()
    assert found is not None
    step_s, division = found
    assert sorted(kind for part in division for kind in part) == list(kinds)
    assert expected * (1 - 1e-9) <= step_s <= expected * (1 + 2 * TOLERANCE)
    assert balanced_s(of, division) <= step_s * (1 + 1e-9)


def test_more_pipelines_than_groups_have_no_division() -> None:
    of = instance()
    assert DivisionProgram(of, {of.kind(2, 1.0, 100.0): 2}, 3).solve() is None


def test_a_pipeline_must_be_able_to_hold_the_model() -> None:
    of = instance(layer_bytes=10.0)
    small = of.kind(4, 1.0, 45.0)  # four layers each: a pipeline needs two of them
    assert DivisionProgram(of, {small: 3}, 2).solve() is None
    found = DivisionProgram(of, {small: 4}, 2).solve()
    assert found is not None
    assert sorted(map(len, found[1])) == [2, 2]


def test_more_groups_than_micro_batches_are_refused() -> None:
    of = instance()
    assert DivisionProgram(of, {of.kind(1, 1.0, 100.0): MICRO_BATCHES + 1}, 1).solve() is None


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    of = instance()
    assert DivisionProgram(of, {of.kind(2, 1.0, 100.0): 4}, 2).solve() is not None
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_program_can_be_written_and_read() -> None:
    of = instance()
    problem, _, _ = DivisionProgram(of, {of.kind(2, 1.0, 100.0): 4}, 2).problem(1.0)
    text = str(problem)
    assert "all_micro_batches" in text
    assert "in_time_1" in text
