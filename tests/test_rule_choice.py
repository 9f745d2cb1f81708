"""The users that slate rules are tried on, against plain loops; and rules chosen from logs whose truth is known."""

import math

import numpy as np
import polars as pl
import pytest

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models import slate_choice
from bcd4rec.models.slate_choice import AGAIN, ALL, ITEM, NEAR, PLACE, SKIPPED, LoggedSlates, SlateUsers, likeness
from bcd4rec.policies import rule_choice
from bcd4rec.policies.policy import learned_policy
from bcd4rec.policies.rule_choice import ChosenRule, Played
from bcd4rec.policies.rule_choice import choose_rule as choose
from bcd4rec.policies.scorer import Scorer

KINDS, EACH, SLATE, STEPS = 4, 6, 3, 8
ITEMS = KINDS * EACH


class Tastes:
    """Prefers kinds that the session has liked, and some items for no reason; never learns from skips."""

    n_items = ITEMS
    whims = 0.3 * np.random.default_rng(9).standard_normal(ITEMS)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        kinds = np.where(states.positives == PAD, -1, states.positives % KINDS)
        liked = (kinds[:, :, None] == np.arange(KINDS)).any(axis=1)  # (B, KINDS)
        scores = 0.5 * liked[:, np.arange(ITEMS) % KINDS] + self.whims
        if candidates is not None:
            scores = np.where(candidates == PAD, -np.inf, np.take_along_axis(scores, np.maximum(candidates, 0), axis=1))
        return scores.astype(np.float32)


def choose_rule(scorer: Scorer, dataset: Dataset, seed: int, users: SlateUsers | None = None) -> ChosenRule:
    return choose(learned_policy(scorer, dataset), dataset, seed, users)


def log(
    redundancy: float, again: float = 0.0, sessions: int = 500, slate: int = SLATE, repeats: float = 0.0
) -> Dataset:
    """Users like one kind, and choose one item of a slate or none.

    An item loses log(1 + `redundancy` · others of its kind in the slate), and `again` if it was just skipped. With
    the chance `repeats`, a skipped slate is shown once more.
    """
    rng, rows = np.random.default_rng(3), []
    for session in range(sessions):
        favourite, before = rng.integers(KINDS), np.empty(0, int)
        for step in range(STEPS):
            items = before if len(before) and rng.random() < repeats else rng.permutation(ITEMS)[:slate]
            kinds = items % KINDS
            others = (kinds[:, None] == kinds).sum(axis=1) - 1
            worth = np.exp(np.where(kinds == favourite, 0.5, -2.0) - again * np.isin(items, before))
            worth /= 1.0 + redundancy * others
            chosen = (np.cumsum(worth) / (1.0 + worth.sum()) <= rng.random()).sum()
            answers = ["click" if place == chosen else "skip" for place in range(slate)]
            rows += [(session, step, place, int(items[place]), answers[place]) for place in range(slate)]
            before = items if chosen == slate else np.empty(0, int)
    return dataset(rows)


def dataset(rows: list[tuple[int, int, int, int, str]], validation: float = 0.2) -> Dataset:
    frame = pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")
    return Dataset.from_frame(frame, {"skip": 0, "click": 1}, PrepareConfig(split=SplitConfig(validation=validation)))


@pytest.fixture(scope="module")
def redundant() -> Dataset:
    return log(redundancy=4.0)


def test_likeness_is_a_plain_sum() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((9, 2)).astype(np.float32)
    items, others = np.array([[3, 5, PAD], [1, 2, 8]], np.int32), np.array([[5, 0, 3, PAD], [PAD] * 4], np.int32)
    found = likeness(items, others, vectors)
    for row in range(2):
        for place, item in enumerate(items[row]):
            expected = 0.0
            for other in others[row]:
                if PAD not in (item, other) and other != item:
                    expected += max(
                        sum(float(a) * float(b) for a, b in zip(vectors[item], vectors[other], strict=True)), 0
                    )
            assert found[row, place] == pytest.approx(expected, abs=1e-5)


def test_slates_know_the_skipped_slate_before() -> None:
    rows = [
        (0, 0, 0, 3, "skip"), (0, 0, 1, 4, "skip"), (0, 1, 0, 5, "skip"), (0, 1, 1, 3, "click"), (0, 2, 0, 1, "skip"),
        (1, 0, 0, 1, "skip"), (1, 1, 0, 2, "click"), (1, 1, 1, 0, "skip"),
    ]  # fmt: skip
    shown = dataset(rows, validation=0.0).transitions("train")
    logged = LoggedSlates.of(shown, shown.response == 1)
    assert logged.sizes.tolist() == [2, 2, 1, 1, 2]
    assert logged.previous.tolist() == [-1, 0, -1, -1, 3]
    assert logged.items(logged.previous[[1, 2]], shown.action).tolist() == [shown.action[:2].tolist(), [PAD, PAD]]
    seen = sorted(int(row) for _, rows, inside in logged.batches() for row in rows[inside])
    assert seen == list(range(len(shown)))


def test_chances_are_the_formula(redundant: Dataset) -> None:
    users = slate_choice.fit_slate_users(redundant, 0)
    states = redundant.states[np.array([5, 40, 77])]
    items = np.array([[1, 5, 9, 2], [3, 0, PAD, PAD], [8, 7, 6, 5]], np.int32)
    skipped = np.array([[5, 2], [PAD, PAD], [6, 11]], np.int32)
    found = users.chances(states, items, skipped)
    tastes = users.evidence.items.tastes
    rows = users.evidence.rows(states, items)
    for row in range(3):
        worth = []
        for place, item in enumerate(items[row]):
            if item == PAD:
                continue
            mine = [one for one in skipped[row] if one != PAD]
            near = sum(max(float(tastes[item] @ tastes[one]), 0.0) for one in mine if one != item)
            others = sum(max(float(tastes[item] @ tastes[one]), 0.0) for one in items[row] if one not in (item, PAD))
            likes, skips = (states.positives[row] != PAD).sum(), (states.skips[row] != PAD).sum()
            session = [1.0, min(likes, 1), math.log1p(likes), math.log1p(skips), float(bool(mine))]
            inputs = [*rows[row, place], math.log1p(place), float(item in mine), math.log1p(near), *session]
            logit = sum(float(a) * float(b) for a, b in zip(inputs, users.weights, strict=True))
            worth.append(math.exp(logit) / (1.0 + users.redundancy * others))
        expected = [one / (1.0 + sum(worth)) for one in worth]
        assert found[row, : len(worth)] == pytest.approx(expected, rel=1e-3)
        assert (found[row, len(worth) :] == 0).all()
    assert users.one_choice


def test_one_choice_takes_one_item_at_most(redundant: Dataset) -> None:
    users = slate_choice.fit_slate_users(redundant, 0)
    chances = np.array([[0.2, 0.3, 0.1]] * 4)
    luck = np.array([[0.1, 0, 0], [0.2, 0, 0], [0.55, 0, 0], [0.6, 0, 0]])
    assert users.answers(chances, luck).argmax(axis=1).tolist()[:3] == [0, 1, 2]
    assert users.answers(chances, luck).sum(axis=1).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("one_choice", [True, False])
def test_weights_minimise_a_plain_loss(one_choice: bool) -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([3, 1, 4, 2])
    starts = np.append(0, np.cumsum(sizes)[:-1])
    liked = np.array([0, 1, 0, 1, 0, 0, 1, 1, 0, 0], np.bool_)
    logged = LoggedSlates(starts, sizes, np.array([0, 0, 1, 2]), liked, np.full(4, -1))
    inputs, offset = rng.standard_normal((10, ALL)).astype(np.float32), rng.standard_normal(10)

    def plain(weights: np.ndarray) -> float:
        total = 0.0
        for start, size in zip(starts, sizes, strict=True):
            rows = range(start, start + size)
            logits = [float(inputs[row] @ weights) + offset[row] for row in rows]
            if one_choice:
                first = next((logit for row, logit in zip(rows, logits, strict=True) if liked[row]), 0.0)
                total += math.log(1 + sum(math.exp(logit) for logit in logits)) - first
            else:
                for row, logit in zip(rows, logits, strict=True):
                    total += math.log(1 + math.exp(logit)) - logit * liked[row]
        return total + sum(0.5 * (10.0 if column < ITEM else 1e-3) * w**2 for column, w in enumerate(weights))

    weights, reached = slate_choice.fit_weights(logged, inputs, offset, one_choice)
    assert reached == pytest.approx(plain(weights), rel=1e-4)
    for _ in range(10):
        assert plain(weights + 0.05 * rng.standard_normal(ALL)) > reached
    alike = rng.random(10)
    z = slate_choice.redundancy_score(logged, inputs, weights, alike, one_choice)
    slopes = dict.fromkeys((0, 1, 2), 0.0)
    for slate, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows = range(start, start + size)
        worth = [math.exp(float(inputs[row] @ weights)) for row in rows]
        first = next((row for row in rows if liked[row]), None)
        for row, one in zip(rows, worth, strict=True):
            chance = one / (1 + (sum(worth) if one_choice else one))
            hit = row == first if one_choice else liked[row]
            slopes[[0, 0, 1, 2][slate]] += (chance - hit) * alike[row]
    assert z == pytest.approx(sum(slopes.values()) / math.sqrt(sum(one**2 for one in slopes.values())), rel=1e-3)


def test_people_who_choose_and_people_who_answer_each_item() -> None:
    rng = np.random.default_rng(2)
    sizes, starts = np.full(200, 5), np.arange(0, 1000, 5)
    several = rng.random(1000) < 0.3
    one = np.zeros(1000, np.bool_)
    one[starts + rng.integers(5, size=200)] = True
    for liked, chooses in ((several, False), (one, True)):
        assert slate_choice.people_choose(LoggedSlates(starts, sizes, starts, liked, starts)) is chooses


def test_gains_are_paired_and_by_session() -> None:
    mine, other = (
        Played(np.array([3.0, 1.0, 2.0]), np.array([4.0, 2.0, 5.0])),
        Played(np.ones(3), np.array([4.0, 2.0, 5.0])),
    )
    gain, error = mine.gain(other)
    rates = 6 / 11, 3 / 11
    apart = [
        (a - rates[0] * n - b + rates[1] * n) / (11 / 3)
        for a, b, n in zip([3, 1, 2], [1, 1, 1], [4, 2, 5], strict=True)
    ]
    assert gain == pytest.approx(rates[0] - rates[1])
    assert error == pytest.approx(np.std(apart, ddof=1) / math.sqrt(3))


def test_slates_are_spread_where_alike_items_cost(redundant: Dataset) -> None:
    chosen = choose_rule(Tastes(), redundant, seed=0)
    assert chosen.scores["redundancy"] > 0
    assert chosen.scores["redundancy_z"] > 3
    assert chosen.diversity > 0
    assert chosen.unavailable == "nothing"
    assert f"λ = {chosen.diversity:g}" in chosen.reason


def test_slates_are_not_spread_where_every_item_is_answered_for_itself() -> None:
    rng, rows = np.random.default_rng(6), []
    for session in range(500):
        favourite = rng.integers(KINDS)
        for step in range(STEPS):
            items = rng.permutation(ITEMS)[:SLATE]
            liked = rng.random(SLATE) < np.where(items % KINDS == favourite, 0.6, 0.1)
            answers = np.where(liked, "click", "skip").tolist()
            rows += [(session, step, place, int(items[place]), answers[place]) for place in range(SLATE)]
    chosen = choose_rule(Tastes(), dataset(rows), seed=0)
    assert not chosen.scores["one_choice"]
    assert chosen.scores["redundancy"] == 0
    assert chosen.diversity == 0
    assert "not spread" in chosen.reason


@pytest.mark.parametrize(("again", "after_skip"), [(3.0, "exclude"), (-3.0, "repeat")])
def test_just_skipped_items(again: float, after_skip: str) -> None:
    chosen = choose_rule(Tastes(), log(redundancy=0.0, again=again, repeats=0.5), seed=0)
    assert chosen.after_skip == after_skip


def test_what_the_log_hardly_repeats_is_left_out() -> None:
    rows = []
    rng = np.random.default_rng(4)
    for session in range(200):
        before: set[int] = set()
        for step in range(4):
            items = [item for item in rng.permutation(ITEMS).tolist() if item not in before][:SLATE]
            before = set(items)
            rows += [
                (session, step, place, item, "click" if rng.random() < 0.1 else "skip")
                for place, item in enumerate(items)
            ]
    chosen = choose_rule(Tastes(), dataset(rows), seed=0)
    assert chosen.after_skip == "exclude"
    assert "0.0 % of the places" in chosen.reason


def test_same_log_same_rule(redundant: Dataset) -> None:
    assert choose_rule(Tastes(), redundant, seed=0) == choose_rule(Tastes(), redundant, seed=0)


def test_candidates_of_a_large_catalogue(redundant: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many items as there are, playing with the most shown items is playing with all."""
    whole = choose_rule(Tastes(), redundant, seed=0)
    monkeypatch.setattr(rule_choice, "_most_shown", lambda users, n_items: np.arange(n_items, dtype=np.int32))
    assert choose_rule(Tastes(), redundant, seed=0) == whole


def test_users_can_be_shared(redundant: Dataset) -> None:
    users = slate_choice.fit_slate_users(redundant, 0)
    popular = BASELINES["popular"].parse({}, "").fit(redundant, 0)
    assert choose_rule(popular, redundant, 0, users=users) == choose_rule(popular, redundant, 0)


def test_one_item_a_slate_has_nothing_to_spread() -> None:
    chosen = choose_rule(Tastes(), log(redundancy=0.0, slate=1, sessions=100), seed=0)
    assert chosen.diversity == 0
    assert "one item" in chosen.reason


def rows_of(answers: list[str], sessions: int = 30) -> list[tuple[int, int, int, int, str]]:
    return [
        (s, place // 2, place % 2, (s + place) % 7, one) for s in range(sessions) for place, one in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (dataset(rows_of(["click"] * 4)), "nothing was skipped"),
        (dataset(rows_of(["skip", "click"])), "fewer than 100 slates"),
        (dataset(rows_of(["skip", "click"]), validation=0.0), "no sessions were held out"),
        (dataset([*rows_of(["skip"] * 4), (99, 0, 0, 1, "click")]), "nothing was liked"),
    ],
)
def test_logs_that_cannot_tell(data: Dataset, reason: str) -> None:
    popular = BASELINES["popular"].parse({}, "").fit(data, 0)
    chosen = choose_rule(popular, data, seed=0)
    assert (chosen.diversity, chosen.after_skip, chosen.scores) == (0.0, "repeat", {})
    assert reason in chosen.reason


def test_column_numbers_do_not_overlap() -> None:
    assert len({PLACE, AGAIN, NEAR, SKIPPED}) == 4
    assert max(PLACE, AGAIN, NEAR) < ITEM <= SKIPPED < ALL
