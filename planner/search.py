"""The whole search: small clusters exhaustively, larger ones by division and local search.

`planner.solve` calls it and turns its drafts into checked plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from planner.arrange import Arranger
from planner.draft import Draft
from planner.exhaust import exhaust
from planner.groups import groupings
from planner.problem import Problem, folded
from planner.wide import wide_drafts

EXHAUSTIVE_DEVICES = 8  # up to here every combination of groupings is looked at
FOLD = 0.02  # rates closer than this are made equal in the first, coarse pass
_FINE_WORK = 150  # arrangements climbed or tabulated in the second pass, with true rates


def find_drafts(
    problem: Problem,
    *,
    limit_s: float,
    seed: int,
    is_over: Callable[[], bool],
    log: list[str],
    is_brief: bool = False,
) -> Iterator[Draft]:
    """Drafts that beat `limit_s`, each faster than those before it.

    Args:
        seed: of the random part of the search.
        is_over: asked now and then; True ends the search.
        log: receives a line for each part of the search.
        is_brief: with less effort; for problems that are easy, such as a healthy cluster.
    """
    coarse = folded(problem, FOLD)
    if problem.num_live > EXHAUSTIVE_DEVICES:
        yield from wide_drafts(coarse, limit_s=limit_s, seed=seed, is_over=is_over, log=log, is_brief=is_brief)
        return
    passes = [(problem, math.inf)] if coarse.nodes == problem.nodes else [(coarse, math.inf), (problem, _FINE_WORK)]
    for number, (current, max_work) in enumerate(passes):
        for instance, sizes in zip(current.instances, current.group_sizes, strict=True):
            # Kinds are numbered as they are met, and numbers break ties: so they are met in an order without labels.
            options = {node: groupings(instance, node, sizes) for node in sorted(set(current.nodes))}
            nodes = [options[node] for node in current.nodes]
            arranger = Arranger(instance)
            work = arranger.work

            def stop(arranger: Arranger = arranger, most: float = work + max_work) -> bool:
                return arranger.work > most or is_over()

            drafts = exhaust(
                arranger,
                nodes,
                dp_range=current.dp_range,
                limit_s=limit_s,
                is_over=stop,
                is_programmed=number == 0 and not is_brief,
            )
            for draft in drafts:
                limit_s = draft.step_s
                yield draft
            rates = "rates" if number == len(passes) - 1 else f"rates within {FOLD:.0%} made equal"
            log.append(f"b {instance.micro_batch_size}, {rates}: best {limit_s:.6g} s")


def has_plan(problem: Problem, is_over: Callable[[], bool]) -> bool:
    """Whether any plan fits."""
    drafts = find_drafts(problem, limit_s=math.inf, seed=0, is_over=is_over, log=[], is_brief=True)
    return next(drafts, None) is not None
