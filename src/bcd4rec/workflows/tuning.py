"""Hyper-parameters chosen as in the paper: from a grid, by the validation split of the log, never by an environment.

A trial is a function of the seed and of the trials before it. They are kept in a file as they come, so a search that
was stopped goes on to the same trials. All trials train with the same seed: they differ by their settings alone.
Side by side, trials come in rounds of as many as there are workers. Those of a round do not know of each other's
results, and which these are never depends on who was quicker.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from bcd4rec.agents.agent import AGENTS
from bcd4rec.artifacts import MANIFEST, atomic_file, read_json, write_json
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.errors import InputError
from bcd4rec.evaluation.offline import realised_return
from bcd4rec.evaluation.recall import recall
from bcd4rec.policies.uniform import Uniform
from bcd4rec.runner.running import Crew, Step
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Given, Task
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.workflows.fitting import Watcher, fit

By = Literal["q_bar", "recall"]
Values = dict[str, float]
TRIALS = 20
ATTEMPTS = 50  # how often the sampler is asked for settings that were not tried before chance decides
HELD_OUT = "validation"
TRIED, BEST = "trials.json", "best.json"


class Knob(NamedTuple):
    """What is tried, and what the paper chose on its two domains, where it has the setting."""

    values: tuple[float, ...]
    diginetica: float | None = None
    recsim: float | None = None


@dataclass(frozen=True)
class Trial:
    """Searched settings and what came of them. Q̄ is in the unit of the rewards, R@3 in percent."""

    number: int
    settings: Values
    seconds: float
    q_bar: float | None = None
    recall: float | None = None
    recall_low: float | None = None
    recall_high: float | None = None
    reason: str = ""  # why it was given up

    def objective(self, by: By) -> float | None:
        return self.q_bar if by == "q_bar" else self.recall


def knobs(method: str, settings: Mapping[str, Any] | None = None) -> dict[str, Knob]:
    """The paper's grid as far as this agent has it, and with evidence how strongly values are drawn to the response
    model's; what `settings` say is not searched."""
    if method not in AGENTS:
        raise InputError(f"The grid is for agents, found {method!r}; expected one of {', '.join(AGENTS)}.")
    from bcd4rec.agents.q_learning import QLearningConfig
    from bcd4rec.models.encoder import ENCODERS

    config = AGENTS[method].parse(dict(settings or {}), f"{method} --set")
    grid = {"learning_rate": Knob((0.0003, 0.001, 0.003), 0.003, 0.003)}
    if isinstance(config, QLearningConfig):
        if config.head != "expected":
            grid["quantiles"] = Knob((5, 7, 10), 5, 10 if config.head == "implicit" else 5)
        if config.head == "implicit":
            grid["cosines"] = Knob((32, 64, 128), 64, 128)
        if config.beta > 0:
            grid["beta"] = Knob((0.1, 0.3, 0.5, 0.7, 0.9), 0.3, 0.5)
        if not config.evidence and ENCODERS[config.encoder].takes_layers:
            grid["layers"] = Knob((2, 3), 2, 2)
    if config.strength is not None:
        grid[config.strength] = Knob((1, 10, 100))
    free = {key: knob for key, knob in grid.items() if key not in (settings or {})}
    if not free:
        raise InputError(f"--set fixes all that is searched ({', '.join(grid)}); leave one of them open.")
    return free


def tune(
    method: str,
    dataset: Dataset,
    by: By = "q_bar",
    trials: int = TRIALS,
    seed: int = 0,
    folder: Path = Path("tuned"),
    settings: Mapping[str, Any] | None = None,
    tick: Tick = no_tick,
    side_by_side: "SideBySide | None" = None,
) -> list[Trial]:
    """So many different trials (0: the whole grid), with those that `folder` holds already; it then has `best.json`."""
    if by not in get_args(By):
        raise InputError(f"--by: found {by!r}, expected {' or '.join(get_args(By))}.")
    if not (dataset.sessions["split"] == HELD_OUT).any():
        raise InputError(
            "The data set has no validation split, and sessions that were learned from cannot judge the settings; "
            "prepare it with --validation 0.2."
        )
    given = dict(settings or {})
    grid = knobs(method, given)
    recall(Uniform(dataset.n_items), dataset, HELD_OUT)  # where there is nothing to recall, it says so before training
    done = _begun(folder, _about(method, dataset, by, seed, given, grid))
    size = math.prod(len(knob.values) for knob in grid.values())
    wanted = min(trials, size) if trials else size
    while len(done) < wanted:
        at_once = 1 if side_by_side is None else min(side_by_side.crew.size, wanted - len(done))
        chosen: list[Values] = []
        while len(chosen) < at_once:
            chosen.append(propose(grid, done, by, seed, wanted == size, chosen))
        if side_by_side is None:
            watcher = _Share(tick, len(done), wanted)
            done.append(_try(method, dataset, given, chosen[0], len(done), seed, watcher))
        else:
            done += side_by_side.round(method, given, chosen, len(done), wanted, seed, tick)
        _write(folder / TRIED, [asdict(trial) for trial in done])
    _write(folder / BEST, _summary(method, dataset, by, given, done))
    return done


def best(trials: Sequence[Trial], by: By) -> Trial:
    """The trial with the highest objective, the first of equals."""
    found = {trial.number: value for trial in trials if (value := trial.objective(by)) is not None}
    if not found:
        raise InputError(f"None of the {len(trials)} trials came to an end; the first: {trials[0].reason}")
    return trials[max(found, key=found.__getitem__)]


def propose(
    grid: Mapping[str, Knob],
    done: Sequence[Trial],
    by: By,
    seed: int,
    whole: bool = False,
    under_way: Sequence[Values] = (),
) -> Values:
    """Settings that no trial had: the next of the whole grid, or what a tree-structured Parzen estimator expects most
    of after the trials so far; those under way count as bad ones (the constant liar), so that others are proposed."""
    tried = [*(trial.settings for trial in done), *under_way]
    cells = [dict(zip(grid, values, strict=True)) for values in product(*(knob.values for knob in grid.values()))]
    left = [cell for cell in cells if cell not in tried]
    if whole:
        return left[0]
    optuna = _optuna()
    number = len(done) + len(under_way)
    chance = stream_seed(seed, "tuning", number) % 2**32
    sampler = optuna.samplers.TPESampler(seed=chance, constant_liar=bool(under_way))
    study = optuna.create_study(sampler=sampler, direction="maximize")
    space = {key: optuna.distributions.CategoricalDistribution(knob.values) for key, knob in grid.items()}
    for trial in done:
        ended = trial.objective(by) is not None
        state = optuna.trial.TrialState.COMPLETE if ended else optuna.trial.TrialState.PRUNED
        study.add_trial(
            optuna.trial.create_trial(
                state=state, value=trial.objective(by), params=trial.settings, distributions=space
            )
        )
    for values in under_way:
        running = optuna.trial.TrialState.RUNNING
        study.add_trial(optuna.trial.create_trial(state=running, params=values, distributions=space))
    for _ in range(ATTEMPTS):
        asked: Values = study.ask(space).params
        if asked in left:
            return {key: asked[key] for key in grid}
    return left[int(generator(seed, "tuning", "left", number).integers(len(left)))]


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise InputError("Searching needs optuna: pip install 'bcd4rec[tune]', or search the whole grid.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _Share(Watcher):
    """How far the whole search is."""

    def __init__(self, tick: Tick, number: int, wanted: int):
        self._tick, self._number, self._wanted = tick, number, wanted
        tick("trials", number / wanted)

    def report(self, trainer: Any, report: Any) -> None:
        self._tick("trials", (self._number + report.step / report.updates) / self._wanted)


def _try(
    method: str,
    dataset: Dataset,
    given: dict[str, Any],
    chosen: Values,
    number: int,
    seed: int,
    watcher: Watcher | None = None,
) -> Trial:
    from bcd4rec.training import DivergenceError

    began = time.monotonic()
    try:
        fitted = fit(method, dataset, given | chosen, seed, watcher)
    except DivergenceError as error:
        return Trial(number, chosen, time.monotonic() - began, reason=str(error))
    found = recall(fitted.scorer, dataset, HELD_OUT, seed=seed).interval
    return Trial(number, chosen, time.monotonic() - began, fitted.reports[-1].q_bar, *found)


@dataclass(frozen=True)
class TrialRun(Task):
    """One trial, wherever it is made."""

    data: Given
    method: str
    settings: tuple[tuple[str, Any], ...]
    chosen: tuple[tuple[str, float], ...]
    seed: int
    cost: ClassVar[float] = 60.0

    @property
    def label(self) -> str:
        return f"{self.method} with {', '.join(f'{key} {value:g}' for key, value in self.chosen)}"

    def make(self, folder: Path, store: TaskStore) -> None:
        dataset = Dataset.load(store.path(self.data) / self.data.name)
        found = _try(self.method, dataset, dict(self.settings), dict(self.chosen), 0, self.seed)
        write_json(folder / TRIED, asdict(found))


class SideBySide(NamedTuple):
    """Who makes trials side by side, and the data set as they find it."""

    crew: Crew
    data: Given

    def round(
        self, method: str, given: dict[str, Any], chosen: list[Values], first: int, wanted: int, seed: int, tick: Tick
    ) -> list[Trial]:
        """What came of these trials, the first of which has the number `first`."""
        fixed = tuple(given.items())
        tasks = [TrialRun(self.data, method, fixed, tuple(one.items()), seed) for one in chosen]
        tick("trials", first / wanted)
        made = [0]

        def tell(step: Step) -> None:
            made[0] += step.label != self.data.label
            tick("trials", (first + made[0]) / wanted)

        if failed := self.crew.make(tasks, tell):
            raise InputError(next(iter(failed.values())))
        found = [read_json(self.crew.store.path(task) / TRIED) for task in tasks]
        return [Trial(**one | {"number": first + place}) for place, one in enumerate(found)]


def _about(
    method: str, dataset: Dataset, by: By, seed: int, given: dict[str, Any], grid: dict[str, Knob]
) -> dict[str, Any]:
    """What makes a search this one and no other."""
    config = AGENTS[method].parse(given, f"{method} --set").model_dump(mode="json")
    fixed = {key: value for key, value in config.items() if key not in grid}
    searched = {key: list(knob.values) for key, knob in grid.items()}
    about = {"method": method, "data": dataset.content_hash, "by": by, "seed": seed}
    return {"kind": "tuning"} | about | {"settings": fixed, "searched": searched}


def _begun(folder: Path, about: dict[str, Any]) -> list[Trial]:
    """The trials that the folder holds, if they are of this search; a new folder gets its manifest."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).exists())):
        raise InputError(f"{folder} holds something else than a search; choose another folder.")
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / MANIFEST, about)
        return []
    manifest = read_json(folder / MANIFEST)
    for key, value in about.items():
        found = manifest.get(key) if isinstance(manifest, dict) else None
        if found != value:
            differs = f"{key} {found!r} instead of {value!r}" if isinstance(value, str | int) else f"other {key}"
            raise InputError(f"{folder} holds a search with {differs}; choose another folder.")
    if not (folder / TRIED).exists():
        return []
    try:
        return [Trial(**trial) for trial in read_json(folder / TRIED)]
    except TypeError as error:
        raise InputError(f"{folder / TRIED} is damaged ({error}); choose another folder.") from None


def _write(path: Path, value: Any) -> None:
    with atomic_file(path, force=True) as partial:
        write_json(partial, value)


def _summary(method: str, dataset: Dataset, by: By, given: dict[str, Any], done: list[Trial]) -> dict[str, Any]:
    """The best settings in full, so that `train --set` gives the same agent, and what is known of them."""
    found = best(done, by)
    config = AGENTS[method].parse(given | found.settings, f"{method} --set").model_dump(mode="json")
    told = asdict(found) | {"settings": {key: config[key] for key in given | found.settings}}
    told = {"trial" if key == "number" else key: value for key, value in told.items() if key != "reason"}
    return {"method": method, "by": by, "realised_return": realised_return(dataset), "trials": len(done)} | told
