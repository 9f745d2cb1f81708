"""`python -m bench.workers [SECONDS] [DATABASE]`: requests a second of `bcd4rec serve` with one process and with two.

The load process keeps sixteen connections busy, as `bench.serving` does, and needs processor time of its own: with as
many workers as there are cores it takes some of theirs. One and two workers are measured in turn, and again, because
what others do on a machine changes by the minute. DATABASE is a PostgreSQL address; without one, SQLite files are
used. The last line is one JSON object.
"""

import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.serving import CPU, Measures, family, load, network, save, server

ITEMS = (6_666, 20_000)
WORKERS = (1, 2)
TURNS = 3
CONNECTIONS = 16


def measured(policy: Path, database: str, workers: int, seconds: float) -> Measures:
    with server(policy, database, workers) as (host, port, process):
        found = load(host, port, process, "recommend", seconds, CONNECTIONS)
        found["mib"] = sum(one.memory_full_info().uss for one in family(process)) / 2**20
        found["busiest"] = busiest(host, port) if workers > 1 else 1.0
    return found


def busiest(host: str, port: str) -> float:
    """The share of the requests that the busiest worker got."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counts = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("bcd4rec_worker_requests_total")]
    return max(counts) / sum(counts)


def main(seconds: float = 8.0, database: str | None = None) -> None:
    found: dict[tuple[int, int], list[Measures]] = {}
    with tempfile.TemporaryDirectory() as name:
        for items in ITEMS:
            policy = save(network(items), Path(name) / f"policy{items}")
            for turn in range(TURNS):
                for workers in WORKERS:
                    url = database or f"{name}/{items}-{turn}-{workers}.sqlite"
                    one = measured(policy, url, workers, seconds)
                    found.setdefault((items, workers), []).append(one)
                    sys.stderr.write(f"{items:,} items, {workers} workers: {one['requests_per_second']:,.0f} req./s\n")
    medians = {key: middle(runs) for key, runs in found.items()}
    Console(width=120).print(table_of(medians, seconds))
    print(json.dumps(told(found, medians)))


def middle(runs: list[Measures]) -> Measures:
    return {name: statistics.median(one[name] for one in runs) for name in runs[0]}


def told(found: dict[tuple[int, int], list[Measures]], medians: dict[tuple[int, int], Measures]) -> dict[str, object]:
    """Requests a second by items and workers, and in each turn how many times those of one process two have."""
    rates = {
        f"{items} items, {workers} workers": one["requests_per_second"] for (items, workers), one in medians.items()
    }
    ratios = {
        f"{items} items, ratio": [
            round(two["requests_per_second"] / one["requests_per_second"], 2)
            for one, two in zip(found[items, 1], found[items, 2], strict=True)
        ]
        for items in ITEMS
    }
    return {**rates, **ratios}


def table_of(medians: dict[tuple[int, int], Measures], seconds: float) -> Table:
    table = Table(title=f"bcd4rec serve --workers, medians of {TURNS} turns of {seconds:g} s", title_justify="left")
    columns = ("items", "workers", "req./s", "p50", "p90", "p99 ms", "errors", *CPU.values(), "MiB", "busiest %")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for (items, workers), one in medians.items():
        times = [f"{one[name]:.1f}" for name in ("p50_ms", "p90_ms", "p99_ms")]
        rate, errors, cpu = f"{one['requests_per_second']:,.0f}", f"{one['errors']:.0f}", [f"{one[n]:.2f}" for n in CPU]
        table.add_row(
            f"{items:,}", str(workers), rate, *times, errors, *cpu, f"{one['mib']:,.0f}", f"{100 * one['busiest']:.0f}"
        )
    return table


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:3])
