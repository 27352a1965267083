"""Sketches are close to the exact arrangement, and exact once they were corrected."""

from __future__ import annotations

import math
from random import Random

import pytest

from planner.arrange import Arranger
from planner.kinds import Instance
from planner.presets import model
from planner.sketch import Sketch, Sketcher
from tests.planner.cases import tiny_profile


def test_most_pipelines_are_within_a_few_percent_of_exact() -> None:
    profile, _ = model("demo")
    draw = Random(0)
    instance = Instance(profile, micro_batch_size=1, num_micro_batches=16, rates=[1.0] * 8)
    arranger = Arranger(instance)
    errors = []
    for _ in range(60):
        groups = [(draw.choice([1, 2, 4]), draw.choice([1.0, 1.0, 1.5, 2.57])) for _ in range(draw.randint(1, 4))]
        kinds = tuple(sorted(instance.kind(size, rate, 1e9) for size, rate in groups))
        sketch = Sketch(instance, kinds)
        count = instance.typical_count(sketch.speed, sketch.depth)
        errors.append(abs(sketch.seconds(count) / arranger.best(kinds, count).seconds - 1))
    errors.sort()
    assert errors[len(errors) // 2] < 0.02
    assert errors[int(len(errors) * 0.9)] < 0.1


def test_most_is_the_inverse_of_seconds() -> None:
    instance = Instance(tiny_profile(send_s=0.1), micro_batch_size=1, num_micro_batches=20)
    sketch = Sketch(instance, (instance.kind(1, 1.0, 100.0), instance.kind(2, 1.5, 100.0)))
    for count in range(2, 20):
        assert sketch.most(sketch.seconds(count)) == pytest.approx(count)
    assert sketch.seconds(1) == math.inf, "fewer micro-batches than stages"
    assert sketch.most(sketch.seconds(2) * 0.9) == 0.0


def test_what_does_not_fit_is_known_to_take_forever() -> None:
    instance = Instance(tiny_profile(memory_table=(5.0,) * 4), micro_batch_size=1, num_micro_batches=20)
    sketch = Sketch(instance, (instance.kind(1, 1.0, 100.0),))
    assert sketch.seconds(5) == math.inf
    assert sketch.most(1e9) == 0.0
    assert 0 < sketch.room < 1, "5 of 6 layers fit"


def test_corrections_are_remembered() -> None:
    instance = Instance(tiny_profile(), micro_batch_size=1, num_micro_batches=20)
    sketcher = Sketcher(instance)
    kinds = (instance.kind(1, 1.0, 100.0), instance.kind(1, 1.0, 100.0))
    sketcher.of(kinds).correct(6, 25.0)
    assert sketcher.of(kinds).seconds(6) == pytest.approx(25.0)
    assert [known for known, _ in sketcher.known()] == [kinds]
    sketcher.of(kinds).correct(6, math.inf)
    assert sketcher.of(kinds).seconds(6) == math.inf
    assert list(sketcher.known()) == []
