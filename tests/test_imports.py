"""Imports point one way, from the command line down to the errors; parts of the same floor do not know each other."""

import ast
from pathlib import Path

import pytest

import bcd4rec

ROOT = Path(bcd4rec.__file__).parent
FLOORS = [
    ["cli"],
    ["commands"],
    ["console"],
    ["serving", "experiments", "report"],
    ["training", "evaluation", "sim"],
    ["agents", "baselines"],
    ["policies"],
    ["losses", "constraint"],
    ["models"],
    ["data"],
    ["config", "registry", "seeding", "artifacts"],
    ["errors", "renaming", "__init__"],
]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
FORBIDDEN = {("serving", "agents"), ("serving", "training")}  # a server recommends and does not learn


def part_of(file: Path) -> str:
    """The module or folder directly under bcd4rec."""
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
    inside = [name.split(".") for name in names if name.split(".")[0] == "bcd4rec"]
    parts = {name[1] if len(name) > 1 else "__init__" for name in inside}
    return {"__init__" if part == "__version__" else part for part in parts}


def offence(source: str, target: str) -> str | None:
    unknown = {source, target} - FLOOR.keys()
    if unknown:
        return f"{unknown.pop()} has no floor in {Path(__file__).name}"
    if source != target and FLOOR[source] >= FLOOR[target]:
        return f"{source} must not import {target}"
    return f"{source} must never import {target}" if (source, target) in FORBIDDEN else None


def test_imports_point_one_way():
    found = [
        f"{file.relative_to(ROOT)}: {wrong}"
        for file in sorted(ROOT.rglob("*.py"))
        for target in sorted(imported(file) | {part_of(file)})
        if (wrong := offence(part_of(file), target))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("cli", "commands", True),
        ("console", "data", True),
        ("sim", "policies", True),
        ("sim", "sim", True),
        ("sim", "evaluation", False),
        ("report", "experiments", False),
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
        "import bcd4rec.sim.rollout as r, json\nfrom bcd4rec import data, __version__\nimport bcd4rec\n"
        "def f():\n    from bcd4rec.policies.policy import Policy\n"
    )
    assert imported(file) == {"sim", "data", "policies", "__init__"}
