"""The response model: what it learns from logs whose truth is known, and what it must not look at."""

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import polars as pl
import pytest
from scipy.special import expit

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.responses import Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.models import response_regression
from bcd4rec.models.evidence import SUMMARY, Evidence, summary
from bcd4rec.models.evidence_kernels import COLUMNS, POSITIVE, TARGET
from bcd4rec.models.response_regression import NEAR, OTHERS, ResponseModel, Sample, fit_response, logistic
from bcd4rec.workflows.judging import JudgedLog, judge

Answer = Callable[[np.random.Generator, int, int], str]  # of a user, to an item in a place
FOUR = {"skip": 0.0, "click": 1.0, "buy": 5.0, "complain": -2.0}


def click(chance: float, draw: float) -> str:
    return "click" if draw < chance else "skip"


def log(answer: Answer, sessions: int = 60, slates: int = 3, size: int = 4, n_items: int = 11) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (session, step, place, int(item), answer(rng, int(item), place), f"c{item % 3}")
        for session in range(sessions)
        for step in range(slates)
        for place, item in enumerate(rng.permutation(n_items)[:size])
    ]
    columns = ["session_id", "step", "position", "item_id", "response", "category"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def four_answers(rng: np.random.Generator, item: int, place: int) -> str:
    return str(rng.choice(["skip", "click", "buy", "complain"], p=[0.5 - 0.03 * item, 0.2 + 0.03 * item, 0.1, 0.2]))


def dataset_of(frame: pl.DataFrame, rewards: dict[str, float] | None = None, validation: float = 0.2) -> Dataset:
    config = {"split": {"validation": validation}, "transitions": {"length": 6, "skips": 9}}
    return Dataset.from_frame(frame, rewards or {"skip": 0.0, "click": 1.0}, PrepareConfig.parse(config, "test"))


def flat(model: ResponseModel) -> dict[str, np.ndarray]:
    return {f"evidence.{name}": array for name, array in model.evidence.arrays().items()} | model.weights.arrays()


def equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


# The logistic regression


def test_logistic_finds_the_minimum():
    """Newton's method in double precision, with a penalty for each weight and a known part."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(700, 6)).astype(np.float32)
    known = rng.normal(size=700).astype(np.float32)
    answers = (rng.random(700) < expit(inputs @ rng.normal(size=6) + known)).astype(np.float64)
    penalty = np.array([1e-3, 1e-3, 10.0, 10.0, 50.0, 0.5])
    weights, wide = np.zeros(6), inputs.astype(np.float64)
    for _ in range(50):
        chances = expit(wide @ weights + known)
        slope = wide.T @ (chances - answers) + penalty * weights
        weights -= np.linalg.solve(wide.T @ (wide * (chances * (1 - chances))[:, None]) + np.diag(penalty), slope)
    np.testing.assert_allclose(logistic(inputs, answers, penalty, known), weights, atol=2e-3)


def test_logistic_recovers_the_weights_of_its_own_model():
    rng = np.random.default_rng(2)
    truth = np.array([-1.0, 0.7, 0.0, 1.3, -0.4])
    inputs = np.concatenate([np.ones((40_000, 1)), rng.normal(size=(40_000, 4))], axis=1).astype(np.float32)
    answers = (rng.random(40_000) < expit(inputs @ truth)).astype(np.float64)
    np.testing.assert_allclose(logistic(inputs, answers, np.full(5, 1e-3)), truth, atol=0.06)


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_logistic_of_answers_that_are_all_alike(answer):
    weights = logistic(np.ones((50, 1), np.float32), np.full(50, answer), np.array([1e-3]))
    assert np.isfinite(weights).all()
    assert expit(weights[0]) == pytest.approx(answer, abs=0.01)
    assert logistic(np.ones((0, 2), np.float32), np.empty(0), np.ones(2)).tolist() == [0.0, 0.0]


def test_fit_recovers_weights_and_puts_circumstances_at_their_average():
    rng = np.random.default_rng(3)
    count, responses = 60_000, Responses(rewards={"skip": -1.0, "click": 1.0, "buy": 5.0})
    rows = (rng.normal(size=(count, COLUMNS)) * rng.uniform(0.3, 3.0, COLUMNS)).astype(np.float32)
    rows[:, 7] *= 1e-6  # too small to say anything
    likes = rng.integers(4, size=count)
    around = np.stack(
        [np.ones(count), likes > 0, np.log1p(likes), np.zeros(count), rng.normal(2, 1, count), rng.random(count) < 0.3],
        axis=1,
    ).astype(np.float32)
    evidence, session = rng.normal(size=(2, COLUMNS)) * 0.3, rng.normal(size=(2, SUMMARY)) * 0.5
    elsewhere = np.array([[0.4, -1.5], [-0.3, 0.8]])
    evidence[:, 7] = session[:, 3] = 0
    logits = evidence @ rows.T + session @ around[:, :SUMMARY].T + elsewhere @ around[:, SUMMARY:].T
    answers = (rng.random((2, count)) < expit(logits)).astype(np.float64)
    found = response_regression._fit(
        rows, around, answers, responses, [2.0, 4.0], [None, 3], rng.integers(3, size=count).astype(np.int8)
    )
    assert found.least == -1.0
    assert found.gains.tolist() == [2.0, 4.0]
    np.testing.assert_allclose(found.evidence, evidence, atol=0.12)
    assert found.evidence[:, 7].tolist() == [0.0, 0.0]
    session[:, 0] += elsewhere @ around[:, SUMMARY:].mean(axis=0)
    # The two columns about likes are almost the same, so what they say together is compared.
    told = np.array([[1, liked > 0, math.log1p(liked), 0] for liked in range(4)])
    np.testing.assert_allclose(told @ found.session.T, told @ session.T, atol=0.15)


# Circumstances


def biased_answer(rng: np.random.Generator, item: int, place: int) -> str:
    """The first place is clicked most; items from 6 on are better, if only a little."""
    return click((0.7, 0.25, 0.1, 0.05)[place] + (0.05 if item >= 6 else 0.0), rng.random())


def biased_log(answer: Answer) -> pl.DataFrame:
    """Items below 6, the worse ones, nearly always stand in the upper half of a slate."""
    rng = np.random.default_rng(5)
    rows = []
    for session in range(900):
        for step in range(2):
            slate = [*rng.permutation(6)[:2], *(6 + rng.permutation(6)[:2])]
            slate = slate if rng.random() < 0.8 else rng.permutation(slate).tolist()
            rows += [(session, step, place, int(i), answer(rng, int(i), place)) for place, i in enumerate(slate)]
    return pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")


def by_index(dataset: Dataset, scores: np.ndarray) -> np.ndarray:
    """Scores in the order of the item ids."""
    return scores[np.argsort(dataset.vocabulary.ids.to_numpy())]


def test_places_are_not_taken_for_the_worth_of_items():
    frame = biased_log(biased_answer)
    for known in (True, False):
        dataset = dataset_of(frame if known else frame.drop("position"))
        model, _ = fit_response(dataset, 0)
        scores = by_index(dataset, model.expected_rewards(States.empty(1, 6, 9))[0])
        assert (scores[6:].mean() > scores[:6].mean()) == known
        if known:
            assert scores[6:].mean() - scores[:6].mean() == pytest.approx(0.05, abs=0.04)
        else:
            assert scores[:6].mean() - scores[6:].mean() > 0.1


def test_items_that_differ_in_place_alone_are_alike():
    frame = biased_log(lambda rng, item, place: click((0.7, 0.25, 0.1, 0.05)[place], rng.random()))
    spread = {}
    for known in (True, False):
        dataset = dataset_of(frame if known else frame.drop("position"))
        model, _ = fit_response(dataset, 0)
        spread[known] = np.ptp(model.expected_rewards(States.empty(1, 6, 9))[0])
    assert spread[True] < 0.1 < 0.25 < spread[False]


def test_circumstances_by_plain_loops():
    frame = log(four_answers, 7, 3, 13, 17)
    dataset = dataset_of(frame, FOUR, 0.0)
    shown = dataset.transitions("train")
    found = response_regression.circumstances(shown, dataset.states)
    places = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]  # of those that 13 items reach; the first is no column
    assert found.shape == (len(shown), SUMMARY + 1 + len(places))
    for row in range(len(shown)):
        state = dataset.states[shown.state[[row]]]
        np.testing.assert_allclose(found[row, :SUMMARY], summary(state)[0])
        assert found[row, SUMMARY] == pytest.approx(math.log(13))
        place = int(shown.position[row])
        wanted = [float(place == one or (one == 10 and place == 11)) for one in places]
        assert found[row, SUMMARY + 1 :].tolist() == wanted
    starts, sizes = response_regression.slates(shown)
    assert sizes.tolist() == [13] * 21
    assert starts.tolist() == list(range(0, 273, 13))


def test_logs_without_places_have_no_columns_for_them():
    dataset = dataset_of(log(four_answers).drop("position"), FOUR)
    shown = dataset.transitions("train")
    assert response_regression.circumstances(shown, dataset.states).shape[1] == SUMMARY + 1


# Several responses


def test_levels_add_up_to_the_reward():
    responses = Responses(rewards=FOUR, positive=("click", "buy"))
    levels = response_regression._levels(responses)
    for name, reward in FOUR.items():
        total = min(FOUR.values()) + sum(gain for codes, gain in levels if responses.code(name) in codes)
        assert total == pytest.approx(reward)


def test_expected_rewards_by_the_plain_formula():
    dataset = dataset_of(log(four_answers, 1500), FOUR)
    model, sample = fit_response(dataset, 0)
    weights = model.weights
    assert weights.least == -2.0
    assert weights.gains.tolist() == [2.0, 1.0, 4.0]
    states = dataset.states[:5]
    candidates = np.array([[3, 0, PAD], [7, 7, 1], [PAD, PAD, PAD], [10, 9, 8], [0, PAD, 2]], np.int32)
    found, every = model.expected_rewards(states, candidates), model.expected_rewards(states)
    rows = model.evidence.rows(states, candidates)
    for b in range(5):
        told = [1.0, *summary(states)[b, 1:].tolist()]
        for c in range(3):
            wanted = -2.0
            for r, gain in enumerate([2.0, 1.0, 4.0]):
                logit = sum(float(x) * float(w) for x, w in zip(rows[b, c], weights.evidence[r], strict=True))
                logit += sum(x * float(w) for x, w in zip(told, weights.session[r], strict=True))
                wanted += gain / (1 + math.exp(-logit))
            if candidates[b, c] == PAD:
                assert found[b, c] == -math.inf
            else:
                assert found[b, c] == pytest.approx(wanted, rel=1e-4)
                assert every[b, candidates[b, c]] == pytest.approx(wanted, rel=1e-4)
    rewards = weights.of_rows(sample.rows, summary(dataset.states[sample.transitions.state]))
    assert rewards.mean() == pytest.approx(sample.transitions.reward.mean(), abs=0.05)
    likely = by_index(dataset, every[0])
    assert likely[8:].mean() > likely[:3].mean() + 0.2  # the log clicks items with large numbers


# Clicks alone


@pytest.mark.parametrize("n_items", [12, 250])
def test_clicks_alone_tell_what_comes_next(n_items):
    """Each item is followed by the next one; which are popular says nothing."""
    rng = np.random.default_rng(6)
    starts = rng.integers(n_items, size=40 * n_items if n_items < 100 else 6 * n_items)
    dataset = Dataset.from_sequences(Sequences.of([[int(s + t) % n_items for t in range(4)] for s in starts]), n_items)
    model, _ = fit_response(dataset, 0)
    asked = rng.integers(n_items, size=40)
    scores = model.expected_rewards(States.of([[int(one)] for one in asked]))
    assert (scores.argmax(axis=1) == (asked + 1) % n_items).mean() > 0.95


def test_clicks_alone_give_the_chances_of_items():
    """Where sessions say nothing, an item is worth its share of the clicks, however often it was drawn as another."""
    rng, n_items = np.random.default_rng(9), 20
    share = rng.permutation(1 / np.arange(1, n_items + 1)) / (1 / np.arange(1, n_items + 1)).sum()
    lists = rng.choice(n_items, size=(3000, 3), p=share).tolist()
    model, _ = fit_response(Dataset.from_sequences(Sequences.of(lists), n_items), 0)
    found = model.expected_rewards(States.of([[3]]))[0]
    slope, _ = np.polyfit(np.log(share), np.log(found), 1)
    assert slope == pytest.approx(1.0, abs=0.15)
    assert found.sum() == pytest.approx(1.0, abs=0.2)
    assert found.argmax() == share.argmax()


class Recorder:
    """Evidence that keeps what it is asked about."""

    def __init__(self, evidence: Evidence):
        self.neighbours, self.items, self.content = evidence.neighbours, [], None

    def rows(self, states: States, items: np.ndarray) -> np.ndarray:
        self.items.append(items)
        return np.zeros((*items.shape, COLUMNS), np.float32)


@pytest.mark.parametrize("n_items", [3, 30, 260])
def test_items_that_were_not_chosen_are_drawn_as_often_as_is_said(n_items):
    rng = np.random.default_rng(7)
    lists = [rng.integers(n_items, size=3).tolist() for _ in range(200)]
    dataset = Dataset.from_sequences(Sequences.of(lists), n_items)
    shown = dataset.transitions("train")
    one = response_regression.take(shown, np.flatnonzero(shown.step == 1)[[4]].repeat(6000))
    _, sample = fit_response(dataset, 0)
    evidence = Recorder(sample.evidence[0])
    others = response_regression._Others(dataset, 0)
    others.draw(evidence, one)  # type: ignore[arg-type]
    _, chances, picked = others.all()
    (items,) = evidence.items
    said: dict[int, float] = {}
    for item, chance, mine in zip(items[items != PAD], chances, picked, strict=True):
        assert mine or said.setdefault(int(item), chance) == chance
    drawn = np.bincount(items[:, 1:][items[:, 1:] != PAD], minlength=n_items) / len(items)
    assert (items[:, 0] == one.action[0]).all()
    assert picked.sum() == len(items)
    assert items.shape[1] - 1 <= OTHERS <= NEAR
    for item, chance in said.items():
        assert drawn[item] == pytest.approx(chance, rel=0.2, abs=4 * math.sqrt(chance / len(items)))


# What must have no influence


def answers_of(sample: Sample) -> dict[str, np.ndarray]:
    return {field.name: getattr(sample.transitions, field.name) for field in fields(Transitions)}


def test_the_same_seed_gives_the_same_bits():
    dataset = dataset_of(log(four_answers), FOUR)
    (model, sample), (again, other) = (fit_response(dataset, 3) for _ in range(2))
    assert equal(flat(model), flat(again))
    assert np.array_equal(sample.rows, other.rows)
    assert not np.array_equal(fit_response(dataset, 4)[0].weights.evidence, model.weights.evidence)


def changed(frame: pl.DataFrame, where: pl.Expr) -> pl.DataFrame:
    """Every response there is another one."""
    turned = pl.col("response").replace_strict(dict(zip(FOUR, ["click", "buy", "complain", "skip"], strict=True)))
    return frame.with_columns(pl.when(where).then(turned).otherwise("response").alias("response"))


def test_validation_sessions_have_no_influence():
    frame = log(four_answers)
    dataset = dataset_of(frame, FOUR)
    aside = dataset.sessions.filter(pl.col("split") == "validation")["session_id"].to_list()
    assert len(aside) == 12
    other = dataset_of(changed(frame, pl.col("session_id").is_in(aside)), FOUR)
    assert dataset.frame["response"].to_list() != other.frame["response"].to_list()
    model, sample = fit_response(dataset, 0)
    again, unlike = fit_response(other, 0)
    assert equal(flat(model), flat(again))
    assert np.array_equal(sample.rows, unlike.rows)
    trained = dataset.sessions.filter(pl.col("split") == "train")["session_id"][0]
    more, _ = fit_response(dataset_of(changed(frame, pl.col("session_id") == trained), FOUR), 0)
    assert not equal(flat(model), flat(more))


def test_evidence_about_a_session_does_not_hold_its_own_responses():
    frame = log(four_answers, slates=4)
    dataset = dataset_of(frame, FOUR)
    _, sample = fit_response(dataset, 0)
    folds = {int(s): int(f) for s, f in zip(sample.transitions.session, sample.fold, strict=True)}
    assert set(folds.values()) == {0, 1, 2, 3}
    ids = dataset.sessions["session_id"].to_list()
    for row in list(folds)[:3]:
        other = dataset_of(changed(frame, pl.col("session_id") == ids[row]), FOUR)
        _, unlike = fit_response(other, 0)
        mine, before = folds[row], sample.transitions.session == row
        assert not np.array_equal(unlike.transitions.response[before], sample.transitions.response[before])
        for fold in range(4):
            same = equal(sample.evidence[fold].arrays(), unlike.evidence[fold].arrays())
            assert same == (fold == mine)
        # The rows of its fold stay, but for states that its own responses made: its first slate has none of them.
        first = sample.transitions.step == 0
        stay = (sample.fold == mine) & (~before | first)
        np.testing.assert_array_equal(unlike.rows[stay], sample.rows[stay])
        assert not np.array_equal(unlike.rows[before & ~first], sample.rows[before & ~first])
        assert not np.array_equal(unlike.rows[sample.fold != mine], sample.rows[sample.fold != mine])


def test_answers_of_the_last_slate_leave_all_rows_of_the_session_alone():
    frame = log(four_answers, slates=3)
    dataset = dataset_of(frame, FOUR)
    _, sample = fit_response(dataset, 0)
    row = int(sample.transitions.session[0])
    where = (pl.col("session_id") == dataset.sessions["session_id"][row]) & (pl.col("step") == 2)
    _, unlike = fit_response(dataset_of(changed(frame, where), FOUR), 0)
    before = sample.transitions.session == row
    assert before.sum() == 12
    np.testing.assert_array_equal(unlike.rows[before], sample.rows[before])
    assert not np.array_equal(unlike.transitions.reward[before], sample.transitions.reward[before])


def test_rows_of_slates_are_those_of_their_states():
    """Slates of many sizes, a few at a time."""
    rng = np.random.default_rng(8)
    frame = log(four_answers, 30, 3, 5).filter(pl.Series(rng.random(450) < 0.7))
    dataset = dataset_of(frame, FOUR)
    _, sample = fit_response(dataset, 0)
    for row in range(len(sample.transitions)):
        evidence, item = sample.evidence[sample.fold[row]], sample.transitions.action[row]
        wanted = evidence.rows(dataset.states[sample.transitions.state[[row]]], np.array([[item]], np.int32))
        np.testing.assert_array_equal(sample.rows[row], wanted[0, 0])


def test_large_logs_are_learned_from_in_part(monkeypatch):
    dataset = dataset_of(log(four_answers), FOUR)
    monkeypatch.setattr(response_regression, "MOST_ROWS", 100)
    monkeypatch.setattr(response_regression, "EXPLAINED_ROWS", 50)
    monkeypatch.setattr(response_regression, "AT_ONCE", 3)
    model, sample = fit_response(dataset, 0)
    assert 100 <= len(sample.transitions) < 100 + 12
    assert len(np.unique(sample.transitions.session)) == 9  # of 12 rows each: whole sessions
    assert all(np.isfinite(one).all() for one in flat(model).values())


# Little to learn from


@pytest.mark.parametrize(
    "frame",
    [
        log(lambda rng, item, place: "skip"),
        log(lambda rng, item, place: "skip", 2, 1, 1, 1),
        log(four_answers, 2, 1, 1, 1),
        log(four_answers, 2, 1, 2, 2).drop("category", "position"),
        log(lambda rng, item, place: "click", 2, 1, 1, 1),
        log(lambda rng, item, place: "click", 5, 2, 1, 3),
        log(four_answers, 3).with_columns(pl.when(pl.col("item_id") > 4).then("category")),
    ],
)
@pytest.mark.filterwarnings("error")
def test_little_is_enough(frame):
    dataset = dataset_of(frame, FOUR, 0.0)
    policy = BASELINES["response"]().fit(dataset, 0)
    scores = policy.scores(dataset.states)
    assert scores.shape == (len(dataset.states), dataset.n_items)
    assert np.isfinite(scores).all()
    assert (scores >= -2.0).all()
    assert (scores <= 5.0).all()


def test_one_session_alone():
    dataset = dataset_of(log(four_answers, 1), FOUR, 0.0)
    model, sample = fit_response(dataset, 0)
    assert len(sample.evidence) == 1
    assert np.isfinite(model.expected_rewards(dataset.states)).all()


def test_progress_is_told():
    told: list[tuple[str, float]] = []
    fit_response(dataset_of(log(four_answers), FOUR), 0, lambda stage, share: told.append((stage, share)))
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1] == ("weighing", 1.0)


# Thin logs


def tasteful(items: int, sessions: int, seed: int) -> pl.DataFrame:
    """Items of different rates, and sessions of different tastes, too few to learn these from."""
    rng = np.random.default_rng(seed)
    worth, often = rng.normal(0, 0.6, items), rng.dirichlet(np.full(items, 0.5))
    rows = []
    for session in range(sessions):
        taste = rng.normal(0, 1.0, 10)
        for step in range(int(rng.integers(1, 4))):
            for place, item in enumerate(rng.choice(items, 5, replace=False, p=often)):
                chance = expit(worth[item] + taste[item % 10] - 2.0)
                rows.append((session, step, place, int(item), click(chance, rng.random())))
    return pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")


def test_a_thin_log_is_ranked_no_worse_than_by_rates():
    """Two dozen weights learned from some hundred clicks would be mostly luck: on the mean of some logs they are not
    behind the plain smoothed rates, which they are drawn to."""
    behind = []
    for seed in range(6):
        config = PrepareConfig.parse({"split": {"test": 0.5, "validation": 0.1}}, "test")
        dataset = Dataset.from_frame(tasteful(100, 200, seed), {"skip": 0.0, "click": 1.0}, config)
        judged = judge(["response"], {}, JudgedLog(dataset, "test"), dataset, 0).to_json([])
        auc = {one["policy"]: one["auc"] for one in judged["policies"]}
        behind.append(auc["ctr"] - auc["response"])
    assert np.mean(behind) < 0.03, behind


def test_the_prior_that_explains_what_was_left_out_best():
    """Noise wants a strong prior, and weights that are there a weak one."""
    rng = np.random.default_rng(5)
    inputs = np.concatenate([np.ones((900, 1)), rng.normal(size=(900, 15))], axis=1).astype(np.float32)
    fold, known = (np.arange(900) % 4).astype(np.int8), np.zeros(900, np.float32)
    noise = (rng.random(900) < 0.3).astype(np.float64)
    assert response_regression._prior(inputs, 1, noise, known, fold) >= 1000
    told = (rng.random(900) < expit(inputs[:, 1:] @ rng.normal(0, 1.0, 15))).astype(np.float64)
    assert response_regression._prior(inputs, 1, told, known, fold) <= 100


@pytest.mark.parametrize(
    ("codes", "column"), [(["click", "buy"], POSITIVE), (["buy"], TARGET), (["skip", "click", "buy"], None)]
)
def test_the_lift_of_a_level(codes, column):
    responses = Responses(rewards=FOUR, positive=("click", "buy"), target="buy")
    assert response_regression._lift([responses.code(name) for name in codes], responses) == column
