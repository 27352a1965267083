"""Errors of the store and the channels.

Exception
├── ValueError
│   └── InputError           a person's input is wrong (run, device, rate, config, command)
│       └── ConfigError      a run's configuration is wrong, by field
└── RuntimeError
    ├── StoreError           the database cannot be reached or has another schema
    ├── BusError             the broker cannot be reached
    └── TransitionError      a status change that the table does not allow
"""

from __future__ import annotations


class InputError(ValueError):
    """A person's input is wrong; the message says what was expected and what was given."""


class ConfigError(InputError):
    """A run's configuration is wrong.

    Attributes:
        problems: field (`train.num_steps`; empty where fields do not fit together) and what is wrong with it.
    """

    def __init__(self, message: str, *, problems: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.problems = problems


class StoreError(RuntimeError):
    """The database cannot be reached or is not of this version."""


class BusError(RuntimeError):
    """The broker cannot be reached."""


class TransitionError(RuntimeError):
    """A status change that the table's owner does not allow."""
