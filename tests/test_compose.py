"""docker-compose.yml and deploy/Dockerfile, read without a Docker engine.

What can be known from the files is checked here: services wait for what they need, nobody runs as
root, only the dashboard is published and only on loopback, no secret is written down, and every
command is one that this project has. That images build and containers start is not tested here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from app.dashboard import launch
from app.local import commands as local_commands
from db import heartbeats
from db.run_config import RunConfig
from db.settings import Settings
from db.store import Store

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
LASTING = [name for name in SERVICES if name != "migrate"]
ENV_EXAMPLE = (ROOT / "deploy" / ".env.example").read_text(encoding="utf-8")

every_service = pytest.mark.parametrize("name", list(SERVICES))
every_service_of_ours = pytest.mark.parametrize("name", OURS)


def test_the_whole_system_is_there() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "worker", "controller", "dashboard", "trainer"}
    assert set(OURS) == set(SERVICES) - {"postgres", "redis"}


@pytest.mark.parametrize("name", LASTING)
def test_a_lasting_service_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert set(check) == {"test", "interval", "timeout", "retries", "start_period"}
    assert check["test"][0] in ("CMD", "CMD-SHELL")


@every_service
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    waits_for = service.get("depends_on", {})
    for other, how in waits_for.items():
        expected = "service_completed_successfully" if other == "migrate" else "service_healthy"
        assert how == {"condition": expected}, f"{name} waits for {other}"
    environment = service.get("environment", {})
    assert ("MALLEUS_DATABASE_URL" in environment) <= ("postgres" in waits_for)
    assert ("MALLEUS_REDIS_URL" in environment) <= ("redis" in waits_for)
    if name in OURS and name != "migrate":
        assert "migrate" in waits_for


@every_service
def test_nobody_is_root_or_can_become_it(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] not in ("root", "0", "0:0")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


@every_service
def test_only_the_dashboard_is_published_and_only_on_loopback(name: str) -> None:
    ports = SERVICES[name].get("ports", [])
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
    assert bool(ports) == (name == "dashboard")
    assert SERVICES[name].get("network_mode") is None


def test_each_service_is_on_the_networks_of_its_channels_only() -> None:
    """The dashboard reads SQL and cannot reach the broker; store and broker reach nothing outside."""
    networks = COMPOSE["networks"]
    assert networks["store"] == {"internal": True}
    assert networks["broker"] == {"internal": True}
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        assert ("store" in service["networks"]) == (name == "postgres" or "MALLEUS_DATABASE_URL" in environment)
        assert ("broker" in service["networks"]) == (name == "redis" or "MALLEUS_REDIS_URL" in environment)
        assert ("front" in service["networks"]) == (name == "dashboard")
        assert set(service["networks"]) <= set(networks)


def test_volumes_are_named_and_declared() -> None:
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, target = volume.rpartition(":") if not volume.endswith(":ro") else volume[:-3].rpartition(":")
            if source.startswith("${"):
                assert volume.endswith(":ro"), f"a file of the host is mounted read-only, given {volume}"
                continue
            assert target.startswith("/")
            used.add(source)
    assert used == set(COMPOSE["volumes"])


@every_service
def test_no_secret_is_written_down(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"PASSWORD|TOKEN|SECRET", variable):
            assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{variable} of {name}"
        password = re.search(r"://[^/:]*:(?P<password>.+)@", value)
        if password:
            assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", password["password"]), f"{variable} of {name}"


def test_the_example_names_every_variable_and_holds_no_value() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    required = set(re.findall(r"\$\{(\w+):\?", text))
    optional = set(re.findall(r"\$\{(\w+):-", text))
    assert set(re.findall(r"^(\w+)=$", ENV_EXAMPLE, re.MULTILINE)) == required
    assert set(re.findall(r"^#(\w+)=\S+$", ENV_EXAMPLE, re.MULTILINE)) == optional
    assert not re.findall(r"^\w+=\S+", ENV_EXAMPLE, re.MULTILINE)


def test_the_file_with_the_secrets_is_ignored() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert "env" not in "".join(_image_sources())


@every_service
def test_images_are_named_with_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].partition(":")
    assert re.match(r"\d", tag)


@every_service_of_ours
def test_the_environment_is_one_that_the_settings_understand(name: str) -> None:
    settings = Settings.from_env(_interpolated(SERVICES[name].get("environment", {})))
    assert settings.database_url == "postgresql://malleus:secret@postgres:5432/malleus"
    assert settings.redis_url in (None, "redis://:secret@redis:6379/0")


@every_service_of_ours
def test_the_command_is_one_that_this_project_has(name: str) -> None:
    _check_command(SERVICES[name]["command"])


@pytest.mark.parametrize("name", ["worker", "controller", "dashboard"])
def test_the_command_is_that_of_one_machine(name: str) -> None:
    """The same program with the same options as `malleus up` starts, but for files in the data folder."""
    settings = Settings.from_env({"MALLEUS_HOST": "0.0.0.0", "MALLEUS_PORT": "8501"})
    local = {
        "worker": local_commands.worker(settings).argv,
        "controller": local_commands.controller(settings).argv,
        "dashboard": launch.command(settings)[0],
    }[name]
    words = [word.replace(f"{ROOT}/", "") for word in local[1:] if not word.startswith("--secrets.files=")]
    assert SERVICES[name]["command"] == ["python", *words]


@pytest.mark.parametrize("name", [name for name in OURS if name != "migrate"])
def test_the_health_check_is_a_command_that_this_project_has(name: str) -> None:
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    _check_command(shlex.split(words[0]) if kind == "CMD-SHELL" else words)


def test_the_trainer_gets_a_valid_run() -> None:
    mount = next(volume for volume in SERVICES["trainer"]["volumes"] if "run.toml" in volume)
    source = re.fullmatch(r"\$\{MALLEUS_CONFIG:-(?P<default>[^}]+)\}:(?P<target>[^:]+):ro", mount)
    assert source
    assert SERVICES["trainer"]["command"][-1] == source["target"]
    RunConfig.from_file(ROOT / source["default"])


def test_the_migration_command_makes_a_store_that_opens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'malleus.db'}"
    command = [sys.executable, *SERVICES["migrate"]["command"][1:]]
    environment = os.environ | {"MALLEUS_DATABASE_URL": url}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    Store.open(url).close()


class TestImage:
    """deploy/Dockerfile."""

    LINES = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    FINAL = LINES[max(number for number, line in enumerate(LINES) if line.startswith("FROM ")) :]

    def test_it_does_not_run_as_root(self) -> None:
        users = [line.split()[1] for line in self.FINAL if line.startswith("USER ")]
        assert users[-1:] == ["10001:10001"]
        assert {SERVICES[name]["user"] for name in OURS} == {users[-1]}
        assert any("useradd --uid 10001" in line for line in self.FINAL)

    def test_what_it_copies_is_there_and_not_ignored(self) -> None:
        kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        assert kept.count("*") == 1
        for source in _image_sources():
            assert (ROOT / source).exists(), f"COPY {source}"
            assert f"!{source}" in kept, f"{source} must be named in .dockerignore"

    def test_every_package_is_copied(self) -> None:
        assert {"app", "engine", "planner", "db"} <= set(_image_sources())

    def test_the_data_folder_belongs_to_the_user(self) -> None:
        text = "\n".join(self.FINAL)
        assert "install -d -o malleus -g malleus -m 0750 /data" in text
        assert "MALLEUS_HOME=/data" in text

    def test_torch_has_the_range_of_the_project(self) -> None:
        pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        wanted = re.search(r'"(torch>=[^"]+)"', pyproject)
        assert wanted
        for file in ("deploy/Dockerfile", "Makefile"):
            assert wanted[1] in (ROOT / file).read_text(encoding="utf-8"), f"{wanted[1]} in {file}"


class TestHealth:
    """deploy/health.py."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        url = f"sqlite:///{tmp_path / 'malleus.db'}"
        monkeypatch.setenv("MALLEUS_DATABASE_URL", url)
        with Store.open(url, migrate=True) as store:
            yield store

    def test_a_service_that_never_spoke_is_not_healthy(self, store: Store) -> None:
        assert _health("controller", "30") == 1
        assert _health("trainer", "60") == 1

    def test_a_young_heartbeat_is_healthy(self, store: Store) -> None:
        heartbeats.beat(store, "controller")
        assert _health("controller", "30") == 0
        assert _health("worker", "30") == 1

    def test_an_old_heartbeat_is_not(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        heartbeats.beat(store, "controller")
        assert _health("controller", "0") == 1
        assert "expected at most 0 s" in capsys.readouterr().out

    def test_no_store_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("MALLEUS_DATABASE_URL", f"sqlite:///{tmp_path / 'none.db'}")
        assert _health("controller", "30") == 1
        assert len(capsys.readouterr().out.splitlines()) == 1

    def test_a_dashboard_that_does_not_listen_is_not_healthy(self) -> None:
        with socket.socket() as taken:  # bound, not listening: connections are refused
            taken.bind(("127.0.0.1", 0))
            assert _health("dashboard", str(taken.getsockname()[1])) == 1

    @pytest.mark.parametrize(
        "arguments", [(), ("controller",), ("nobody", "3"), ("controller", "-1"), ("trainer", "x")]
    )
    def test_wrong_arguments_are_not_healthy(self, arguments: tuple[str, ...]) -> None:
        assert _health(*arguments) == 1


def _health(*arguments: str) -> int:
    return int(runpy.run_path(str(ROOT / "deploy" / "health.py"))["main"](list(arguments)))


def _image_sources() -> list[str]:
    """What the Dockerfile copies from the project's folder."""
    copies = [line.split()[1:] for line in TestImage.LINES if line.startswith("COPY ")]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def _interpolated(environment: dict[str, str]) -> dict[str, str]:
    return {name: re.sub(r"\$\{\w+:\?[^}]*\}", "secret", value) for name, value in environment.items()}


def _check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "malleus":
        from app.cli import app

        known = getattr(get_command(app), "commands", {})
        assert rest[0] in known, f"expected one of {sorted(known)}, given malleus {rest[0]}"
    elif rest[0] == "-m":
        assert program == "python"
        assert importlib.util.find_spec(rest[1]), f"expected a module, given python -m {rest[1]}"
        if rest[1] == "celery":
            assert importlib.util.find_spec(rest[rest.index("-A") + 1])
        if rest[1] == "streamlit":
            assert (ROOT / rest[rest.index("run") + 1]).is_file()
        if rest[1] == "alembic":
            assert (ROOT / rest[rest.index("-c") + 1]).is_file()
    else:
        assert program == "python"
        assert (ROOT / rest[0]).is_file(), f"expected the script {rest[0]}"
        assert rest[0] in _image_sources(), f"{rest[0]} is not in the image"
