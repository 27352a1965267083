"""The 1F1B schedule as data: what one stage does, in which order, and who sends to whom.

Printable and testable without processes; `engine.pipeline` executes it in a dumb loop. Unequal
stage counts and micro-batch counts need nothing special: each pipeline has its own schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Action:
    """Forward ("F") or backward ("B") of one micro-batch on one stage."""

    kind: Literal["F", "B"]
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


def one_f_one_b(stage_index: int, num_stages: int, num_micro_batches: int) -> tuple[Action, ...]:
    """The actions of one stage: warm-up forwards, alternating, cool-down backwards.

    Stage j of S keeps at most `min(m, S - j)` micro-batches in flight.
    Source: PipeDream-Flush / Megatron-LM "1F1B" (Narayanan et al., SC 2021, section 2.2).

    Raises:
        ValueError: fewer micro-batches than stages, or a stage index outside the pipeline.
    """
    if not 0 <= stage_index < num_stages:
        raise ValueError(f"stage_index must be in 0..{num_stages - 1}, given {stage_index}")
    if num_micro_batches < num_stages:
        raise ValueError(f"a pipeline of {num_stages} stages needs as many micro-batches, given {num_micro_batches}")
    warm_up = num_stages - stage_index - 1
    actions = [Action("F", index) for index in range(warm_up)]
    for index in range(num_micro_batches - warm_up):
        actions += [Action("F", warm_up + index), Action("B", index)]
    actions += [Action("B", index) for index in range(num_micro_batches - warm_up, num_micro_batches)]
    return tuple(actions)


def forward_only(num_micro_batches: int) -> tuple[Action, ...]:
    """The actions of every stage in an evaluation: nothing is in flight, so there is nothing to alternate."""
    return tuple(Action("F", index) for index in range(num_micro_batches))


def holds(actions: Sequence[Action]) -> tuple[bool, ...]:
    """For each action whether what it sends may leave together with what the next action receives.

    True where the kind changes: after a forward whose successor is a backward the send goes to the
    next stage and the receive comes from it, after a backward before a forward both concern the
    previous one. Each held send is therefore followed by a receive.
    """
    return tuple(
        index + 1 < len(actions) and actions[index + 1].kind != action.kind for index, action in enumerate(actions)
    )


def show(actions: tuple[Action, ...]) -> str:
    """`F0 F1 B0 ...`, the inverse of `parse`."""
    return " ".join(str(action) for action in actions)


def parse(text: str) -> tuple[Action, ...]:
    """Reads what `show` printed.

    Raises:
        ValueError: a word is not F or B followed by a number.
    """
    actions = []
    for word in text.split():
        if word[0] not in "FB" or not word[1:].isdigit():
            raise ValueError(f"an action is F or B and a micro-batch number, given {word!r}")
        actions.append(Action("F" if word[0] == "F" else "B", int(word[1:])))
    return tuple(actions)


def sender_of(receiver_index: int, num_receivers: int, num_senders: int) -> int:
    """Which member of the sending group serves a member of the receiving group.

    All members of a group hold the same boundary tensor, so each receiver needs exactly one sender;
    receivers are spread evenly over the senders.
    """
    return receiver_index * num_senders // num_receivers


def receivers_of(sender_index: int, num_senders: int, num_receivers: int) -> tuple[int, ...]:
    """The members of the receiving group that a member of the sending group serves (may be none)."""
    return tuple(
        index for index in range(num_receivers) if sender_of(index, num_receivers, num_senders) == sender_index
    )
