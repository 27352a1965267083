"""Errors of the engine.

ValueError
└── EngineError
    ├── ConfigError      configuration, data source or world size do not fit together
    └── LayoutError      a plan cannot be laid out on this model
"""

from __future__ import annotations


class EngineError(ValueError):
    """Base of everything the engine raises for its caller's input."""


class ConfigError(EngineError):
    """Configuration, data source or world size do not fit together."""


class LayoutError(EngineError):
    """A plan cannot be laid out on this model."""
