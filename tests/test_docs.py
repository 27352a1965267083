"""README and docs/ against the project: what they name exists, and what exists is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TERMS = (
    "device",
    "node",
    "rank",
    "straggling rate",
    "group",
    "stage",
    "pipeline",
    "micro-batch",
    "plan",
    "step boundary",
    "shift",
    "migration",
    "capacity bound",
    "efficiency",
    "standby",
)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _glossary() -> dict[str, tuple[str, str]]:
    """`{term: (meaning, where in the code)}`."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## Notation")[0]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \| `([^`]+)` \|$", text, re.MULTILINE)
    return {term: (meaning, where) for term, meaning, where in rows}


def _commands() -> dict[str, Any]:
    from app.cli import app

    return dict(getattr(get_command(app), "commands", {}))


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_has_the_term(term: str) -> None:
    assert term in _glossary()


@pytest.mark.parametrize(("term", "where"), [(term, where) for term, (_, where) in _glossary().items()])
def test_a_term_of_the_glossary_lives_where_it_says(term: str, where: str) -> None:
    file, _, name = where.partition(": ")
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        assert term in text
        return
    tree = ast.parse(text)
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    targets = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    targets += [[node.target] for node in tree.body if isinstance(node, ast.AnnAssign)]
    names |= {target.id for group in targets for target in group if isinstance(target, ast.Name)}
    assert name in names, f"{term}: expected {name} in {file}"


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or not path.is_relative_to(ROOT) or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken, f"{_relative(page)} links to {broken}"


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_files_that_are_named_exist(page: Path) -> None:
    """`db/messages.py` in backticks is a promise as good as a link."""
    named = re.findall(
        r"`((?:app|engine|planner|db|tests|docs|deploy|bench)/[\w./-]+)`", page.read_text(encoding="utf-8")
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"{_relative(page)} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^    |`)make ([a-z]+)", text, re.MULTILINE))
    assert named <= _make_targets()


def test_readme_shows_its_two_commands() -> None:
    assert re.findall(r"^    (make \w+)$", README, re.MULTILINE) == ["make demo", "make test"]


def test_readme_lists_exactly_the_commands_of_the_program() -> None:
    rows = re.findall(r"^\| (`malleus [^|]+) \|", README, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`malleus ([\w-]+)", row)}
    assert listed == set(_commands())


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    commands = _commands()
    wrong = []
    for words in re.findall(r"`malleus ([^`]+)`", page.read_text(encoding="utf-8")):
        name, *rest = words.split()
        if name.startswith("-"):
            continue
        if name not in commands:
            wrong.append(words)
            continue
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        wrong += [f"{name} {word}" for word in rest if word.startswith("--") and word.split("=")[0] not in known]
    assert not wrong, f"{_relative(page)} names {wrong}"


def test_pictures_are_shown_and_there() -> None:
    """Light and dark; a picture that no page shows is old."""
    shown = {
        (page.parent / name).resolve()
        for page in PAGES
        for name in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8"))
    }
    assert shown == set((ROOT / "docs").rglob("*.png"))


def test_every_decision_is_listed_and_half_a_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert decisions
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert f"(decisions/{path.name})" in index
        for part in ("**Decided.**", "**Why.**", "**What it costs.**", "**Instead?**", "**Reconsider**"):
            assert part in text, f"{path.name} lacks {part}"
        assert len(text.split()) < 400, f"{path.name} is longer than half a page"


def test_the_log_is_dated() -> None:
    """Newest first."""
    dates = re.findall(
        r"^## (\d{4}-\d{2}-\d{2}): ", (ROOT / "docs" / "log.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert dates
    assert dates == sorted(dates, reverse=True)


def test_readme_has_no_open_figures() -> None:
    assert "to measure" not in README


def test_settings_that_readme_names_are_read() -> None:
    source = (ROOT / "db" / "settings.py").read_text(encoding="utf-8")
    named = set(re.findall(r"`(MALLEUS_[A-Z_]+)`", README))
    assert named == set(re.findall(r"MALLEUS_[A-Z_]+", source))


def _anchors(path: Path) -> set[str]:
    """Anchors of a Markdown page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
