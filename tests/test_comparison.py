"""Who can take part in a comparison, and that all of them meet the same fresh users."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data import preparing
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.schema import Log
from bcd4rec.data.states import States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.policies.vocabulary_mapping import MappedScorer
from bcd4rec.sim.environment import catalogue
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows import comparison
from bcd4rec.workflows.comparison import compare, contestant, random_dataset, random_policy, with_options

ITEMS, USERS = 24, 60
SMALL = InterestEvolutionConfig(categories=6, items=ITEMS, slate_size=3, horizon=5)
RANDOM = Exploration(kind="epsilon", epsilon=1.0)


class Users(InterestEvolution):
    """Remembers which users were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        super().__init__(SMALL)

    def reset(self, users: int, seed: int) -> None:
        self.asked.append((users, seed))
        super().reset(users, seed)


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Users:
    monkeypatch.setattr(comparison, "FIRST_SESSIONS", 150)
    return Users()


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """A log in which items 0 and 1 are missing, so that its item numbers are not the environment's."""
    users = InterestEvolution(SMALL)
    log = rollout(users, random_policy(users), 80, 3).filter(pl.col("item_id") > 1)
    log.write_parquet(tmp_path / "log.parquet")
    preparing.prepare(
        Log(tmp_path / "log.parquet"), users.responses, preparing.PrepareConfig(), tmp_path / "dataset", seed=1
    )
    return Dataset.load(tmp_path / "dataset")


def likes(log: pl.DataFrame) -> list[float]:
    counts = [0.0] * ITEMS
    for item, response in log["item_id", "response"].rows():
        counts[item] += response == "click"
    return counts


def test_random_and_oracle(env):
    random, oracle = (contestant(name, env, None, 0) for name in ("random", "oracle"))
    assert (random.name, oracle.name) == ("random", "oracle")
    assert random.rule.exploration == RANDOM
    assert oracle.rule.exploration.kind == "none"
    assert random.rule.unavailable == oracle.rule.unavailable == env.unavailable
    assert random.n_items == oracle.n_items == ITEMS


def test_a_baseline_without_a_data_set_learns_from_random_sessions(env):
    found = contestant("popular", env, None, 5)
    [(users, seed)] = [asked for asked in env.asked if asked[0]]
    assert users == 150
    expected = likes(rollout(env, random_policy(env), users, seed))
    assert found.scorer.scores(States.empty(1)).tolist() == [expected]
    assert sum(expected) > 0


def test_the_random_data_set_holds_the_whole_log_in_its_order(env):
    dataset = random_dataset(env, 5)
    found, shown = dataset.sequences("train"), dataset.transitions("train")
    log = rollout(env, random_policy(env), *env.asked[-1])
    assert dataset.vocabulary.ids.gather(shown.action).to_list() == log["item_id"].to_list()
    names = [dataset.responses.names[code] for code in shown.response]
    assert names == log["response"].to_list()
    assert "skip" in names
    clicks: dict[int, list[int]] = {}
    for user, item, response in log["session_id", "item_id", "response"].rows():
        if response == "click":
            clicks.setdefault(user, []).append(item)
    assert [one.tolist() for one in found] == list(clicks.values())


def test_a_baseline_with_a_data_set_learns_from_its_train_split_alone(env, dataset, tmp_path):
    found = contestant("popular", env, dataset, 5)
    assert env.asked == [(0, 0)]  # nobody was simulated for it
    train = dataset.sessions.filter(pl.col("split") == "train")["session_id"]
    log = pl.read_parquet(tmp_path / "log.parquet").filter(pl.col("session_id").is_in(train.implode()))
    expected = likes(log)
    assert found.n_items == ITEMS
    assert found.scorer.scores(States.empty(1)).tolist() == [[-np.inf, -np.inf, *expected[2:]]]


def test_a_baseline_whose_data_set_has_all_items_is_not_wrapped(env, tmp_path):
    rollout(env, random_policy(env), 80, 3).write_parquet(tmp_path / "log.parquet")
    preparing.prepare(Log(tmp_path / "log.parquet"), env.responses, preparing.PrepareConfig(), tmp_path / "dataset")
    found = contestant("popular", env, Dataset.load(tmp_path / "dataset"), 0)
    assert not isinstance(found.scorer, MappedScorer)


def test_a_bundle(env, tmp_path):
    vocabulary = Vocabulary(pl.Series("item_id", [3, 5, 7]))
    rule = SlateRule(diversity=0.5, after_skip="exclude", unavailable="shown")
    vectors = np.eye(3, dtype=np.float32)
    saved = Policy(Uniform(3), vocabulary, Memory(length=4, skips=6), rule, vectors=vectors, about={"method": "steady"})
    saved.save(tmp_path / "policy")
    found = contestant(str(tmp_path / "policy"), env)
    assert (found.name, found.memory, found.rule) == ("steady", saved.memory, rule)
    [scores] = found.scorer.scores(States.empty(1)).tolist()
    assert [item for item in range(ITEMS) if scores[item] == 0] == [3, 5, 7]
    assert set(scores) == {0, -np.inf}
    assert found.vectors is not None
    assert found.vectors[[3, 5, 7]].tolist() == vectors.tolist()
    assert not np.delete(found.vectors, [3, 5, 7], axis=0).any()


def test_a_bundle_without_a_method_is_called_like_its_folder(env, tmp_path):
    bundle.save(Policy(Uniform(ITEMS), catalogue(env)), tmp_path / "mine")
    assert contestant(str(tmp_path / "mine"), env).name == "mine"


def test_a_folder_that_is_no_bundle(env, tmp_path):
    with pytest.raises(InputError, match="manifest"):
        contestant(str(tmp_path), env, None, 0)


def test_an_unknown_name_lists_the_known(env):
    with pytest.raises(InputError, match=r"Unknown policy 'poplar'; expected the folder .*random, oracle, .*popular"):
        contestant("poplar", env, None, 0)


def test_options_change_the_rule_of_policies_that_can_follow_it(env, dataset):
    options = {"after_skip": "exclude", "diversity": 2.0}
    learned = with_options(contestant("popular", env, dataset), options)
    assert (learned.rule.after_skip, learned.rule.diversity) == ("exclude", 2.0)
    oracle, plain = with_options(contestant("oracle", env), options), contestant("oracle", env)
    assert oracle.rule == plain.rule.model_copy(update={"after_skip": "exclude"})  # it does not know what is alike
    assert with_options(random_policy(env), options).rule == random_policy(env).rule
    own = contestant("popular", env, dataset)
    assert with_options(own, {"after_skip": None, "diversity": None}) is own


def play(env: Users, names: list[str], seed: int = 0, **options: Any) -> comparison.Comparison:
    contestants = [contestant(name, env, None, seed) for name in names]
    return compare(env, contestants, USERS, seed, **options)


def test_all_meet_the_same_users_who_are_not_those_of_simulate(env):
    play(env, ["random", "popular", "oracle"], seed=9)
    seeds = [seed for users, seed in env.asked if users == USERS]
    assert len(seeds) == 3
    assert len(set(seeds)) == 1
    env.reset(USERS, seeds[0])
    fresh = env.interests.copy()
    first_log = next(seed for users, seed in env.asked if users == 150)
    for other in (9, first_log):  # those of `simulate --seed 9`, and those that baselines learned from
        env.reset(USERS, other)
        assert not np.isin(fresh, env.interests).any()


def test_the_share_of_the_gap_that_is_closed(env):
    found = {one.policy: one for one in play(env, ["random", "popular", "oracle"]).evaluations}
    assert list(found) == ["random", "popular", "oracle"]
    low, middle, high = (found[name].rate.value for name in found)
    shares = [found[name].gap_closed for name in found]
    assert all(shares)
    expected = [0, 100 * (middle - low) / (high - low), 100]
    assert [share.value for share in shares if share] == pytest.approx(expected)


def test_other_ends_of_the_gap(env):
    found = play(env, ["random", "popular", "oracle"], behaviour="popular").evaluations
    assert [one.gap_closed.value for one in found[1:] if one.gap_closed] == pytest.approx([0, 100])
    assert all(one.gap_closed is None for one in play(env, ["random", "popular"]).evaluations)


@pytest.mark.parametrize("end", ["behaviour", "online"])
def test_an_end_of_the_gap_that_does_not_take_part(env, end):
    with pytest.raises(InputError, match="The gap needs the policy 'poplar', but there are only random, oracle"):
        play(env, ["random", "oracle"], **{end: "poplar"})


def test_the_same_name_twice_is_numbered(env):
    found = play(env, ["random", "random", "oracle"])
    assert [one.policy for one in found.evaluations] == ["random #1", "random #2", "oracle"]
    assert list(found.curves) == ["random #1", "random #2", "oracle"]
    assert found.evaluations[0].rate == found.evaluations[1].rate


def test_curves_and_progress(env):
    shares: list[float] = []
    players = [contestant(name, env, None, 0) for name in ("random", "oracle")]
    found = compare(env, players, USERS, 0, tick=lambda stage, share: shares.append(share))
    assert shares == pytest.approx([step / 10 for step in range(10)])
    for curves in found.curves.values():
        assert curves.by_step["sessions"].to_list() == [USERS] * 5
        assert curves.popularity["shown"].sum() == USERS * 5 * 3


def test_the_same_seed_gives_the_same_table(env):
    one, again, other = (play(env, ["random", "popular", "oracle"], seed).evaluations for seed in (1, 1, 2))
    assert one == again
    assert one != other
