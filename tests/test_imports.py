"""Imports point one way, from the command line down to the errors; parts of the same floor do not know each other."""

import ast
from pathlib import Path

import pytest

import bcd4rec
import reproduction

ROOT = Path(bcd4rec.__file__).parent
REPRODUCTION = Path(reproduction.__file__).parent
PAGE = REPRODUCTION.parent / "docs" / "architecture.md"


def floors(page: str) -> list[list[str]]:
    """The picture of the page: a line for each floor, from the top, and its parts before the first wide gap."""
    picture = page.partition("## Floors\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in picture.splitlines() if line.startswith("    ")]
    return [line.partition("  ")[0].split(" · ") for line in lines]


FLOORS = floors(PAGE.read_text(encoding="utf-8"))
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
FORBIDDEN = {("serving", "agents"), ("serving", "training")}  # a server recommends and does not learn


def part_of(file: Path) -> str:
    """The module or folder directly under bcd4rec, or `reproduction`."""
    if file.is_relative_to(REPRODUCTION):
        return "reproduction"
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(file: Path) -> set[str]:
    """The parts of bcd4rec that a file imports, also within functions and for type checking."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    above = {"reproduction"} & {name.split(".")[0] for name in names}
    inside = [name.split(".") for name in names if name.split(".")[0] == "bcd4rec"]
    return above | {name[1] for name in inside if len(name) > 1}  # `import bcd4rec` alone imports nothing more


def offence(source: str, target: str) -> str | None:
    unknown = {source, target} - FLOOR.keys()
    if unknown:
        return f"{unknown.pop()} has no floor in {PAGE.name}"
    if source != target and FLOOR[source] >= FLOOR[target]:
        return f"{source} must not import {target}"
    return f"{source} must never import {target}" if (source, target) in FORBIDDEN else None


def test_the_page_shows_every_part_once_and_none_that_is_gone():
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    shown = [part for floor in FLOORS for part in floor]
    assert len(shown) == len(set(shown))
    assert set(shown) == there | {"reproduction"}


def test_imports_point_one_way():
    found = [
        f"{file}: {wrong}"
        for file in sorted([*ROOT.rglob("*.py"), *REPRODUCTION.rglob("*.py")])
        for target in sorted(imported(file) | {part_of(file)})
        if (wrong := offence(part_of(file), target))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("cli", "commands", True),
        ("reproduction", "commands", True),
        ("commands", "reproduction", False),
        ("console", "data", True),
        ("sim", "policies", True),
        ("sim", "sim", True),
        ("sim", "evaluation", False),
        ("report", "workflows", False),
        ("policies", "agents", False),
        ("data", "models", False),
        ("serving", "agents", False),
        ("serving", "training", False),
        ("novelty", "data", False),
        ("data", "novelty", False),
    ],
)
def test_the_rule_itself(source, target, allowed):
    assert (offence(source, target) is None) == allowed


def test_every_kind_of_import_is_seen(tmp_path):
    file = tmp_path / "one.py"
    file.write_text(
        "import bcd4rec.sim.rollout as r, json\nfrom bcd4rec import data\nimport bcd4rec\n"
        "def f():\n    from bcd4rec.policies.policy import Policy\n"
    )
    assert imported(file) == {"sim", "data", "policies"}


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for file in sorted([*ROOT.rglob("*.py"), *REPRODUCTION.rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}
