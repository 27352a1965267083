"""Errors of the engine.

ValueError
└── EngineError
    ├── ConfigError      configuration, data source or world size do not fit together
    ├── LayoutError      a plan cannot be laid out on this model
    └── CheckpointError  saved state is missing, damaged or of another model

RuntimeError
└── MigrationError       state was damaged on the way to a new plan and on the way back
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


class MigrationError(RuntimeError):
    """State could be brought neither to the new layout nor back: the run must start from a checkpoint."""
