"""`python -m bench [NAME …]`: the benchmarks of this folder, all or those named; the last line is JSON.

A benchmark is a module with `run() -> dict[str, float]`, which prints a table and returns its ratios by name.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable

import bench
from bench import Skip


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_"))


def find(name: str) -> Callable[[], dict[str, float]] | None:
    """The `run` of a module, None for a module that only helps others."""
    try:
        return getattr(importlib.import_module(f"bench.{name}"), "run", None)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("bench", "bcd4rec"):
            raise
        raise Skip(f"{error.name} is not installed") from None


def run_all(chosen: list[str]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for name in chosen:
        try:
            run = find(name)
            found = run() if run is not None else {}
        except Skip as reason:
            print(f"{name}: skipped, {reason}")
            continue
        if twice := ratios.keys() & found.keys():
            raise ValueError(f"{name} reports {', '.join(sorted(twice))}, which another benchmark has reported")
        ratios |= found
        print(flush=True)
    return ratios


def main(arguments: list[str]) -> None:
    known = names()
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"Unknown benchmark {unknown[0]!r}; known are {', '.join(known)}.", file=sys.stderr)
        sys.exit(2)
    ratios = run_all(arguments or known)
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
