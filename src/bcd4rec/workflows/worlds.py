"""`bcd4rec benchmark worlds`: one default, many logs. Every method learns from each log.

Simulated worlds have true users: methods are ranked by what fresh users do, all under the rule that the server has.
Logs of real people are measured on their own held-out slates, as `evaluate --log` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.artifacts import MANIFEST, atomic_file, read_json, write_json
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.errors import InputError
from bcd4rec.evaluation.logged_slates import Judgement, Ranker, Values, logged_cases, logged_order, values_of
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.evaluation.statistics import RATE, difference, interval
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.uniform import Uniform
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, catalogue
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig, preset
from bcd4rec.sim.rollout import rollout, with_ids, with_openings
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import preset as shop_preset
from bcd4rec.workflows.comparison import ORACLE, contestant, default_policy, with_options
from bcd4rec.workflows.fitting import fit

METHODS = ("popular", "ctr", "category_popular", "stan", "response", "bcd4rec")
LOG = "log"
SESSIONS = 2000
SHOP_SESSIONS = 4872  # of thirty days at the scale of the paper's second domain
RESPONSE = "response"


@dataclass(frozen=True)
class World:
    """Simulated users, and who wrote their log."""

    title: str
    environment: Callable[[], Environment]
    sessions: int = SESSIONS
    logger: str | None = None  # a baseline learned from a random log; by default who writes the world's logs
    epsilon: float = 0.0  # with which the logger explores

    def log(self, environment: Environment, seed: int) -> pl.DataFrame:
        writer = contestant(default_policy(environment), environment, None, seed)
        if self.logger is not None:
            random = self._played(environment, writer, stream_seed(seed, "first log"))
            learned = _learned(self.logger, _dataset(random, environment, seed), environment, seed)
            # As loggers of older logs were: no rule of its own, so that what is learned from it is the method's doing.
            writer = learned.with_rule(
                diversity=0.0, after_skip="repeat", exploration={"kind": "epsilon", "epsilon": self.epsilon}
            )
        return self._played(environment, writer, stream_seed(seed, LOG))

    def _played(self, environment: Environment, writer: Policy, seed: int) -> pl.DataFrame:
        log = rollout(environment, writer, self.sessions, seed)
        return with_ids(with_openings(log, environment), environment)


def _recsim(**changes: Any) -> Callable[[], Environment]:
    return lambda: InterestEvolution(InterestEvolutionConfig(**changes))


def _preset(name: str) -> Callable[[], Environment]:
    return lambda: InterestEvolution(preset(name))


def _shop(name: str) -> Callable[[], Environment]:
    return lambda: Shop(shop_preset(name))


WORLDS: dict[str, World] = {
    "random": World("RecSim, random log", _preset("paper")),
    "half": World("RecSim, log of STAN with ε = 0.6", _preset("paper"), logger="stan", epsilon=0.6),
    "hardly": World("RecSim, log of STAN with ε = 0.02", _preset("paper"), logger="stan", epsilon=0.02),
    "recsim": World("Google's preset", _preset("recsim")),
    "literal": World("preset literal", _preset("literal")),
    "single": World("one item a step", _preset("single")),
    "small": World("5 categories, 50 items, slates of 3", _recsim(categories=5, items=50, slate_size=3)),
    "large": World("100 categories, 2,000 items, slates of 10", _recsim(categories=100, items=2000, slate_size=10)),
    "shop": World("shop, 30 days", _shop("single"), SHOP_SESSIONS),
    "shop90": World("shop, 90 days", _shop("single"), 3 * SHOP_SESSIONS),
    "shop300": World("shop, ten times 30 days", _shop("single"), 10 * SHOP_SESSIONS),
    "biased": World("shop, pages looked at from the top", _shop("pages-biased"), SHOP_SESSIONS),
}


def _dataset(log: pl.DataFrame, environment: Environment, seed: int) -> Dataset:
    return Dataset.from_frame(log, environment.responses, seed=seed)


def _keep_to(folder: Path, run: dict[str, Any]) -> None:
    """Begin a run in `folder`, or make sure that what is kept there is of the same run."""
    if not (folder / MANIFEST).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / MANIFEST) as path:
            write_json(path, run)
    elif (kept := read_json(folder / MANIFEST)) != run:
        raise InputError(f"{folder} holds another run ({kept}), but this one is {run}; choose another --out.")


def run(
    out: Path,
    worlds: Sequence[str],
    logs: Mapping[str, Path],
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    users: int = 1000,
    tick: Tick = no_tick,
    rule: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All results, those that `out` holds already among them. `logs` are prepared data sets by name.

    A folder holds results of one set of methods, users and rules: others are refused, not mixed in. `rule` is what the
    command line says about slates, in place of what each policy has chosen from its log.
    """
    _keep_to(out, {"methods": list(methods), "users": users, "rule": dict(rule or {})})
    cells = [(name, seed) for name in [*worlds, *logs] for seed in range(seeds)]
    for place, (name, seed) in enumerate(cells):
        path = out / f"{name}-{seed}.json"
        if path.is_file():
            continue

        def share(stage: str, done: float, place: int = place, name: str = name) -> None:
            tick(f"{name}: {stage}", (place + done) / len(cells))

        if name in logs:
            found = _on_log(logs[name], methods, seed, share)
        else:
            found = _on_users(name, methods, seed, users, share, rule or {})
        with atomic_file(path, force=True) as partial:
            write_json(partial, found)
    return {name: [read_json(out / f"{name}-{seed}.json") for seed in range(seeds)] for name in [*worlds, *logs]}


def _on_users(
    name: str, methods: Sequence[str], seed: int, users: int, tick: Tick, rule: Mapping[str, Any]
) -> dict[str, Any]:
    world = WORLDS[name]
    environment = world.environment()
    tick("writing the log", 0.0)
    log = world.log(environment, seed)
    dataset = _dataset(log, environment, seed)
    shown = log.filter(~pl.col("organic").fill_null(False)) if "organic" in log.columns else log
    written = per_session(shown, environment.responses)
    tables: dict[str, pl.DataFrame] = {}
    chosen: dict[str, Any] = {}
    fresh = stream_seed(seed, "evaluation")
    for number, method in enumerate([*methods, ORACLE]):
        tick(method, number / (len(methods) + 1))
        if method == ORACLE:
            policy = contestant(ORACLE, environment)
        else:
            policy = _learned(method, dataset, environment, seed)
            chosen[method] = {key: policy.about.get(key) for key in ("search", "rule")} | {
                "slates": policy.rule.model_dump(mode="json")
            }
        played = rollout(environment, with_options(policy, dict(rule)), users, fresh)
        tables[method] = per_session(played, environment.responses)
    values = {method: interval(table, RATE, seed)._asdict() for method, table in tables.items()}
    apart = {
        method: difference(table, tables[RESPONSE], RATE, seed)._asdict()
        for method, table in tables.items()
        if RESPONSE in tables and method != RESPONSE
    }
    told = {"measure": "rate", "title": world.title, "rule": dict(rule), "log": interval(written, RATE, seed)._asdict()}
    return told | {"values": values, "to response": apart, "chosen": chosen}


def _learned(method: str, dataset: Dataset, environment: Environment, seed: int) -> Policy:
    return map_policy(fit(method, dataset, seed=seed).whole(dataset), catalogue(environment))


def held_out(dataset: Dataset, folder: Path) -> str:
    """The split that judges: `test`, or `validation` where there is none."""
    there = set(dataset.sessions["split"].unique())
    for split in ("test", "validation"):
        if split in there:
            return split
    raise InputError(f"{folder} has no held-out sessions; prepare it with --test 0.2.")


def _on_log(folder: Path, methods: Sequence[str], seed: int, tick: Tick) -> dict[str, Any]:
    dataset = Dataset.load(folder)
    cases = logged_cases(dataset, held_out(dataset, folder), seed=seed)
    values: dict[str, Values] = {"random": values_of(Ranker("random", Uniform(dataset.n_items)), cases)}
    if (order := logged_order(cases)) is not None:
        values["logged order"] = order
    chosen: dict[str, Any] = {}
    for number, method in enumerate(methods):
        tick(method, number / len(methods))
        fitted = fit(method, dataset, seed=seed)
        if "search" in fitted.about:
            chosen[method] = fitted.about["search"]
        values[method] = values_of(Ranker(method, fitted.scorer), cases)
    judged = Judgement(cases, values, {}, seed)
    found = {name: one for name in values if (one := judged.interval(name)) is not None}
    apart = {
        name: other
        for name in values
        if RESPONSE in values and name != RESPONSE and (other := judged.difference(name, RESPONSE)) is not None
    }
    return {
        "measure": judged.headline,
        "title": folder.name,
        "cases": len(cases),
        "values": {name: one._asdict() for name, one in found.items()},
        "to response": {name: one._asdict() for name, one in apart.items()},
        "parts": {
            part: {name: one._asdict() for name in values if (one := judged.interval(name, part=part)) is not None}
            for part in cases.parts
        },
        "chosen": chosen,
    }


def rows(
    results: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, str, dict[str, tuple[float, float]]]]:
    """For each world: its title, its measure, and by method the mean over seeds with half the width of its interval.

    Seeds are independent of each other, so the variances of their means add up.
    """
    for found in results.values():
        scale = 1.0 if found[0]["measure"] == "rate" else 100.0
        told = {}
        for method in found[0]["values"]:
            ones = [one["values"][method] for one in found if method in one["values"]]
            half = sum(((one["high"] - one["low"]) / 2) ** 2 for one in ones) ** 0.5 / len(ones)
            told[method] = (scale * sum(one["value"] for one in ones) / len(ones), scale * half)
        if "log" in found[0]:
            told[LOG] = (sum(one["log"]["value"] for one in found) / len(found), 0.0)
        yield found[0]["title"], found[0]["measure"], told
