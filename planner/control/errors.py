"""Errors of the controller.

RuntimeError
└── LeaseError       another controller acts for this store
"""

from __future__ import annotations


class LeaseError(RuntimeError):
    """Another controller acts for this store; the message names it."""
