"""How the dashboard is started, and that the framework knows every setting it is given."""

from __future__ import annotations

import tomllib
from pathlib import Path

from streamlit import config

from app.dashboard import assets
from app.dashboard.launch import SCRIPT, command
from db.settings import Settings

CONFIG = SCRIPT.parent / ".streamlit" / "config.toml"


def test_command_names_the_script_and_the_address(tmp_path: Path) -> None:
    environ = {
        "MALLEUS_HOME": str(tmp_path),
        "MALLEUS_PORT": "9000",
        "PATH": "/bin",
        "STREAMLIT_SERVER_ADDRESS": "0.0.0.0",
    }
    argv, environment = command(Settings.from_env(environ), environ)
    assert str(SCRIPT) in argv
    assert {"--server.address=127.0.0.1", "--server.port=9000", "--server.allowedHosts=localhost"} <= set(argv)
    opened, _ = command(Settings.from_env(environ | {"MALLEUS_HOST": "0.0.0.0"}), environ)
    assert not any("allowedHosts" in option for option in opened)
    assert environment["MALLEUS_HOME"] == str(tmp_path)
    assert environment["MALLEUS_DATABASE_URL"].startswith("sqlite:///")
    assert environment["PATH"] == "/bin"
    assert "STREAMLIT_SERVER_ADDRESS" not in environment, "a person's shell does not open the dashboard to the network"


def test_the_framework_knows_every_setting() -> None:
    def names(table: dict[str, object], prefix: str = "") -> list[str]:
        found: list[str] = []
        for name, value in table.items():
            found += names(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
        return found

    known = set(config.get_config_options())
    settings = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    assert [name for name in names(settings) if name not in known] == []
    assert settings["server"]["address"] == "127.0.0.1"
    assert settings["server"]["enableXsrfProtection"] is True
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["client"]["toolbarMode"] == "minimal"


def test_assets_are_there_and_their_addresses_follow_their_content() -> None:
    for name in ("picture.js", "plot.js", "visibility.js"):
        assert assets.static_url(name).startswith("component/app.dashboard.assets.static/")
        assert assets.static_url(name) in assets.loader(name)
    assert (assets.plotly_folder() / assets.PLOTLY_FILE).stat().st_size > 1_000_000
    for path in assets.STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
