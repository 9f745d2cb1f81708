"""One way to learn a policy from a data set, whatever the method."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.agents.agent import AGENTS, Agent, AgentConfig, Begun
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import CheckpointError, InputError
from bcd4rec.models.slate_choice import SlateUsers
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy, learned_policy
from bcd4rec.policies.rule_choice import choose_rule
from bcd4rec.policies.scorer import SavedScorer
from bcd4rec.registry import INSTALL
from bcd4rec.workflows import searching
from bcd4rec.workflows.going_on import begun_from, refuse_no_going_on
from bcd4rec.workflows.searching import Search

if TYPE_CHECKING:
    from bcd4rec.training import Report, Trainer


@dataclass(frozen=True)
class Fitted:
    """A policy that has learned, and what a bundle says about it."""

    scorer: SavedScorer
    about: dict[str, Any]
    reports: "list[Report]" = field(default_factory=list)

    def whole(self, dataset: Dataset, users: SlateUsers | None = None) -> Policy:
        """The policy with the slate rule that its log chooses; `users` spare the work where several are chosen for."""
        plain = learned_policy(self.scorer, dataset, self.about)
        chosen = choose_rule(plain, dataset, int(self.about["seed"]), users)
        policy = plain.with_rule(
            diversity=chosen.diversity, after_skip=chosen.after_skip, unavailable=chosen.unavailable
        )
        return replace(policy, about=policy.about | {"rule": {"reason": chosen.reason, **chosen.scores}})

    def save(self, dataset: Dataset, folder: Path) -> None:
        bundle.write(self.whole(dataset), folder)


class Watcher:
    """What the caller wants to know while an agent trains."""

    def stage(self, name: str, loss: float) -> None:
        """Pre-training or the behaviour model has finished a pass."""

    def report(self, trainer: "Trainer", report: "Report") -> None:
        """The agent has trained a while; it is whole here, so this is the place for checkpoints."""


def with_preset(method: str, preset: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` on top of an agent's preset; an unknown one is bad input."""
    if preset is None:
        return settings
    if method not in AGENTS:
        raise InputError(f"--preset is for agents ({', '.join(AGENTS)}), found {method!r}; train it without.")
    known = AGENTS[method].presets
    if preset not in known:
        has = f"known are {', '.join(known)}" if known else "it has none"
        raise InputError(f"Unknown preset {preset!r} of {method}; {has}.")
    return dict(known[preset]) | settings


def fit(
    method: str,
    dataset: Dataset,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    watcher: Watcher | None = None,
    checkpoint: Path | None = None,
    shared: Path | None = None,
    search: Search = "quick",
    device: str = "cpu",
    several: bool = False,
    earlier: Policy | None = None,
) -> Fitted:
    """Train the method called `method`, with `settings` in place of its defaults.

    `checkpoint` is a folder with those of all configurations that an earlier run began. Runs with the same folder
    `shared` do alike pre-training once. What still needs choosing is chosen by the log: see `searching`. With
    `several`, this is one of the workers of torch's process group, all of which do the same. With an `earlier` policy
    of the same method, its weights are where training goes on.
    """
    about = {
        "method": method,
        "seed": seed,
        "data": {"content_hash": dataset.content_hash, "counts": dataset.manifest["counts"]},
        "origin": dataset.manifest.get("origin"),
    }
    given = settings or {}
    if earlier is not None:
        refuse_no_going_on(method)
        given = {"warm_up": 0.0} | given  # the earlier policy knows what lies ahead
        about["from"] = {name: earlier.about.get(name) for name in ("data", "seed")}
    if method in AGENTS:
        config = AGENTS[method].parse(given, f"{method} --set")
        watcher = watcher or Watcher()
        begun = None if earlier is None else begun_from(earlier, config, method, dataset)
        options = (checkpoint, about, shared, search, device, several, begun)
        return _fit_agent(config, given, dataset, seed, watcher, *options)
    if method not in BASELINES:
        raise InputError(f"Unknown method {method!r}; known are {', '.join([*AGENTS, *BASELINES])}.")
    if several:
        raise InputError(f"--workers is for agents, and {method} is a baseline; train it without.")
    if device == "cuda":
        raise InputError(f"--device cuda is for agents, and {method} is a baseline; train it without.")
    baseline = BASELINES[method].parse(settings or {}, f"{method} --set")
    try:
        scorer = baseline.fit(dataset, seed)
    except ModuleNotFoundError as error:  # of a baseline that recommends without what it learns with
        if error.name != "torch":
            raise
        raise InputError(f"Learning {method} needs torch: {INSTALL}.") from None
    return Fitted(scorer, about | {"config": baseline.model_dump(mode="json")})


def _fit_agent(
    config: AgentConfig,
    settings: dict[str, Any],
    dataset: Dataset,
    seed: int,
    watcher: Watcher,
    checkpoint: Path | None,
    about: dict[str, Any],
    shared: Path | None,
    search: Search,
    device: str,
    several: bool,
    begun: Begun | None,
) -> Fitted:
    """The best of the configurations that the search proposes, or `config` where nothing can tell them apart."""
    from bcd4rec.agents.together import Together
    from bcd4rec.training import Trainer, device_of

    device = device_of(device)
    more = {} if begun is None else {"begun": begun}  # which not all agents know
    material = config.material(dataset, seed, watcher.stage, shared, resumed=checkpoint is not None, **more)
    start = material.start
    if start is not None and material.nothing_to_learn:
        told = {"kind": search, "reason": f"the response model alone: {material.nothing_to_learn}", "tried": []}
        return Fitted(start, about | {"config": config.model_dump(mode="json"), "search": told})
    validator = searching.Validator(dataset, start, seed)
    options = searching.candidates(config, settings, search) if validator.can_tell else [config]
    if checkpoint is not None and not any(_left(checkpoint, one) for one in options):
        raise CheckpointError(f"{checkpoint} is of another run: its config differs; train without --resume.")
    best: tuple[Fitted, AgentConfig] | None = None
    tried: list[searching.Tried] = []
    for one in options:
        together = Together(one.batch_size, device) if several else None
        stopped = _left(checkpoint, one)
        trainer = Trainer(one, dataset, seed, stopped, watcher.stage, None, material, device, together, begun)
        fitted = _fitted(one, about, trainer.agent, _run(trainer, watcher))
        if len(options) > 1:
            tried.append(validator.tried(fitted.scorer, one))
        if best is None or tried[-1].measure > max(other.measure for other in tried[:-1]):
            best = fitted, one
    assert best is not None  # noqa: S101 (there is at least one option; for the type checker)
    if start is not None and tried and max(one.difference + one.error for one in tried) < 0:
        found = searching.told(search, tried, best[1]) | {"chosen": None, "reason": searching.WORSE}
        return Fitted(start, about | {"config": config.model_dump(mode="json"), "search": found})
    if config.strength is None:
        return best[0]
    return replace(best[0], about=best[0].about | {"search": searching.told(search, tried, best[1])})


def _run(trainer: "Trainer", watcher: Watcher) -> "list[Report]":
    for report in trainer.run(trainer.config.report_every):
        watcher.report(trainer, report)
    return trainer.reports


def _fitted(config: AgentConfig, about: dict[str, Any], agent: Agent, reports: "list[Report]") -> Fitted:
    learned = agent.policy()
    last = {key: value for key, value in asdict(reports[-1]).items() if key != "per_second"} if reports else {}
    told = about | {"config": config.model_dump(mode="json"), "training": last}
    return Fitted(learned, told if agent.sets is None else told | {"sets": agent.sets}, reports)


def _left(folder: Path | None, config: AgentConfig) -> Path | None:
    """The checkpoint of a configuration, where an earlier run left one."""
    from bcd4rec.training import checkpoint_of

    found = None if folder is None else checkpoint_of(config, folder)
    return found if found is not None and found.is_dir() else None
