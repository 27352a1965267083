"""Errors of the planner.

ValueError
└── PlannerError
    ├── PlanError        a plan document breaks a rule (carries every violated rule)
    └── SpecError        a cluster, profile or train spec is malformed
"""

from __future__ import annotations

from collections.abc import Sequence


class PlannerError(ValueError):
    """Base of everything the planner raises for its caller's input."""


class PlanError(PlannerError):
    """A plan document breaks one or more rules.

    Args:
        violations: one sentence a rule, each with the expected and the given value.
    """

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("plan refused: " + "; ".join(violations))
        self.violations = tuple(violations)


class SpecError(PlannerError):
    """A cluster, profile or train spec is malformed."""
