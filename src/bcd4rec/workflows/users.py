"""A user learned from one period of a data set, and how well it foretells held-out sessions and later periods."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import Field

from bcd4rec.artifacts import read_json, write_json
from bcd4rec.data.cooccurrence import RANK
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, Doubles, FloatArray, Mask, Rows
from bcd4rec.data.support import Support, item_groups
from bcd4rec.errors import InputError
from bcd4rec.evaluation.calibration import Calibration, calibration
from bcd4rec.models.learned_user import LearnedUser, SessionShapes
from bcd4rec.models.pretraining import svd
from bcd4rec.models.response_training import (
    Answers,
    Epoch,
    ResponseTraining,
    fit_responses,
    log_probabilities,
    make_model,
)
from bcd4rec.seeding import generator, stream_seed

HELD_OUT = "held-out"  # the sessions of the period that no part of the training has seen
FITTED, SELECTING, JUDGING = range(3)
METRICS = "metrics.json"


class UserConfig(ResponseTraining):
    """A user that is learned from the responses of one period (the paper's test environment of its second domain)."""

    period: str = Field(default="user", description="The split of the data set that it learns from.")
    held_out: float = Field(
        default=0.1,
        gt=0,
        lt=0.5,
        description="Share of its sessions that choose the best pass, and again so many that judge the result.",
    )
    sessions: str = Field(
        default="", description="Split whose sessions are played; default: test if there is one, else the period."
    )
    support: int = Field(default=5, ge=1, description="How often an item must have been shown to be well known.")


@dataclass(frozen=True)
class FittedUser:
    """A user that has learned, and what is known about it."""

    user: LearnedUser
    about: dict[str, Any]
    calibrations: dict[str, Calibration]  # by set of sessions, the held-out ones first
    outside: dict[str, float]  # share of what was shown there that lies outside the user's support, in percent
    epochs: list[Epoch]

    def metrics(self) -> dict[str, Any]:
        found = {
            name: one.to_json() | {"outside_support": self.outside[name]} for name, one in self.calibrations.items()
        }
        return {"calibration": found, "epochs": [asdict(epoch) for epoch in self.epochs]}

    def save(self, folder: Path) -> None:
        self.user.save(folder, self.about)
        write_json(folder / METRICS, self.metrics())


def fit_user(
    dataset: Dataset, settings: dict[str, Any] | None = None, seed: int = 0, tick: Tick = no_tick
) -> FittedUser:
    """Train, calibrate and judge a user. The same data, settings and seed give the same bits."""
    config = UserConfig.parse(settings or {}, "user --set")
    rows = _period(dataset, config)
    part = _parts(rows, config.held_out, seed)
    fitted, selecting = (_answers(dataset, rows, part == which) for which in (FITTED, SELECTING))
    counts = np.bincount(fitted.responses, minlength=len(dataset.responses.names)) + 0.5  # none is impossible
    rates = (counts / counts.sum()).astype(np.float64)
    tick("co-clicks", 0.0)
    similar = _similar(dataset, rows, part == FITTED, min(config.width, RANK), generator(seed, "user", "co-clicks"))
    epochs = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "user", "torch") % 2**63)
        model = make_model(config, similar, dataset.categories, len(dataset.responses.names), rates)
        for epoch in fit_responses(model, config, fitted, selecting, generator(seed, "user", "batches")):
            epochs.append(epoch)
            tick(f"training: held-out log-loss {epoch.held_out:.4f}", epoch.number / config.epochs)
    played = _played(dataset, config)
    user = LearnedUser(
        model,
        dataset.vocabulary,
        dataset.responses,
        _support(dataset, config, fitted, selecting),
        _shapes(dataset, played),
        dataset.states.positives.shape[1],
    )
    judged = {HELD_OUT: _answers(dataset, rows, part == JUDGING)} | _later(dataset, config)
    calibrations, outside = _judge(user, judged, rates, seed, tick)
    about = _about(dataset, config, seed, played) | {"training": _training(user, fitted, part, epochs)}
    return FittedUser(user, about, calibrations, outside, epochs)


def without_skill(calibrations: dict[str, Any]) -> str | None:
    """Why a user cannot tell policies apart, by how it foretells sessions it has not seen; None where it can."""
    judged = [one["overall"] for one in calibrations.values()]
    if any(float(one["skill_low"]) > 0 for one in judged):
        return None
    value, low, high = (float(judged[0][name]) for name in ("skill", "skill_low", "skill_high"))
    return (
        "foretells held-out sessions no better than the base rates of the responses do (it saves "
        f"{value:.1f} [{low:.1f}, {high:.1f}] % of their log-loss)"
    )


def refuse_without_skill(folder: Path) -> None:
    """`InputError` for a learned user that knows no more than how often things are liked."""
    try:
        reason = without_skill(read_json(folder / METRICS)["calibration"])
    except (InputError, KeyError, TypeError, ValueError, IndexError):
        reason = f"does not say how well it foretells held-out sessions ({METRICS} is missing or damaged)"
    if reason is not None:
        raise InputError(
            f"The user in {folder} {reason}, so it cannot tell which policy is better; train it on a longer period, "
            "judge on the log itself (--log), or ask it all the same with --doubtful."
        )


def _support(dataset: Dataset, config: UserConfig, fitted: Answers, others: Answers) -> Support:
    groups = item_groups(dataset.categories)
    counted = Support.count(fitted.histories[fitted.owner], fitted.items, groups, config.support)
    return counted.with_threshold(others.histories[others.owner], others.items)


def _judge(
    user: LearnedUser, judged: dict[str, Answers], rates: Doubles, seed: int, tick: Tick
) -> tuple[dict[str, Calibration], dict[str, float]]:
    """How well each set of sessions is foretold, and how much of it lies outside of the support, in percent."""
    found, outside = {}, {}
    for number, (name, answers) in enumerate(judged.items()):
        tick("calibration", number / len(judged))
        said = np.exp(log_probabilities(user.model, answers))
        found[name] = calibration(said, answers.responses, answers.sessions, user.responses.names, rates, seed)
        asked = user.support.outside(answers.histories[answers.owner], answers.items[:, None])
        outside[name] = 100 * float(asked.mean())
    return found, outside


def _period(dataset: Dataset, config: UserConfig) -> Transitions:
    splits = sorted(dataset.sessions["split"].unique())
    for key, split in {"period": config.period, "sessions": config.sessions}.items():
        if split and split not in splits:
            raise InputError(
                f"The data set has no split {split!r} for the user's {key}; its splits are {', '.join(splits)}: "
                "prepare it with --split time --periods user=60,train=30,test=30, or name one of them with "
                f"--set {key}=…."
            )
    if dataset.manifest["config"].get("convention") != "shown":
        raise InputError(
            "The data set has one transition per slate (--convention chosen), which makes positive responses look more "
            "likely than they are; prepare it with --convention shown."
        )
    return dataset.transitions(config.period)


def _parts(rows: Transitions, share: float, seed: int) -> Rows:
    """(n,) which transitions are learned from, choose the best pass, and judge; whole sessions."""
    sessions, inverse = np.unique(rows.session, return_inverse=True)
    count = round(share * len(sessions))
    if count < 1:
        raise InputError(
            f"The user's period has {len(sessions)} sessions, too few to hold some out; make it longer or raise "
            "--set held_out."
        )
    place = generator(seed, "user", "held-out").permutation(len(sessions))
    part = np.where(place < count, JUDGING, np.where(place < 2 * count, SELECTING, FITTED))
    return part[inverse]


def _answers(dataset: Dataset, rows: Transitions, mask: Mask) -> Answers:
    session = rows.session[mask].astype(np.int64)
    return Answers.group(dataset.states.positives, rows.state[mask], rows.action[mask], rows.response[mask], session)


def _positive(dataset: Dataset, rows: Transitions) -> Mask:
    return np.isin(rows.response, [dataset.responses.code(name) for name in dataset.responses.positive])


def _similar(dataset: Dataset, rows: Transitions, mask: Mask, width: int, rng: np.random.Generator) -> FloatArray:
    """Which items are liked together, by the fitted sessions alone: held-out ones must not be known in advance.

    (A, width) unit vectors, or zeros for items that were never liked with another.
    """
    liked = mask & _positive(dataset, rows)
    sessions = rows.session[liked].astype(np.int64)
    starts = np.flatnonzero(np.diff(sessions, prepend=-1))
    sequences = Sequences(rows.action[liked], np.append(starts, len(sessions)).astype(np.int64))
    vectors = svd(sequences, dataset.n_items, width, rng)
    together = np.isin(np.arange(dataset.n_items), sequences.items[np.repeat(sequences.lengths > 1, sequences.lengths)])
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(together[:, None] & (norms > 1e-9), vectors / np.maximum(norms, 1e-9), 0.0).astype(np.float32)


def _played(dataset: Dataset, config: UserConfig) -> str:
    return config.sessions or ("test" if (dataset.sessions["split"] == "test").any() else config.period)


def _shapes(dataset: Dataset, split: str) -> SessionShapes:
    """The sessions to play are like those of this split; what is liked first may be an organic event."""
    shown, events = dataset.transitions(split), dataset.events(split)
    positive = [dataset.responses.code(name) for name in dataset.responses.positive]
    liked = events.filter(pl.col("response").is_in(positive)).unique("session", keep="first", maintain_order=True)
    sessions, inverse = np.unique(shown.session, return_inverse=True)
    first = pl.DataFrame({"session": sessions}).join(liked, on="session", how="left", maintain_order="left")["action"]
    begun = dataset.states.lengths[shown.state] > 0  # (n,) something was liked before
    shapes = SessionShapes(
        shown.action,
        np.bincount(inverse).astype(np.int32),
        first.fill_null(PAD).to_numpy().astype(np.int32),
        np.bincount(inverse, begun).astype(np.int32),
    )
    if not shapes.later.any():
        raise InputError("No session goes on after its first positive response, so there is none to play.")
    return shapes


def _later(dataset: Dataset, config: UserConfig) -> dict[str, Answers]:
    """The other splits in order of time; the validation sessions are part of train."""
    members: dict[str, list[Transitions]] = {}
    for split in dataset.sessions["split"].unique(maintain_order=True):
        if split != config.period:
            name = "train" if split == "validation" and config.period != "train" else split
            members.setdefault(name, []).append(dataset.transitions(split))
    found = {}
    for name, parts in members.items():
        state, action, response, session = (
            np.concatenate([getattr(one, key) for one in parts]) for key in ("state", "action", "response", "session")
        )
        found[name] = Answers.group(dataset.states.positives, state, action, response, session.astype(np.int64))
    return found


def _about(dataset: Dataset, config: UserConfig, seed: int, played: str) -> dict[str, Any]:
    return {
        "method": "user",
        "seed": seed,
        "config": config.model_dump(mode="json"),
        "data": {"content_hash": dataset.content_hash, "counts": dataset.manifest["counts"]},
        "played": played,
    }


def _training(user: LearnedUser, fitted: Answers, part: Rows, epochs: list[Epoch]) -> dict[str, Any]:
    best = max(epoch.number for epoch in epochs if epoch.best)
    return {
        "impressions": len(fitted.items),
        "impressions_choosing": int((part == SELECTING).sum()),
        "epochs": len(epochs),
        "best_epoch": best,
        "scaling": user.model.mixing.tolist(),
        "known_items": int((user.support.shown >= user.support.least).sum()),
        "played_sessions": int((user.shapes.later > 0).sum()),
    }
