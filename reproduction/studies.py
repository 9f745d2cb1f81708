"""From `studies.toml` to runs, and from runs to tasks."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bcd4rec.agents.presets import preset
from bcd4rec.config import Config
from bcd4rec.errors import InputError
from bcd4rec.runner.tasks import Task
from reproduction.domains import DOMAINS, Domain, Sizes
from reproduction.tasks.distributions import Distributions
from reproduction.tasks.evaluations import AnyEvaluationRun, EvaluationRun
from reproduction.tasks.learners import AGENTS, Trained
from reproduction.tasks.logs import AnyLog, RecSimLog, Settings

World = Literal["learned", "true"]


class Runs(Config):
    """A block of runs: the product of everything that has several values."""

    domains: list[str]
    methods: list[str]
    preset: str | None = Field(default=None, description="Settings of the method by name; `settings` change them.")
    settings: dict[str, list[Any]] = Field(default_factory=dict, description="Of the method.")
    log: dict[str, list[Any]] = Field(default_factory=dict, description="Of the log that is learned from.")
    quick: dict[str, list[Any]] = Field(default_factory=dict, description="What replaces any of these where quick.")

    def at(self, quick: bool) -> "Runs":
        changes = self.quick if quick else {}
        own = {name: values for name, values in changes.items() if name in ("domains", "methods")}
        named = {name: [value] for name, value in preset(self.preset).items()} if self.preset is not None else {}
        parts = {"settings": named | self.settings, "log": self.log}
        return self.model_copy(
            update=own
            | {
                part: {name: changes.get(name, values) for name, values in known.items()}
                for part, known in parts.items()
            }
        )


class Study(Config):
    """A table or figure: the runs it is read off."""

    same_as: str | None = Field(default=None, description="Another study whose runs this one reads as well.")
    worlds: list[World] = Field(default=["learned"], description="Which users are met where there are two kinds.")
    baselines: list[str] = Field(default_factory=list, description="Policies that need no training, and `online`.")
    logs: list[str] = Field(default_factory=list, description="Domains of which the log alone is needed.")
    distributions: bool = Field(default=False, description="Whether the agents' value distributions are wanted.")
    seeds: int | None = Field(default=None, ge=1, description="At most so many runs of everything.")
    runs: list[Runs] = Field(default_factory=list)


class Studies(Config):
    sizes: dict[Literal["full", "quick"], Sizes]
    studies: dict[str, Study]


@cache
def load() -> Studies:
    text = files("reproduction").joinpath("studies.toml").read_text(encoding="utf-8")
    return Studies.parse(tomllib.loads(text), "studies.toml")


def names() -> list[str]:
    return list(load().studies)


@dataclass(frozen=True)
class Run:
    """One method with its settings on one domain; a cell of a table, before the seeds."""

    domain: str
    method: str
    settings: Settings = ()
    log: Settings = ()


@dataclass(frozen=True)
class Laboratory:
    """Everything that a reproduction is about, at one size: which domains there are, and the tasks of each run."""

    quick: bool = False
    seeds: int | None = None
    domains: tuple[str, ...] = tuple(DOMAINS)
    sources: tuple[tuple[str, Path], ...] = ()  # where real logs lie, by domain

    @property
    def sizes(self) -> Sizes:
        sizes = load().sizes["quick" if self.quick else "full"]
        return sizes if self.seeds is None else sizes.model_copy(update={"seeds": self.seeds})

    def command(self, what: str) -> str:
        """How to run something again at this size; a log that was given is named without its folder."""
        options = [f"--seeds {self.sizes.seeds}", *(["--quick"] if self.quick else [])]
        if set(self.domains) != set(DOMAINS):
            options.append(f"--domains {','.join(self.domains)}")
        options += [f"--{name} {path.name}" for name, path in self.sources]
        return " ".join(["bcd4rec reproduce", what, *options])

    def domain(self, name: str) -> Domain:
        return DOMAINS[name](self.sizes, dict(self.sources).get(name))

    def present(self, name: str) -> bool:
        """Whether a domain was asked for and its log can be had."""
        return name in self.domains and self.domain(name).available

    @property
    def absent(self) -> list[str]:
        """Domains that were asked for and whose log was not given."""
        return [name for name in self.domains if not self.present(name)]

    def runs(self, study: str) -> list[Run]:
        """The runs of a study on the domains that are there, each once."""
        found = load().studies[study]
        shared = self.runs(found.same_as) if found.same_as else []
        own = [run for block in found.runs for run in _expand(block.at(self.quick)) if self.present(run.domain)]
        return list(dict.fromkeys([*shared, *own]))

    def seeds_of(self, study: str) -> range:
        """Grids of many runs do with fewer seeds than table 1."""
        most = load().studies[study].seeds
        return range(self.sizes.seeds if most is None else min(most, self.sizes.seeds))

    def log(self, run: Run, seed: int) -> AnyLog:
        return self.domain(run.domain).log(seed, **dict(run.log))

    def trained(self, run: Run, seed: int) -> Trained:
        usual = dict(self.domain(run.domain).settings)
        if run.method not in AGENTS:
            usual = self.sizes.methods.get(run.method, {})
        settings = usual | dict(run.settings)
        return Trained(self.log(run, seed), run.method, seed, tuple(sorted(settings.items())))

    def evaluated(self, run: Run, seed: int, world: World = "learned") -> EvaluationRun:
        return self.domain(run.domain).evaluated(self.trained(run, seed), self.log(run, seed), seed, world)

    def baseline(
        self, name: str, domain: str, seed: int, world: World = "learned", log: Settings = ()
    ) -> AnyEvaluationRun:
        return self.domain(domain).baseline(name, seed, world, dict(log))

    def distributions(self, domain: str, runs: Sequence[Run], seed: int) -> Distributions:
        agents = tuple(self.trained(run, seed) for run in runs if run.domain == domain)
        log = self.domain(domain).log(seed)
        if not isinstance(log, RecSimLog):
            raise InputError(f"Value distributions need users whose interests are known; {domain} has none.")
        return Distributions(log, agents, seed)

    @staticmethod
    def domains_of(runs: Sequence[Run]) -> list[str]:
        return list(dict.fromkeys(run.domain for run in runs))

    def worlds(self, study: str, domain: str) -> list[World]:
        return [world for world in load().studies[study].worlds if world in self.domain(domain).worlds]

    def tasks(self, study: str) -> Iterator[Task]:
        """Everything that a study needs."""
        found = load().studies[study]
        if found.same_as:
            yield from self.tasks(found.same_as)
        for seed in self.seeds_of(study):
            yield from (self.domain(name).log(seed) for name in found.logs if self.present(name))
            runs = self.runs(study)
            for run in runs:
                yield from (self.evaluated(run, seed, world) for world in self.worlds(study, run.domain))
            if found.distributions:
                yield from (self.distributions(domain, runs, seed) for domain in self.domains_of(runs))
            for domain, name in product(self.domains_of(runs), found.baselines):
                if name in self.domain(domain).baselines:
                    yield from (self.baseline(name, domain, seed, world) for world in self.worlds(study, domain))


def _expand(block: Runs) -> Iterator[Run]:
    for domain, method in product(block.domains, block.methods):
        for settings, log in product(_every(block.settings), _every(block.log)):
            yield Run(domain, method, settings, log)


def _every(values: Mapping[str, Sequence[Any]]) -> Iterator[Settings]:
    for chosen in product(*values.values()):
        yield tuple(zip(values, chosen, strict=True))


def known(asked: Sequence[str]) -> list[str]:
    """The studies that were asked for; `all` is every one."""
    if "all" in asked:
        return names()
    for name in asked:
        if name not in load().studies:
            raise InputError(f"There is no {name!r} to reproduce; there are {', '.join([*names(), 'all'])}.")
    return list(dict.fromkeys(asked))
