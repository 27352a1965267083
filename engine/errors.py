"""Errors of the engine.

ValueError
└── EngineError
    ├── ConfigError      configuration, data source or world size do not fit together
    ├── LayoutError      a plan cannot be laid out on this model
    └── CheckpointError  saved state is missing, damaged or of another model
"""

from __future__ import annotations


class EngineError(ValueError):
    """Base of everything the engine raises for its caller's input."""


class ConfigError(EngineError):
    """Configuration, data source or world size do not fit together."""


class LayoutError(EngineError):
    """A plan cannot be laid out on this model."""


class CheckpointError(EngineError):
    """Saved state (a checkpoint or a folder of Hugging Face) is missing, damaged or of another model."""
