"""What ranks post on NCCL, and in which order: proved on random pipelines without a GPU.

The real `StageRunner` runs for every rank, one after the other, with a decoder of no weight whose
collectives and messages are only written down. Then a simulator plays the most cautious GPU there
is: every rank does what it has posted strictly one by one, and a send holds it until it is received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from db.run_config import ModelConfig
from engine import gradient_sync, pipeline
from engine.data.batch import Batch
from engine.gradient_sync import GradientSync
from engine.groups import Groups
from engine.layout import Layout, layout
from engine.links import Links
from engine.nccl_links import Message, NcclLinks
from engine.parameters import parameters
from engine.pipeline import StageRunner
from engine.schedule import holds, one_f_one_b
from engine.shard import Shard
from engine.tensor_parallel import TensorParallel
from planner.plan import Pipeline, Plan, Stage
from tests.engine.plans import random_plan

MODEL = ModelConfig(num_layers=6, hidden_size=8, num_heads=4, num_kv_heads=4, ffn_size=8, vocab_size=8, seq_len=2)
NODES = ((0, 1, 2, 3), (4, 5, 6, 7))


@dataclass(frozen=True)
class Group:
    """Messages posted together: (is_send, peer, tag) each."""

    messages: tuple[tuple[bool, int, int], ...]


@dataclass(frozen=True)
class Collective:
    ranks: tuple[int, ...]


Program = list[Group | Collective]


class NoClock:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: None


class WrittenDown(TensorParallel):
    """A TP group whose collectives are only written down."""

    def __init__(self, ranks: tuple[int, ...], rank: int, links: Links, program: Program) -> None:
        super().__init__(ranks, rank, NoClock(), links)  # type: ignore[arg-type]
        self._program = program

    def all_reduce(self, x: Tensor, combine: Any = torch.add) -> Tensor:
        if len(self.ranks) > 1:
            self._program.append(Collective(self.ranks))
        return x


class WrittenGroups(Groups):
    """Groups that note when a collective runs in one of them."""

    def __init__(self, program: Program) -> None:
        super().__init__(is_used=True)
        self._program = program

    def of(self, ranks: tuple[int, ...]) -> Any:
        return (lambda: self._program.append(Collective(ranks))) if len(ranks) > 1 else None


@pytest.fixture(autouse=True)
def _collectives_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduced(parts: Sequence[Tensor], rank: int, note: Callable[[], None] | None) -> Tensor:
        if note:
            note()
        return parts[rank]

    def gathered(own: Tensor, lengths: Sequence[int], note: Callable[[], None] | None) -> list[Tensor]:
        if note:
            note()
        return [own.new_zeros(length) for length in lengths]

    monkeypatch.setattr(gradient_sync, "reduce_scatter_in_group", reduced)
    monkeypatch.setattr(gradient_sync, "all_gather_in_group", gathered)


class Weightless:
    """A decoder with the collectives of the real one and no parameters."""

    config, dtype, torch_device = MODEL, torch.float32, torch.device("cpu")

    def embed(self, tokens: Tensor, weights: Any, tp: TensorParallel) -> Tensor:
        return tp.reduce(tokens.float()[..., None].expand(-1, -1, MODEL.hidden_size).clone().requires_grad_())

    def layer(self, x: Tensor, weights: Any, tp: TensorParallel, *rest: Any) -> Tensor:
        x = x + tp.reduce(tp.copy(x))
        return x + tp.reduce(tp.copy(x))

    def loss(self, x: Tensor, targets: Tensor, weights: Any, tp: TensorParallel) -> Tensor:
        return tp.all_reduce(tp.copy(x).sum())


class NoData:
    def evaluation_batch(self, first: int, num_sequences: int) -> Batch:
        return self.batch(first, num_sequences)

    def batch(self, first: int, num_sequences: int) -> Batch:
        tokens = torch.zeros(num_sequences, MODEL.seq_len, dtype=torch.int64)
        return Batch(inputs=tokens, targets=tokens)


class Done:
    def wait(self) -> None:
        pass


def programs(plan: Plan) -> dict[int, Program]:
    """What each rank posts in a step, its gradient sync, and the evaluation of a batch after it, in order."""
    spread = layout(plan, parameters(MODEL), 4)
    return {device: program(spread, device) for device in spread.places}


def program(spread: Layout, device: int) -> Program:
    plan, place = spread.plan, spread.places[device]
    written: Program = []

    def start(messages: Sequence[Message]) -> list[Any]:
        written.append(Group(tuple((message.is_send, message.peer, message.tag) for message in messages)))
        for message in messages:
            if not message.is_send:
                message.x.zero_()
        return [Done()]

    links, groups = NcclLinks(start), WrittenGroups(written)
    runner = StageRunner(
        plan=plan,
        place=place,
        decoder=Weightless(),  # type: ignore[arg-type]
        weights={},
        tp=WrittenDown(place.stage.devices, place.tp_rank, links, written),
        data=NoData(),  # type: ignore[arg-type]
    )
    sync = GradientSync(Shard(spread, device, torch.float32, torch.float32), links, groups)
    runner.run_step(0, 8, sync)
    sync.reduce()
    written.append(Collective(tuple(sorted(spread.places))))  # the gradient's norm
    sync.spread()
    runner.evaluate(0, 8)
    return written


def stuck(everyone: dict[int, Program]) -> dict[int, Group | Collective]:
    """Where ranks wait for ever if each does one thing after the other; empty if all come to their end."""
    at = dict.fromkeys(everyone, 0)
    undone: dict[int, list[tuple[bool, int, int]]] = {}

    def current(rank: int) -> Group | Collective | None:
        return everyone[rank][at[rank]] if at[rank] < len(everyone[rank]) else None

    def arrive(rank: int) -> None:
        now = current(rank)
        undone[rank] = list(now.messages) if isinstance(now, Group) else []

    def advance(rank: int) -> None:
        at[rank] += 1
        arrive(rank)

    def has_progressed(rank: int) -> bool:
        now = current(rank)
        if isinstance(now, Collective):
            if all(current(member) == now for member in now.ranks):
                for member in now.ranks:
                    advance(member)
                return True
            return False
        for is_send, peer, tag in undone[rank]:
            partner = next((item for item in undone[peer] if item[:2] == (not is_send, rank)), None)
            if partner:
                assert partner[2] == tag, f"{rank} and {peer} take {tag} for {partner[2]}"
                undone[rank].remove((is_send, peer, tag))
                undone[peer].remove(partner)
                for side in (rank, peer):
                    if not undone[side]:
                        advance(side)
                return True
        return False

    for rank in everyone:
        arrive(rank)
    while any(has_progressed(rank) for rank in everyone):
        pass
    return {rank: now for rank in everyone if (now := current(rank))}


def plans(count: int) -> list[Plan]:
    return [random_plan(seed, nodes=NODES, num_layers=6, num_micro_batches=8, max_tp=4) for seed in range(count)]


def chain(*groups: list[int], num_micro_batches: int) -> Plan:
    """One pipeline over the groups."""
    size = 6 // len(groups)
    stages = tuple(
        Stage(devices=tuple(group), layers=(index * size, (index + 1) * size)) for index, group in enumerate(groups)
    )
    return Plan(
        num_layers=6,
        micro_batch_size=1,
        pipelines=(Pipeline(num_micro_batches=num_micro_batches, stages=stages),),
        standby=tuple(sorted(set(range(8)) - {device for group in groups for device in group})),
    )


@pytest.mark.parametrize("plan", plans(40), ids=range(40))
def test_sends_between_two_ranks_equal_the_receives_in_order(plan: Plan) -> None:
    everyone = programs(plan)

    def between(rank: int, peer: int, is_send: bool) -> list[int]:
        groups = [step for step in everyone[rank] if isinstance(step, Group)]
        return [tag for group in groups for kind, other, tag in group.messages if (kind, other) == (is_send, peer)]

    for sender in everyone:
        for receiver in everyone:
            assert between(sender, receiver, True) == between(receiver, sender, False)


@pytest.mark.parametrize("plan", plans(40), ids=range(40))
def test_ranks_that_do_one_thing_after_the_other_come_to_their_end(plan: Plan) -> None:
    assert stuck(programs(plan)) == {}


@pytest.mark.parametrize(
    "plan",
    [
        chain([0], [1], num_micro_batches=2),
        chain([0], [1], [2], num_micro_batches=5),
        chain([0, 1, 2, 3], [4], num_micro_batches=4),  # one sender of four
        chain([4], [0, 1, 2, 3], num_micro_batches=4),  # one sender to four
        chain([0], [1, 2], [4, 5, 6, 7], num_micro_batches=8),
    ],
    ids=["two", "three", "narrowing", "widening", "growing"],
)
def test_without_joining_they_wait_in_a_circle(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stuck(programs(plan)) == {}
    monkeypatch.setattr(pipeline, "holds", lambda actions: [False] * len(actions))
    assert stuck(programs(plan))


@pytest.mark.parametrize(
    ("stage_index", "expected"),
    [
        (0, "F0 F1 F2+ B0+ F3+ B1 B2 B3"),  # a warm-up send goes at once, the filling is not delayed
        (1, "F0 F1+ B0+ F2+ B1+ F3+ B2 B3"),
        (2, "F0+ B0+ F1+ B1+ F2+ B2+ F3+ B3"),
    ],
)
def test_sends_are_held_where_the_schedule_turns(stage_index: int, expected: str) -> None:
    actions = one_f_one_b(stage_index, 3, 4)
    shown = [f"{action}{'+' if held else ''}" for action, held in zip(actions, holds(actions), strict=True)]
    assert " ".join(shown) == expected


class Kept:
    """Links that count the sends whose tensors are still kept."""

    def __init__(self) -> None:
        self.num_kept = self.most = 0

    def send(self, x: Tensor, peer: int, tag: int = 0, *, joins_next: bool = False) -> Any:
        self.num_kept += 1
        self.most = max(self.most, self.num_kept)
        return self

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Any:
        return Arrived(out.zero_())

    def wait(self) -> None:
        self.num_kept -= 1

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Arrived:
    x: Tensor

    def wait(self) -> Tensor:
        return self.x


def test_sent_tensors_are_let_go_as_the_step_goes_on() -> None:
    plan = chain([0], [1], [2], num_micro_batches=50)
    for device, place in layout(plan, parameters(MODEL), 4).places.items():
        links = Kept()
        runner = StageRunner(
            plan=plan,
            place=place,
            decoder=Weightless(),  # type: ignore[arg-type]
            weights={},
            tp=WrittenDown((device,), 0, links, []),
            data=NoData(),  # type: ignore[arg-type]
        )
        runner.run_step(0, 8)
        assert 0 < links.most <= 2 * (3 + 2)
        runner.evaluate(0, 8)
        assert links.num_kept == 0


def test_a_held_send_that_nothing_follows_is_an_error() -> None:
    sending = NcclLinks(lambda messages: []).send(torch.zeros(1), 1, joins_next=True)
    with pytest.raises(AssertionError, match="no receive came"):
        sending.wait()


def test_a_receive_that_is_posted_ahead_holds_nothing_up() -> None:
    started: list[list[tuple[bool, int, int]]] = []

    def start(messages: Sequence[Message]) -> list[Any]:
        started.append([(message.is_send, message.peer, message.tag) for message in messages])
        return []

    links = NcclLinks(start)
    ahead = links.post(torch.zeros(1), 2, tag=5)
    links.send(torch.zeros(1), 1, tag=3)
    held = links.send(torch.zeros(1), 1, tag=4, joins_next=True)
    assert started == [[(True, 1, 3)]]
    ahead.wait()
    held.wait()
    assert started == [[(True, 1, 3)], [(True, 1, 4), (False, 2, 5)]]


def test_a_group_is_waited_for_once_by_all_its_messages() -> None:
    class Once:
        def __init__(self) -> None:
            self.num_waits = 0

        def wait(self) -> None:
            self.num_waits += 1

    works = [Once(), Once()]
    links = NcclLinks(lambda messages: works)  # type: ignore[arg-type,return-value]
    held = links.send(torch.zeros(1), 1, joins_next=True)
    links.post(torch.zeros(1), 1).wait()
    held.wait()
    held.wait()
    assert [work.num_waits for work in works] == [1, 1]
