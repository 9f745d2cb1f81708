"""Which code a result depends on: the modules that its tasks reach by imports, as syntax and not as text.

A comment, a docstring or a module that a task never reaches changes nothing. Registries import by name: where a module
holds the name of a package as a string, all modules of that package count as imported.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import bcd4rec

KEY_LENGTH = 20
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def version_of(modules: Iterable[str]) -> str:
    """A hash of everything that the modules reach within `bcd4rec` and the packages they are in."""
    files: dict[str, Path] = {}
    for module in modules:
        _reach(module, _roots(module), files)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{_syntax(files[name])[0]}\0".encode())
    return digest.hexdigest()[:KEY_LENGTH]


def _roots(module: str) -> dict[str, Path]:
    """The folder where each package lies whose code counts."""
    package = Path(bcd4rec.__file__).parent
    file = Path(sys.modules[module].__file__ or "")
    above = module.count(".") + (file.name == "__init__.py")
    return {package.name: package.parent, module.partition(".")[0]: file.parents[above]}


def _reach(module: str, roots: dict[str, Path], found: dict[str, Path]) -> None:
    """Add the files of a module, of the packages that it is in, and of what all these import."""
    top, *parts = module.split(".")
    if top not in roots or module in found:
        return
    path = roots[top].joinpath(top, *parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if top == "__main__":
        file = Path(sys.modules[top].__file__ or "")
    if not file.is_file():
        return
    found[module] = file
    for name in [module.rpartition(".")[0], *_syntax(file)[1]]:
        _reach(name, roots, found)
    for package in _syntax(file)[2]:
        root = roots.get(package.partition(".")[0], file)  # a file has nothing below it
        for one in root.joinpath(*package.split(".")).rglob("*.py"):
            _reach(".".join(one.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), roots, found)


@cache
def _syntax(file: Path) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What a file says without its comments and docstrings, what it imports, and dotted names in its strings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = tuple(sorted(text for text in strings if "." in text and all(map(str.isidentifier, text.split(".")))))
    return ast.dump(tree), tuple(sorted(set(_imports(tree)))), names


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _run(node)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Also within functions, not for type checkers alone. `from a import b` may mean the module a.b or a name in a."""
    for node in _run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
