"""Registries filled by importing the modules of a made-up package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd4rec.errors import InputError
from bcd4rec.registry import Registry

PACKAGE = "made_up_parts"
MODULES = {
    "__init__": 'from bcd4rec.registry import Registry\nPARTS = Registry("part", "made_up_parts")\nLOADED = []\n',
    "apple": 'from made_up_parts import LOADED, PARTS\nLOADED.append("apple")\nPARTS.register("apple")(1)\n',
    "pair": 'from made_up_parts import LOADED, PARTS\nLOADED.append("pair")\n'
    'PARTS.register("left")(2)\nPARTS.register("right")(3)\n',
    "zeal": 'import library_that_nobody_has.inside\nfrom made_up_parts import PARTS\nPARTS.register("zeal")(4)\n',
}


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[int]]:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__(PACKAGE).PARTS
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_part_is_found_by_name(parts):
    assert parts["apple"] == 1
    assert sys.modules[PACKAGE].LOADED == ["apple"]  # and nothing else is imported for it
    assert parts["right"] == 3
    assert sys.modules[PACKAGE].LOADED == ["apple", "pair"]  # whatever its module is called


def test_names_are_sorted_and_complete(parts):
    assert parts.names() == list(parts) == ["apple", "left", "right"]
    assert "left" in parts
    assert "middle" not in parts


def test_an_unknown_name_lists_the_known(parts):
    with pytest.raises(InputError, match="Unknown part 'pear'; known are apple, left, right "):
        parts["pear"]


def test_a_part_that_lacks_its_dependency_says_so(parts):
    assert "zeal" in parts
    with pytest.raises(InputError, match="The part 'zeal' needs library_that_nobody_has: pip install"):
        parts["zeal"]


def test_an_unknown_name_tells_of_parts_that_lack_a_dependency(parts):
    """The part may be in a module of another name, so nobody can know whether it is one of them."""
    with pytest.raises(InputError, match=r"right \(and more with library_that_nobody_has: pip install"):
        parts["dqn"]


def test_a_broken_import_of_our_own_is_not_passed_over(parts):
    Path(sys.modules[PACKAGE].__file__ or "").with_name("wrong.py").write_text("import bcd4rec.nowhere\n")
    with pytest.raises(ModuleNotFoundError, match=r"bcd4rec\.nowhere"):
        parts.names()


def test_a_duplicate_is_an_error():
    registry: Registry[int] = Registry("part")
    registry.register("one")(1)
    with pytest.raises(ValueError, match="part 'one' is registered twice: 1 and 2"):
        registry.register("one")(2)
    assert registry["one"] == 1


def test_the_decorator_gives_back_what_it_registers():
    registry: Registry[type] = Registry("part")

    @registry.register("thing")
    class Thing:
        pass

    assert registry["thing"] is Thing
    assert registry.names() == ["thing"]


def test_without_any_parts():
    with pytest.raises(InputError, match="Unknown part 'one'"):
        Registry("part")["one"]
