"""Which versions run in this process, for the beats of the services. Imports nothing that it names."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGE = "malleus"


def installed(package: str) -> str:
    """The version of an installed distribution; `unknown` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def of_this_process() -> dict[str, str]:
    """Versions of this package and of Python."""
    return {"package": installed(PACKAGE), "python": platform.python_version()}
