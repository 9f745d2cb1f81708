"""The stages of `bcd4rec start`: each is kept in the output folder, and done again when its input changed."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.artifacts import atomic_file, read_json, remove, write_json
from bcd4rec.commands._reading import RawLog
from bcd4rec.data.files import log_files
from bcd4rec.errors import CheckpointError, InputError
from bcd4rec.version import __version__

if TYPE_CHECKING:
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.policies.policy import Policy
    from bcd4rec.workflows.fitting import Fitted
    from bcd4rec.workflows.judging import Validation

MAPPING, LOG, DATASET, POLICY, PAGE = "mapping.toml", "log.parquet", "dataset", "policy", "start.html"
TEST = 0.2  # of the sessions are held out to judge
OPPONENTS = ("popular", "stan")  # beside smoothed rates and the logged order, which always take part
AGENT, NEXT_ITEM, NEIGHBOURS = "bcd4rec", "response", "stan"  # without skips the agent is its next-item model
SESSIONS, SLATES = 3, 4  # real sessions on the page, and slates of each
MOST_SHOWN = 6  # items of a slate on the page

Result = dict[str, Any]


class Kept:
    """Results of finished stages by name, each with a key of all that it was made of."""

    def __init__(self, folder: Path):
        self._path = folder / "stages.json"
        self._stages = _stages_of(self._path)

    def result(self, stage: str, key: str, output: Path | None) -> Result | None:
        known = self._stages.get(stage, {})
        there = output is None or output.exists()
        return known["result"] if known.get("key") == key and there and "result" in known else None

    def key(self, stage: str) -> str:
        return str(self._stages.get(stage, {}).get("key", ""))

    def begin(self, stage: str, key: str) -> None:
        """What it gave before counts no more: its output is about to change."""
        self._write(stage, {"key": key})

    def keep(self, stage: str, key: str, result: Result) -> None:
        self._write(stage, {"key": key, "result": result})

    def _write(self, stage: str, value: Result) -> None:
        self._stages[stage] = value
        with atomic_file(self._path, force=True) as path:
            write_json(path, self._stages)


def _stages_of(path: Path) -> dict[str, Result]:
    """Nothing where the file is missing or cut short: then all is done again."""
    try:
        found = read_json(path)
    except InputError:
        return {}
    whole = isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())
    return found if whole else {}


@dataclass(frozen=True)
class Start:
    """One run: a raw log, its mapping as TOML in `out`, and a seed."""

    log: Path
    out: Path
    seed: int
    earlier: int
    again: Callable[[str, bool], None]  # is told the name of each stage, and whether it was done before
    items: Path | None = None  # features of items
    items_id: str | None = None  # what that file calls an item's id

    def raw(self) -> RawLog:
        return RawLog(self.log, None, str(self.out / MAPPING), None, None, "s", False, sort=True)

    def read(self) -> Result:
        """The canonical log, and what `check` says of it."""
        return self._stage("read", self._source(), self.out / LOG, self._read)

    def prepare(self, reading: Result) -> Result:
        """`reading` is what the reader did to make the log."""
        settings: Result = {"test": TEST, "earlier": self.earlier, "seed": self.seed}
        if self.items is not None:
            settings["items"] = [*_state(self.items), self.items_id]
        return self._stage("prepare", settings, self.out / DATASET, lambda: self._prepare(reading), "read")

    def train(self, clicks_only: bool) -> Result:
        settings: Result = {"method": AGENT, "clicks_only": clicks_only}
        return self._stage("train", settings, self.out / POLICY, lambda: self._train(clicks_only), "prepare")

    def evaluate(self) -> Result:
        return self._stage("evaluate", {"opponents": OPPONENTS}, None, self._evaluate, "train")

    def judge(self) -> Result:
        return self._stage("judge", {}, None, self._judge, "train")

    def sessions(self) -> Result:
        return self._stage("sessions", {}, None, lambda: {"sessions": list(self._sessions())}, "train")

    # ---- what is done

    def _stage(
        self, name: str, settings: Result, output: Path | None, work: Callable[[], Result], after: str = ""
    ) -> Result:
        kept = Kept(self.out)
        before = kept.key(after) if after else __version__
        key = hashlib.sha256(json.dumps([before, settings]).encode()).hexdigest()
        found = kept.result(name, key, output)
        self.again(name, found is not None)
        if found is not None:
            return found
        if kept.key(name) != key:
            remove(self._checkpoint)  # of another policy; first, lest it is taken for this one's after a kill
        kept.begin(name, key)
        result = work()
        kept.keep(name, key, result)
        return result

    @property
    def _checkpoint(self) -> Path:
        return self.out / f"{POLICY}.checkpoint"

    def _source(self) -> Result:
        files = [_state(file) for file in log_files(self.log)]
        return {"files": files, "mapping": (self.out / MAPPING).read_text(encoding="utf-8")}

    def _read(self) -> Result:
        from bcd4rec.console import progress
        from bcd4rec.data import checking
        from bcd4rec.data.proposals.telling import sessions_in_words
        from bcd4rec.data.schema import BadLog

        raw = self.raw()
        with progress() as tick, raw.canonical(raw.reader(), tick, self.out / LOG, True) as (log, reading):
            report = checking.check(log, None, tick)
            if report.problems:
                raise BadLog(report.problems)
        return {"reading": reading, "check": report.to_json(), "preview": sessions_in_words(self.out / LOG)}

    def _prepare(self, reading: Result) -> Result:
        from bcd4rec.commands._options import open_log
        from bcd4rec.commands.prepare import read_features
        from bcd4rec.console import progress
        from bcd4rec.data import preparing
        from bcd4rec.data.schema import default_responses
        from bcd4rec.data.splits import SplitConfig

        raw = self.raw()
        reader = raw.reader()
        log = open_log(self.out / LOG, "s", False, sort=True)
        log = log if reader is None else log.called(raw.own_names(reader, reading))
        config = preparing.PrepareConfig(split=SplitConfig(test=TEST, validation=0.2), earlier=self.earlier)
        own_id = self.items_id or raw.item_name(reader)
        features = read_features(self.items, own_id, log.id_types["item_id"])
        with progress() as tick:
            made = preparing.prepare(
                log, default_responses(log), config, self.out / DATASET, self.seed, True, tick, reading, features
            )
        return {name: made[name] for name in ("counts", "warnings", "dropped", "content_hash")}

    def _method(self, data: "Dataset", clicks_only: bool) -> str:
        """The agent, or neighbours where a log of clicks alone is guessed better by them."""
        from bcd4rec.console import progress
        from bcd4rec.workflows.judging import MANY_SESSIONS, guesses_better

        if not clicks_only or len(data.sessions) > MANY_SESSIONS:
            return AGENT
        with progress() as tick:
            best = guesses_better((NEXT_ITEM, NEIGHBOURS), data, self.seed, tick)
        return AGENT if best == NEXT_ITEM else best

    def _train(self, clicks_only: bool) -> Result:
        from bcd4rec.commands.train import TrainingProgress, learn
        from bcd4rec.data.dataset import Dataset

        data = Dataset.load(self.out / DATASET)
        method = self._method(data, clicks_only)

        def learned(resume: bool) -> "tuple[Fitted, Validation, Policy]":
            watcher = TrainingProgress(self._checkpoint, None, "again")
            return learn(method, data, self.out / POLICY, watcher, {}, self.seed, resume, force=True)

        try:
            fitted, _, policy = learned(self._checkpoint.is_dir())
        except CheckpointError:  # cut short, or of another run
            fitted, _, policy = learned(False)
        rule = {"words": policy.rule.in_words(), "reason": policy.about["rule"]["reason"]}
        return {"method": method, "rule": rule, "search": fitted.about.get("search")}

    def _evaluate(self) -> Result:
        from bcd4rec.console import progress
        from bcd4rec.data.dataset import Dataset
        from bcd4rec.evaluation.logged_slates import HEADLINES
        from bcd4rec.workflows import judging

        data, folder = Dataset.load(self.out / DATASET), str(self.out / POLICY)
        names = list(dict.fromkeys([folder, *OPPONENTS]))
        bundles = judging.load_bundles(names, learned_from=True)
        method = str(bundles[folder].about["method"])
        names = [name for name in names if name != method]
        try:
            with progress() as tick:
                found = judging.judge(names, bundles, judging.JudgedLog(data, "test"), data, self.seed, tick)
        except InputError as error:
            return {"problem": str(error)}
        pairs = [(method, name) for name in found.values if name not in (method, judging.RANDOM)]
        return found.to_json(pairs) | {"measures": list(HEADLINES[found.cases.unit]), "method": method}

    def _judge(self) -> Result:
        """The verdict of the log's propensities, where there are some and the judge is at hand."""
        from bcd4rec.data.dataset import Dataset

        judge = _judge()
        if judge is None:
            return {"problem": "This version has no `bcd4rec judge`, which reads a verdict from propensities."}
        try:
            verdict = judge(self.out / POLICY, Dataset.load(self.out / DATASET), split="test", seed=self.seed)
        except InputError as error:
            return {"problem": str(error)}
        return dict(verdict.to_json())

    def _sessions(self) -> Iterator[Result]:
        """Real held-out sessions: what was shown, and what the policy would have shown at each slate."""
        import polars as pl

        from bcd4rec.data.dataset import Dataset
        from bcd4rec.policies import bundle

        data, policy = Dataset.load(self.out / DATASET), bundle.load(self.out / POLICY)
        names, ids = data.responses.names, data.items["item_id"]
        split = "test" if (data.sessions["split"] == "test").any() else "train"
        events = data.events(split)
        positive = [data.responses.code(name) for name in data.responses.positive]
        liked = pl.col("response").is_in(positive) & ~pl.col("organic")
        lively = events.group_by("session", maintain_order=True).agg(
            liked.sum().alias("liked"), pl.col("step").n_unique().alias("steps")
        )
        some = lively.filter((pl.col("liked") > 0) & (pl.col("steps") > 1))
        some = some if some.height else lively.filter(pl.col("liked") > 0)
        for number in range(min(SESSIONS, some.height)):
            session = some["session"][number * some.height // SESSIONS]
            rows = events.filter(pl.col("session") == session)
            before = rows.filter(pl.col("organic").cum_min())  # organic events up to the first slate
            opening = [(ids[row["action"]], names[row["response"]]) for row in before.to_dicts()]
            steps: list[list[tuple[Any, str]]] = []
            slates = []
            for slate in rows.filter(~pl.col("organic")).partition_by("step", maintain_order=True)[:SLATES]:
                shown = [(ids[row["action"]], names[row["response"]]) for row in slate.to_dicts()]
                best = policy.slates(policy.read(steps, opening).sessions, min(len(shown), MOST_SHOWN))
                instead = [policy.vocabulary.id(item) for item in best.items[0].tolist() if item >= 0]
                slates.append({"shown": shown, "policy": instead})
                steps.append(shown)
            yield {"session": data.sessions["session_id"][int(session)], "slates": slates}


def _state(file: Path) -> tuple[str, int, int]:
    """By which a file is known again."""
    about = file.stat()
    return str(file), about.st_size, about.st_mtime_ns


def _judge() -> Callable[..., Any] | None:
    """`bcd4rec.library.judge`, where this version has it."""
    from bcd4rec import library

    found: Callable[..., Any] | None = getattr(library, "judge", None)
    return found
