"""Errors of the command line and the local processes.

    RuntimeError
    ├── LocalError      a local process did not start, or ended for good
    └── CommandError    a command that was submitted failed, or nobody took it up in time

A person's wrong input is `db.errors.InputError`, as everywhere.
"""

from __future__ import annotations


class LocalError(RuntimeError):
    """A local process did not start, or ended for good; the message names it and its log."""


class CommandError(RuntimeError):
    """A submitted command failed or was not answered in time; the message says why."""
