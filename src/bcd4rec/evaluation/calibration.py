"""Are predicted probabilities of responses right? Log-loss, AUC and reliability, with intervals over sessions."""

from typing import Any, NamedTuple

import numpy as np

from bcd4rec.data.states import Doubles, Mask, Rows
from bcd4rec.evaluation.statistics import LEVEL, Interval, percentile, resampled_sums, wilson
from bcd4rec.seeding import generator

BINS = 10
RESAMPLES = 300  # an AUC has to be sorted out anew for each
SMALLEST = 1e-12


class Bin(NamedTuple):
    """Answers with similar predicted probabilities. All but the size are in percent."""

    size: int
    predicted: float  # mean
    observed: float  # share that got the response
    low: float
    high: float


class Skill(NamedTuple):
    """How well one response (or all of them) is predicted."""

    log_loss: Interval  # in nats, per shown item
    base_log_loss: float  # of the base rates
    skill: Interval  # 100 · (1 − log-loss / base), in percent
    auc: Interval | None  # in percent; None over all responses, or where a response never or always happened
    bins: tuple[Bin, ...] = ()
    error: float | None = None  # expected calibration error, in percentage points
    rate: float | None = None  # how often it happened, in percent

    def to_json(self) -> dict[str, Any]:
        flat: dict[str, Any] = {"base_log_loss": self.base_log_loss}
        for name, found in {"log_loss": self.log_loss, "skill": self.skill, "auc": self.auc}.items():
            value, low, high = found if found is not None else (None, None, None)
            flat |= {name: value, f"{name}_low": low, f"{name}_high": high}
        if self.bins:
            flat |= {"rate": self.rate, "calibration_error": self.error}
            flat["reliability"] = [one._asdict() for one in self.bins]
        return flat


class Calibration(NamedTuple):
    """One set of sessions."""

    impressions: int
    sessions: int
    overall: Skill
    responses: dict[str, Skill]  # each against the rest

    def to_json(self) -> dict[str, Any]:
        by_response = {name: skill.to_json() for name, skill in self.responses.items()}
        counts = {"impressions": self.impressions, "sessions": self.sessions}
        return counts | {"overall": self.overall.to_json(), "responses": by_response}


def calibration(
    probabilities: Doubles, responses: Rows, sessions: Rows, names: tuple[str, ...], base: Doubles, seed: int = 0
) -> Calibration:
    """Judge `probabilities` (n, R) of what happened, beside the base rates (R,) of the sessions learned from."""
    row = np.unique(sessions, return_inverse=True)[1]  # (n,) dense numbers of the sessions
    truth = np.eye(len(names), dtype=np.bool_)[responses]  # (n, R)
    happened = probabilities[np.arange(len(responses)), responses]
    overall = _skill(_losses(happened), _losses(base[responses]), row, seed)
    found = {}
    for code, name in enumerate(names):
        said, got = probabilities[:, code], truth[:, code]
        skill = _skill(binary_losses(said, got), binary_losses(np.full(len(got), base[code]), got), row, seed)
        bins = reliability(said, got)
        found[name] = skill._replace(
            auc=auc_interval(said, got, row, seed),
            bins=bins,
            error=sum(one.size * abs(one.predicted - one.observed) for one in bins) / len(got),
            rate=100 * float(got.mean()),
        )
    return Calibration(len(responses), int(row.max()) + 1, overall, found)


def _losses(happened: Doubles) -> Doubles:
    """(n,) −log of the probabilities of what happened."""
    return np.asarray(-np.log(np.maximum(happened, SMALLEST)))


def binary_losses(said: Doubles, got: Mask) -> Doubles:
    """(n,) log-loss of one response against the rest."""
    return _losses(np.where(got, said, 1.0 - said))


def _skill(losses: Doubles, base: Doubles, row: Rows, seed: int) -> Skill:
    columns = np.stack([np.bincount(row, losses), np.bincount(row, base), np.bincount(row).astype(np.float64)])
    own, other, count = columns.sum(axis=1)
    drawn = resampled_sums(columns, generator(seed, "calibration"), RESAMPLES)
    loss = percentile(own / count, drawn[0] / drawn[2], LEVEL)
    spare = np.maximum(drawn[1], SMALLEST)  # a response that never was nor is has nothing to save
    better = percentile(100 * (1 - own / max(other, SMALLEST)), 100 * (1 - drawn[0] / spare), LEVEL)
    return Skill(loss, float(other / count), better, None)


def weighted_auc(order: Rows, got: Mask, weights: Doubles) -> float:
    """In percent: the chance that an answer with the response was ranked above one without, ties counting half.

    `order` (n,) are dense ranks of the predicted probabilities; answers count as often as `weights` say.
    """
    with_it = np.bincount(order, weights * got)
    without = np.bincount(order, weights * ~got)
    below = without.cumsum() - without / 2
    total = with_it.sum() * without.sum()
    return float(100 * (with_it @ below) / total) if total else float("nan")


def auc_interval(said: Doubles, got: Mask, row: Rows, seed: int = 0) -> Interval | None:
    """AUC with an interval over sessions; None where there is nothing to tell apart."""
    if got.all() or not got.any():
        return None
    order = np.unique(said, return_inverse=True)[1]
    rng, count = generator(seed, "auc"), int(row.max()) + 1
    drawn = [
        weighted_auc(order, got, np.bincount(rng.integers(count, size=count), minlength=count)[row].astype(np.float64))
        for _ in range(RESAMPLES)
    ]
    replicates = np.array([value for value in drawn if value == value])
    return percentile(weighted_auc(order, got, np.ones(len(got))), replicates, LEVEL)


def reliability(said: Doubles, got: Mask, bins: int = BINS) -> tuple[Bin, ...]:
    """Answers in order of their predicted probability, cut into `bins` of equal size; limits are Wilson's."""
    parts = [part for part in np.array_split(np.argsort(said, kind="stable"), bins) if len(part)]
    found = []
    for part in parts:
        hits, count = float(got[part].sum()), float(len(part))
        low, high = wilson(np.array([hits]), np.array([count]))
        mean = 100 * float(said[part].mean())
        found.append(Bin(len(part), mean, 100 * hits / count, float(low[0]), float(high[0])))
    return tuple(found)
