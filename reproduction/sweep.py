"""The grid of β, K and n: what table 4, table 5 and figures 2 and 4 are read off."""

from collections.abc import Sequence
from dataclasses import dataclass

from reproduction.results import Results
from reproduction.studies import Run

METHODS = ("bcq", "qrbcq", "bcd4rec")
METRICS = {"recall@3": "R@3", "q_bar": "Q̄"}


@dataclass(frozen=True)
class Point:
    """One agent of one seed: its settings, what users say of it, and what the log alone says."""

    run: Run
    seed: int
    rate: float
    offline: dict[str, float]

    @property
    def settings(self) -> dict[str, float]:
        return dict(self.run.settings)


def points(results: Results, domain: str, method: str, study: str = "table5") -> list[Point]:
    """All runs of a study's grid that are there."""
    found = []
    for run in results.lab.runs(study):
        if (run.domain, run.method) != (domain, method):
            continue
        for seed in results.seeds:
            task = results.lab.evaluated(run, seed)
            if not results.store.has(task):
                continue
            offline = results.offline(results.lab.trained(run, seed))
            known = {name: value for name, value in offline.items() if value is not None}
            if set(METRICS) <= set(known):  # where learning made things worse, the policy has no values of its own
                found.append(Point(run, seed, results.rate(task), known))
    return found


def domains(results: Results) -> list[str]:
    return results.lab.domains_of(results.lab.runs("table5"))


Averaged = tuple[dict[str, float], float, dict[str, float]]  # settings, online rate, offline metrics


def means(found: Sequence[Point]) -> list[Averaged]:
    """Each run, averaged over its seeds."""
    by_run: dict[Run, list[Point]] = {}
    for point in found:
        by_run.setdefault(point.run, []).append(point)
    return [
        (
            group[0].settings,
            sum(point.rate for point in group) / len(group),
            {name: sum(point.offline[name] for point in group) / len(group) for name in METRICS},
        )
        for group in by_run.values()
    ]


def best(found: Sequence[Averaged], metric: str) -> Averaged:
    """What an offline metric would choose."""
    return max(found, key=lambda one: one[2][metric])
