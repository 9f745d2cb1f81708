"""Names of exchangeable parts. A part registers itself in its own file; a duplicate name is an error."""

import importlib
import importlib.abc
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from bcd4rec.errors import InputError

Part = TypeVar("Part")
INSTALL = "pip install 'bcd4rec[train]'"


def _mentions(module: str, name: str) -> bool:
    """Whether the source of a module holds `name` as a string."""
    spec = importlib.util.find_spec(module)
    loader = None if spec is None else spec.loader
    source = loader.get_source(module) if isinstance(loader, importlib.abc.InspectLoader) else None
    return source is not None and f'"{name}"' in source


class Registry(Generic[Part]):
    """A table name -> part, filled by importing the modules of `packages` when a name is first asked for.

    The module whose source holds the name as a string is tried before all others, so that looking up one part does not
    import everything; modules whose optional dependencies are not installed are passed over. `constant` is what the
    registry is called in the code: then names can be told without importing anything.
    """

    def __init__(self, kind: str, *packages: str, constant: str = ""):
        self.kind, self.constant = kind, constant
        self._packages = packages
        self._parts: dict[str, Part] = {}
        self._missing: dict[str, str] = {}  # module -> the dependency it lacks
        self._complete = False

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator: `@BASELINES.register("popular")`."""

        def add(part: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice: {self._parts[name]!r} and {part!r}")
            self._parts[name] = part
            return part

        return add

    def _import(self, module: str) -> None:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("bcd4rec"):
                raise
            self._missing[module] = error.name

    def _load(self, name: str | None = None) -> None:
        if self._complete or name in self._parts:
            return
        modules = [
            f"{package}.{module.name}"
            for package in self._packages
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        ]
        for module in modules:
            if name is not None and name not in self._parts and _mentions(module, name):
                self._import(module)
        if name is None or name not in self._parts:
            for module in modules:
                self._import(module)
            self._complete = True

    def names(self) -> list[str]:
        self._load()
        return sorted(self._parts)

    def declared(self) -> dict[str, str]:
        """The names that the files of the packages register, each with its module, read without importing them.

        For help texts, which must be quick, and for parts whose dependencies are missing.
        """
        pattern = re.compile(rf'^@{self.constant}\.register\("([^"]+)"\)', re.MULTILINE)
        files = sorted(
            file
            for package in self._packages
            for folder in importlib.import_module(package).__path__
            for file in Path(folder).glob("*.py")
        )
        found = {name: file.stem for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
        return dict(sorted(found.items()))

    def __contains__(self, name: str) -> bool:
        """Also of a part that lacks its dependency: asking for it tells which."""
        self._load(name)
        return name in self._parts or self._lacking(name) is not None

    def _lacking(self, name: str) -> str | None:
        """The dependency without which the part of this name could not be imported."""
        return next((lacking for module, lacking in self._missing.items() if _mentions(module, name)), None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> Part:
        self._load(name)
        if name in self._parts:
            return self._parts[name]
        if (dependency := self._lacking(name)) is not None:
            raise InputError(f"The {self.kind} {name!r} needs {dependency}: {INSTALL}.")
        lacking = ", ".join(sorted(set(self._missing.values())))
        more = f" (and more with {lacking}: {INSTALL})" if lacking else ""
        raise InputError(f"Unknown {self.kind} {name!r}; known are {', '.join(self.names())}{more}.")
