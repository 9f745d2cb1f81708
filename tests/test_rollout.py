"""Rollouts against a plain loop over users, and their logs against what `prepare` makes of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data import checking, preparing
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.schema import Log
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.slates import AfterSkip, Exploration, SlateRule, Unavailable
from bcd4rec.policies.uniform import Uniform
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import Environment, EnvironmentOptions, Outcome
from bcd4rec.sim.recsim import recsim
from bcd4rec.sim.rollout import Oracle, policy_of
from bcd4rec.sim.rollout import rollout as play

USERS, ITEMS, SLATE, HORIZON = 29, 13, 3, 7
RANDOM = Exploration(kind="epsilon", epsilon=1.0)
EPSILON = Exploration(kind="epsilon", epsilon=0.4)
SKIP, CLICK, BUY = range(3)


@dataclass(frozen=True)
class Rules:
    """What a policy remembers, and how it makes slates."""

    exploration: Exploration = field(default_factory=Exploration)
    after_skip: AfterSkip = "repeat"
    length: int = 10
    skips: int = 0


USUAL = Rules()


def rollout(env: Environment, scorer: Scorer, users: int, seed: int, rules: Rules = USUAL, **more: Any) -> pl.DataFrame:
    """A policy with this scorer and these rules meets the users."""
    rule = SlateRule(after_skip=rules.after_skip, unavailable=env.unavailable, exploration=rules.exploration)
    policy = policy_of(scorer, env, "test", rule, Memory(length=rules.length, skips=rules.skips))
    return play(env, policy, users, seed, **more)


class Scripted:
    """Users whose answers and session lengths are written in tables; several items of a slate may be liked."""

    responses: Responses = DIGINETICA
    n_items, slate_size, horizon = ITEMS, SLATE, HORIZON

    def __init__(self, unavailable: Unavailable = "liked", categories: IntArray | None = None, likes: float = 0.2):
        self.unavailable, self.categories, self.likes = unavailable, categories, likes

    def reset(self, users: int, seed: int) -> None:
        rng = generator(seed, "scripted")
        chance = rng.random((users, HORIZON, ITEMS))
        self.answers = np.where(chance < self.likes / 3, BUY, np.where(chance < self.likes, CLICK, SKIP))
        self.lengths = rng.integers(1, HORIZON + 1, users)
        self.shown: list[IntArray] = []

    def step(self, slates: IntArray) -> Outcome:
        now = len(self.shown)
        self.shown.append(slates.copy())
        answers = np.take_along_axis(self.answers[:, now], np.maximum(slates, 0), axis=1)
        answers[slates == PAD] = BUY  # an answer to nothing must not count
        return Outcome(answers.astype(np.int8), self.lengths <= now + 1)

    def oracle_scores(self) -> FloatArray:
        return self.answers[:, len(self.shown) % HORIZON].astype(np.float32)


def score(positives: list[int], skips: list[int], item: int) -> float:
    """Depends on the order of both histories, and has ties."""
    liked = sum((place + 2) * one for place, one in enumerate(positives))
    passed = sum((place + 1) * one for place, one in enumerate(skips))
    return float((liked * 7 + passed * 3 + item * (liked + 5)) % 9)


@dataclass
class Watching:
    """Scores as above; remembers the states it was shown, step by step."""

    n_items: int = ITEMS
    seen: list[States] = field(default_factory=list)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        self.seen.append(states)
        rows = [content(states, row) for row in range(len(states))]
        every = np.array([[score(*row, item) for item in range(ITEMS)] for row in rows], np.float32)
        return every if candidates is None else np.take_along_axis(every, np.maximum(candidates, 0), axis=1)


def content(states: States, row: int) -> tuple[list[int], list[int]]:
    positives, skips = (
        [item for item in part[row].tolist() if item != PAD] for part in (states.positives, states.skips)
    )
    return positives, skips


@dataclass
class Plain:
    """One user after the other, one item after the other."""

    env: Scripted
    rules: Rules
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    states: dict[tuple[int, int], tuple[list[int], list[int]]] = field(default_factory=dict)  # (user, step) -> state
    available: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def user(self, user: int, logged: dict[tuple[int, int], list[int]] | None = None) -> None:
        """The greedy ranking is shown, or, if `logged` is given, what was logged."""
        positives: list[int] = []
        skips: list[int] = []
        gone: set[int] = set()
        just_skipped: list[int] = []
        for step in range(self.env.lengths[user]):
            state = positives[-self.rules.length :], skips[-self.rules.skips :] if self.rules.skips else []
            self.states[user, step] = state
            out = gone | (set(just_skipped) if self.rules.after_skip == "exclude" else set())
            left = [item for item in range(ITEMS) if item not in out]
            self.available[user, step] = left
            ranking = sorted(left, key=lambda item: (-score(*state, item), item))
            slate = ranking[:SLATE] if logged is None else logged.get((user, step), [])
            answers = [int(self.env.answers[user, step, item]) for item in slate]
            for place, (item, answer) in enumerate(zip(slate, answers, strict=True)):
                self.rows.append((user, step, f"{user}-{step}", place, item, DIGINETICA.names[answer]))
                (positives if answer != SKIP else skips).append(item)
                if self.env.unavailable == "shown" or (self.env.unavailable == "liked" and answer != SKIP):
                    gone.add(item)
            just_skipped = slate if all(answer == SKIP for answer in answers) else []


def plain(env: Scripted, rules: Rules, log: pl.DataFrame | None = None) -> Plain:
    slates = None
    if log is not None:
        slates = {(user, step): items for user, step, items in by_request(log).iter_rows()}
    loop = Plain(env, rules)
    for user in range(len(env.lengths)):
        loop.user(user, slates)
    return loop


def by_request(log: pl.DataFrame, column: str = "item_id") -> pl.DataFrame:
    return log.group_by("session_id", "step", maintain_order=True).agg(column)


def check_states(seen: list[States], loop: Plain) -> None:
    """A policy is asked about those who are still there, in their order."""
    for (user, step), expected in loop.states.items():
        there = [one for one, length in enumerate(loop.env.lengths) if length > step]
        assert len(seen[step]) == len(there)
        assert content(seen[step], there.index(user)) == expected


RULES = [
    Rules(length=4),
    Rules(length=2, after_skip="exclude"),
    Rules(length=3, skips=5),
    Rules(length=5, skips=2, after_skip="exclude"),
]
every_rule = pytest.mark.parametrize("rules", RULES, ids=lambda one: f"L{one.length}-S{one.skips}-{one.after_skip}")
every_kind = pytest.mark.parametrize("unavailable", ["liked", "shown", "nothing"])


@every_rule
@every_kind
def test_a_rollout_is_the_plain_loop(unavailable, rules):
    env, policy = Scripted(unavailable), Watching()
    log = rollout(env, policy, USERS, 5, rules)
    loop = plain(env, rules)
    assert log.drop("propensity").rows() == loop.rows
    assert log["propensity"].to_list() == [1.0] * len(log)
    check_states(policy.seen, loop)


@every_rule
@every_kind
def test_exploring_rollouts_show_available_items_with_their_exact_propensities(unavailable, rules):
    env, policy = Scripted(unavailable), Watching()
    log = rollout(env, policy, USERS, 6, replace(rules, exploration=EPSILON))
    loop = plain(env, rules, log)
    assert log.drop("propensity").rows() == loop.rows
    check_states(policy.seen, loop)
    found = zip(by_request(log).rows(), by_request(log, "propensity")["propensity"], strict=True)
    for (user, step, slate), propensities in found:
        left, state = list(loop.available[user, step]), loop.states[user, step]
        for item, propensity in zip(slate, propensities, strict=True):
            best = min(left, key=lambda one: (-score(*state, one), one))
            assert propensity == pytest.approx(0.4 / len(left) + 0.6 * (item == best), rel=1e-6)
            left.remove(item)


def test_the_log_has_the_canonical_columns_in_order():
    log = rollout(Scripted(), Watching(), USERS, 0)
    assert log.schema == pl.Schema(
        {
            "session_id": pl.Int64,
            "step": pl.Int32,
            "request_id": pl.String,
            "position": pl.Int32,
            "item_id": pl.Int64,
            "response": pl.String,
            "propensity": pl.Float64,
        }
    )
    assert log.equals(log.sort("session_id", "step", "position"))
    assert set(log["response"]) == {"skip", "click", "buy"}


def test_categories_go_with_their_items():
    categories = np.array([item * 5 % 4 for item in range(ITEMS)], np.int32)
    log = rollout(Scripted(categories=categories), Watching(), USERS, 0)
    assert log.columns[-2:] == ["category", "propensity"]
    assert log["category"].to_list() == [item * 5 % 4 for item in log["item_id"]]


def test_ended_users_are_shown_nothing():
    env = Scripted()
    log = rollout(env, Uniform(ITEMS), USERS, 1, Rules(exploration=RANDOM))
    for step, slates in enumerate(env.shown):
        alive = step < env.lengths
        assert (slates[~alive] == PAD).all()
        assert (slates[alive] != PAD).all()
    steps = log.group_by("session_id").agg(pl.col("step").max()).sort("session_id")
    assert (steps["step"].to_numpy() + 1).tolist() == env.lengths.tolist()


def test_it_stops_when_all_users_have_left():
    env = Scripted()
    for seed in range(5):
        rollout(env, Uniform(ITEMS), 2, seed)
        assert len(env.shown) == env.lengths.max()


def test_a_catalogue_that_runs_out():
    """13 items in slates of 3: one item is left for the fifth step and nothing for the sixth."""
    env = Scripted("shown")
    log = rollout(env, Watching(), USERS, 2)
    sizes = by_request(log).with_columns(pl.col("item_id").list.len())
    assert set(sizes.filter(pl.col("step") < 4)["item_id"]) == {SLATE}
    assert set(sizes.filter(pl.col("step") == 4)["item_id"]) == {1}
    assert log["step"].max() == 4
    assert env.lengths.max() > 5


def test_after_skip_repeat_shows_the_same_again_and_exclude_does_not():
    for rule in ("repeat", "exclude"):
        log = rollout(Scripted("liked", likes=0.0), Watching(), USERS, 0, Rules(after_skip=rule))
        slates = {(user, step): items for user, step, items in by_request(log).iter_rows()}
        for (user, step), items in slates.items():
            if step:
                before = slates[user, step - 1]
                assert items == before if rule == "repeat" else not set(items) & set(before)
            if step > 1:  # what was kept out once may come back
                assert items == slates[user, step - 2]


def prepared(log: pl.DataFrame, folder: Path, config: TransitionConfig) -> Dataset:
    log.write_parquet(folder / "log.parquet")
    assert not checking.check(Log(folder / "log.parquet"), DIGINETICA).problems
    preparing.prepare(
        Log(folder / "log.parquet"), DIGINETICA, preparing.PrepareConfig(transitions=config), folder / "dataset"
    )
    return Dataset.load(folder / "dataset")


@every_kind
@pytest.mark.parametrize("after_skip", ["repeat", "exclude"])
@pytest.mark.parametrize(
    "config",
    [TransitionConfig(history="positives", length=3, skips=0), TransitionConfig(length=4, skips=5)],
    ids=["positives", "all"],
)
def test_prepare_finds_the_states_that_the_policy_saw(config, after_skip, unavailable, tmp_path):
    env, policy = Scripted(unavailable, likes=0.4), Watching()
    rules = Rules(length=config.length, skips=config.skips, after_skip=after_skip, exploration=EPSILON)
    log = rollout(env, policy, USERS, 8, rules)
    dataset = prepared(log, tmp_path, config)
    number = dataset.vocabulary.ids.to_numpy()  # items that were never shown have no index

    def original(history: IntArray) -> list[int]:
        return [PAD if item == PAD else int(number[item]) for item in history]

    sessions = dataset.sessions["session_id"].to_list()
    found = dataset.frame.select("session", "step", "state", "action", "response", "propensity").rows()
    assert len(found) == len(log)
    for session, step, state, _, _, _ in found:
        row = int((env.lengths[: sessions[session]] > step).sum())  # the policy is asked about those still there
        assert original(dataset.states.positives[state]) == policy.seen[step].positives[row].tolist()
        assert original(dataset.states.skips[state]) == policy.seen[step].skips[row].tolist()
    played = [(sessions[one[0]], one[1], int(number[one[3]]), DIGINETICA.names[one[4]]) for one in found]
    assert sorted(played) == sorted(log.select("session_id", "step", "item_id", "response").rows())
    by_hand = {
        (user, step, item): p for user, step, item, p in log["session_id", "step", "item_id", "propensity"].rows()
    }
    for one, (user, step, item, _) in zip(found, played, strict=True):
        assert one[5] == pytest.approx(by_hand[user, step, item], rel=1e-6)


def answers(log: pl.DataFrame) -> dict[tuple[int, int, int], str]:
    return {
        (user, step, item): said for user, step, item, said in log["session_id", "step", "item_id", "response"].rows()
    }


def test_the_same_users_under_the_same_seed_whatever_the_policy():
    env = Scripted()
    greedy = rollout(env, Watching(), USERS, 4)
    lengths = env.lengths.tolist()
    random = rollout(env, Uniform(ITEMS), USERS, 4, Rules(exploration=RANDOM))
    assert env.lengths.tolist() == lengths
    one, other = answers(greedy), answers(random)
    both = one.keys() & other.keys()
    assert len(both) > 20
    assert one.keys() != other.keys()
    assert all(one[key] == other[key] for key in both)


def test_exploration_does_not_depend_on_the_users():
    rules = Rules(exploration=RANDOM)
    cold, warm = (Scripted("nothing", likes=likes) for likes in (0.0, 0.9))
    logs = [rollout(env, Uniform(ITEMS), USERS, 4, rules) for env in (cold, warm)]
    assert logs[0]["item_id"].to_list() == logs[1]["item_id"].to_list()
    assert logs[0]["response"].to_list() != logs[1]["response"].to_list()


@pytest.mark.parametrize("exploration", [RANDOM, EPSILON, Exploration(kind="softmax", temperature=2.0)])
def test_same_seed_same_log_and_another_seed_another(exploration):
    rules = Rules(exploration=exploration)
    first, again, other = (rollout(Scripted(), Watching(), USERS, seed, rules) for seed in (3, 3, 4))
    assert first.equals(again)
    assert not first.equals(other)


def test_a_policy_for_another_catalogue_is_refused():
    with pytest.raises(InputError, match="The policy knows 5 items, but the environment has 13"):
        play(Scripted(), Policy(Uniform(5), Vocabulary(pl.Series("item_id", range(5)))), USERS, 0)


def test_progress_runs_from_nothing_towards_the_end():
    shares: list[float] = []
    rollout(Scripted(), Watching(), USERS, 0, tick=lambda stage, share: shares.append(share))
    assert shares == [step / HORIZON for step in range(HORIZON)]


def test_the_oracle_sees_what_the_environment_tells():
    env = Scripted()
    env.reset(4, 0)
    oracle = Oracle(env)
    assert oracle.n_items == ITEMS
    every = oracle.scores(States.empty(4))
    np.testing.assert_array_equal(every, env.answers[:, 0])
    asked = np.array([[2, PAD], [PAD, 0], [12, 12], [1, 0]], np.int32)
    found = oracle.scores(States.empty(4), asked)
    for row, place in np.ndindex(asked.shape):
        item = asked[row, place]
        assert found[row, place] == (-np.inf if item == PAD else every[row, item])


def test_the_oracle_beats_chance():
    env: Environment = recsim(EnvironmentOptions())
    seen = rollout(env, Oracle(env), 100, 0)
    blind = rollout(env, Uniform(env.n_items), 100, 0, Rules(exploration=RANDOM))
    clicks = [(log["response"] == "click").sum() / 2000 for log in (seen, blind)]
    assert clicks[0] > clicks[1] + 0.15


def test_recsim_takes_a_preset_and_nothing_else():
    assert recsim(EnvironmentOptions(preset="single")).slate_size == 1
    with pytest.raises(InputError, match="--env recsim takes no --model"):
        recsim(EnvironmentOptions(model=Path("model")))
    with pytest.raises(InputError, match="Unknown preset 'papre'"):
        recsim(EnvironmentOptions(preset="papre"))


class Searched(Scripted):
    """Scripted users who have clicked an item before; every third one has not."""

    def reset(self, users: int, seed: int) -> None:
        super().reset(users, seed)
        first = generator(seed, "first").integers(ITEMS, size=(users, 1)).astype(np.int32)
        self.first = np.where(np.arange(users)[:, None] % 3 == 2, PAD, first).astype(np.int32)

    def openings(self) -> IntArray:
        return self.first


@pytest.mark.parametrize("exploration", [Exploration(), EPSILON, RANDOM, Exploration(kind="softmax")])
@pytest.mark.parametrize("oracle", [False, True])
def test_candidates_are_of_the_category_that_was_clicked_first(exploration, oracle):
    categories = np.array([0, 1, 2, 3] * 3 + [-1], np.int32)
    env = Searched("recommended", categories)
    policy = Oracle(env) if oracle else Watching()
    log = rollout(env, policy, USERS, 3, Rules(exploration), candidates="category")
    free = set()
    for user, shown in log.group_by("session_id").agg("item_id").iter_rows():
        first = int(env.first[user, 0])
        if first == PAD:
            free |= {int(categories[item]) for item in shown}
        elif categories[first] >= 0:
            assert {int(categories[item]) for item in shown} == {int(categories[first])}
            assert len(shown) == len(set(shown)) <= 3  # of three items each once
    assert free == {-1, 0, 1, 2, 3}


def test_candidates_by_category_need_categories():
    with pytest.raises(InputError, match="need items with categories"):
        rollout(Scripted(), Watching(), USERS, 0, candidates="category")


@pytest.mark.parametrize("kind", ["epsilon", "softmax"])
def test_exploring_policies_are_asked_about_those_who_are_there(kind):
    env, policy = Scripted(), Watching()
    rollout(env, policy, USERS, 2, Rules(exploration=Exploration(kind=kind, epsilon=0.4)))
    assert [len(one) for one in policy.seen] == [(env.lengths > step).sum() for step in range(len(policy.seen))]
    assert len(policy.seen[-1]) < USERS
