"""How to start the dashboard's server: command line and environment, for whoever runs the processes.

Look and behaviour come from `.streamlit/config.toml` beside the script, which Streamlit reads by
itself; only what depends on the installation is given here. Starts nothing, but writes the sign-in's settings
down where they are given in the environment (see `login_settings`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from app.dashboard import login_settings
from db.settings import Settings

SCRIPT = Path(__file__).with_name("main.py")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEALTH_PATH = "/_stcore/health"
"""Answers 200 once the server is up."""


def command(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """The command that serves the dashboard, and its environment.

    Args:
        environ: what to inherit; the process's own by default. `STREAMLIT_*` of the person's shell is
            left out, since it would override the dashboard's own settings.

    Raises:
        InputError: the sign-in is configured by half.
    """
    inherited = os.environ if environ is None else environ
    environment = {
        name: value
        for name, value in login_settings.without_secrets(inherited).items()
        if not name.startswith("STREAMLIT_")
    }
    environment |= {"MALLEUS_HOME": str(settings.home), "MALLEUS_DATABASE_URL": settings.database_url}
    argv = [
        *(sys.executable, "-m", "streamlit", "run", str(SCRIPT)),
        f"--server.address={settings.host}",
        f"--server.port={settings.port}",
        *(f"--secrets.files={path}" for path in login_settings.secrets_files(settings, inherited)),
    ]
    if settings.host in LOOPBACK:  # a name that was made to point here (DNS rebinding) is refused
        argv += [f"--server.allowedHosts={host}" for host in LOOPBACK]
    return argv, environment
