"""Takes a rank's tensors over from one shard to another, round by round.

In each round: allocate the new spans and post their sends and receives; wait; post the next round; unpack and
copy; digest what was taken over and sum the digests over all ranks, which goes on beside the next round; release
what was replaced once they are right. A wrong digest stops it with both sides of the last rounds still there,
and the same walk the other way round brings the old shard back.

Spans that stay as they are change hands without a copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.digest import span_digests
from engine.layout import Span
from engine.rounds import Round, Unit
from engine.shard import Shard
from engine.shipment import Shipment
from engine.transfers import Transfer

Arrivals = Mapping[str, Mapping[int, Sequence[Transfer]]]


class Mover:
    """One rank's part of a migration.

    Args:
        source: gives its tensors away, span by span; hollow in the end.
        target: receives them; hollow in the beginning.
        arrivals: transfers by tensor name and parameter, the same on all ranks.
        primary: the target's weights of which this rank is the first holder.
        num_copies: holders of each parameter's weights in the target's layout.
        expected: digests by tensor name (row as in `Shard.tensors`) and parameter.

    Attributes:
        found: digests of what has arrived, by tensor (row) and parameter.
        damaged: tensors and parameters that arrived wrong.
        verify_s: seconds spent in digests.
    """

    def __init__(
        self,
        source: Shard,
        target: Shard,
        *,
        arrivals: Arrivals,
        primary: frozenset[Span],
        num_copies: Sequence[int],
        expected: Tensor,
    ) -> None:
        self._from, self._to = source.tensors(), target.tensors()
        self._row = {name: row for row, name in enumerate(self._to)}
        self._device, self._arrivals = source.device, arrivals
        self._parameters = target.layout.parameters
        self._primary, self._num_copies, self._expected = primary, num_copies, expected
        self.found = torch.zeros_like(expected)
        self.damaged: list[str] = []
        self.verify_s = 0.0

    def run(self, rounds: Sequence[Round], on_round: Callable[[int], None] = lambda done: None) -> int:
        """Takes the rounds over, one after the other.

        Args:
            on_round: is told how many rounds have arrived.

        Returns:
            How many rounds are verified and released. If not all are, the target holds nothing of
            the rest and the source still has it.

        Collective: all ranks of the world, with equal rounds.
        """
        shipment = self._begin(rounds[0]) if rounds else None
        checked: _Check | None = None
        for number, turn in enumerate(rounds):
            assert shipment is not None
            shipment.wait()
            if checked and not self._settle(checked):
                return self._give_up(rounds, number - 1, number)
            upcoming = rounds[number + 1] if number + 1 < len(rounds) else None
            following = self._begin(upcoming) if upcoming and not upcoming.is_alone else None
            shipment.deliver()
            self._copy(turn)
            checked = self._check(turn)
            on_round(number + 1)
            if upcoming and following is None:
                if not self._settle(checked):
                    return self._give_up(rounds, number, number)
                checked, following = None, self._begin(upcoming)
            shipment = following
        if checked and not self._settle(checked):
            return self._give_up(rounds, len(rounds) - 1, len(rounds) - 1)
        return len(rounds)

    def _begin(self, turn: Round) -> Shipment:
        for unit in turn.units:
            source, target = self._from[unit.store], self._to[unit.store]
            for span in target.spans_of(unit.parameter):
                if source.has(span):
                    target.put(span, source.view(span))
                else:
                    target.allocate(span)
        shipment = Shipment(self._device)
        for unit in turn.units:
            shipment.add(self._moves(unit), self._from[unit.store], self._to[unit.store], is_packed=turn.is_packed)
        shipment.post()
        return shipment

    def _copy(self, turn: Round) -> None:
        for unit in turn.units:
            source, target = self._from[unit.store], self._to[unit.store]
            for move in self._moves(unit):
                is_kept = source.has(move.span) and target.has(move.span)
                if move.source == move.target == self._device and not is_kept:
                    target.view(move.span).copy_(source.view(move.span))

    def _moves(self, unit: Unit) -> Sequence[Transfer]:
        return self._arrivals[unit.store].get(unit.parameter, ())

    def _check(self, turn: Round) -> _Check:
        """Starts the sum over all ranks of the digests of a round: all copies, and the first copy."""
        started = time.perf_counter()
        sums = torch.zeros(2, len(turn.units), dtype=torch.int64)
        for name, target in self._to.items():
            rows = [
                (index, span)
                for index, unit in enumerate(turn.units)
                if unit.store == name
                for span in target.spans_of(unit.parameter)
            ]
            if not rows:
                continue
            parts = span_digests([(span, target.view(span)) for _, span in rows])
            indices = torch.tensor([index for index, _ in rows])
            first = torch.tensor([name != "weight" or span in self._primary for _, span in rows])
            sums[0].index_add_(0, indices, parts)
            sums[1].index_add_(0, indices, parts * first)
        work = dist.all_reduce(sums, async_op=True)
        self.verify_s += time.perf_counter() - started
        return _Check(turn=turn, sums=sums, work=work)

    def _settle(self, check: _Check) -> bool:
        """Whether the round's digests are right; then what it replaced is released. Equal on all ranks."""
        started = time.perf_counter()
        check.work.wait()
        units = check.turn.units
        rows = torch.tensor([self._row[unit.store] for unit in units])
        columns = torch.tensor([unit.parameter for unit in units])
        copies = torch.tensor([self._num_copies[unit.parameter] if unit.store == "weight" else 1 for unit in units])
        self.found[rows, columns] = check.sums[1]
        is_right = (check.sums[1] == self._expected[rows, columns]) & (check.sums[0] == check.sums[1] * copies)
        names = [self._parameters[unit.parameter].name for unit in units]
        self.damaged = [
            f"{unit.store} of {name}"
            for unit, name, right in zip(units, names, is_right.tolist(), strict=True)
            if not right
        ]
        if not self.damaged:
            for unit in units:
                for span in self._from[unit.store].spans_of(unit.parameter):
                    self._from[unit.store].release(span)
        self.verify_s += time.perf_counter() - started
        return not self.damaged

    def _give_up(self, rounds: Sequence[Round], first: int, last: int) -> int:
        for turn in rounds[first : last + 1]:
            for unit in turn.units:
                for span in self._to[unit.store].spans_of(unit.parameter):
                    self._to[unit.store].release(span)
        return first


@dataclass(slots=True, kw_only=True)
class _Check:
    turn: Round
    sums: Tensor
    work: dist.Work
