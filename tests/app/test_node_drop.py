"""What leaving nodes out comes to."""

from __future__ import annotations

import pytest

from app.local.trainer import first_plan
from app.node_drop import reduced, remaining
from app.situations import rates
from db.run_config import RunConfig
from planner.plan import Plan
from tests.app.scripted_engine import profile

CONFIG = RunConfig()
FOUR_NODES = RunConfig.model_validate(
    {"cluster": {"num_nodes": 4}, "train": {"global_batch": 32}, "parallel": {"dp": 4, "max_dp": 8}}
)


@pytest.mark.parametrize(
    ("config", "slow", "nodes"),
    [
        (CONFIG, {}, (0, 1)),
        (CONFIG, {3: 2.57}, (1,)),  # half the devices beat 2.57x on the critical path
        (CONFIG, {7: 2.57}, (0,)),
        (CONFIG, {3: 1.3}, (0, 1)),  # half the devices do not beat that
        (CONFIG, {3: 2.57, 7: 12.0}, (0,)),  # a slow device that stays is better than a slower one
        (FOUR_NODES, {3: 2.57}, (1, 2, 3)),
        (FOUR_NODES, rates("S3", FOUR_NODES.nodes), (2, 3)),
        (FOUR_NODES, rates("S6", FOUR_NODES.nodes), (2, 3)),
    ],
)
def test_which_nodes_stay(config: RunConfig, slow: dict[int, float], nodes: tuple[int, ...]) -> None:
    stays = remaining(config, profile(config), slow)
    assert stays.nodes == nodes
    assert stays.devices == tuple(device for index in nodes for device in config.nodes[index])
    assert stays.dp * stays.tp * stays.pp == len(stays.devices)
    assert config.train.global_batch % stays.dp == 0


def test_nothing_left_out_keeps_the_plan_that_runs() -> None:
    stays = remaining(CONFIG, profile(CONFIG), {})
    assert (stays.dp, stays.tp, stays.pp) == (CONFIG.parallel.dp, CONFIG.parallel.tp, CONFIG.parallel.pp)


def test_the_restarted_run() -> None:
    slow = {3: 2.57, 7: 12.0, 1: 1.5}
    stays = remaining(CONFIG, profile(CONFIG), slow)
    config = reduced(CONFIG, stays, start_from="/saved/12")
    assert config.num_devices == 4
    assert config.checkpoint.start_from == "/saved/12"
    assert config.train == CONFIG.train
    assert len(Plan.from_json(first_plan(config)).active) == 4
    assert stays.local(slow) == {3: 2.57, 1: 1.5}
    other = remaining(CONFIG, profile(CONFIG), {3: 12.0, 7: 2.57})
    assert other.local({3: 12.0, 7: 2.57}) == {3: 2.57}  # device 7 is the fourth of those that stay
