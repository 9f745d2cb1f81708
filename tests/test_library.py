"""bcd4rec as a library, and the notebook that shows it."""

import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bcd4rec
from bcd4rec.errors import InputError
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy

NOTEBOOK = Path(__file__).parents[1] / "examples" / "library.ipynb"


@pytest.fixture(scope="module")
def users() -> InterestEvolution:
    return InterestEvolution()


@pytest.fixture(scope="module")
def data(users: InterestEvolution) -> bcd4rec.Dataset:
    log = rollout(users, random_policy(users), 250, 2)
    return bcd4rec.Dataset.from_frame(log, rewards={"skip": 0, "click": 1})


@pytest.fixture(scope="module")
def policy(data: bcd4rec.Dataset) -> bcd4rec.Policy:
    return bcd4rec.train("response", data)


def test_all_that_is_promised_is_there():
    for name in bcd4rec.__all__:
        assert getattr(bcd4rec, name) is not None
        assert name in dir(bcd4rec)
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        bcd4rec.tarin  # noqa: B018


def test_training_gives_a_whole_policy_that_comes_back_from_disk(data, policy, tmp_path):
    assert policy.name == "response"
    assert policy.about["data"]["content_hash"] == data.content_hash
    policy.save(tmp_path / "policy")
    again = bcd4rec.load(tmp_path / "policy")
    session = [17, 4, (98, "skip")]
    assert again.recommend(session, k=5) == policy.recommend(session, k=5)
    assert again.rule == policy.rule


def test_the_same_seed_gives_the_same_policy(data, policy):
    assert bcd4rec.train("response", data).recommend([3], k=9) == policy.recommend([3], k=9)


def test_policies_on_users(users, policy):
    with pytest.warns(UserWarning, match="does not tell which users"):
        found = bcd4rec.evaluate(["random", policy, "oracle"], env=users, users=150).table()
    rates = dict(found.select("policy", "ctr").rows())
    assert rates["random"] < rates["response"] < rates["oracle"]


def test_policies_on_a_log(data, policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was learned from this very data set
        found = bcd4rec.evaluate([policy, "popular"], log=data)
    auc = dict(found.table().filter(pl.col("measure") == "auc").select("policy", "value").rows())
    assert {"response", "popular", "ctr", "random"} <= auc.keys()
    assert auc["response"] > auc["popular"] + 0.03


@pytest.mark.parametrize("given", [{}, {"env": "recsim", "log": "data"}])
def test_users_or_a_log(given, data):
    with pytest.raises(InputError, match="give one of them"):
        bcd4rec.evaluate("popular", **{key: data if key == "log" else value for key, value in given.items()})


def test_a_policy_of_other_users_is_refused(data, policy, users):
    log = rollout(users, random_policy(users), 50, 2)
    assert log is not None
    foreign = bcd4rec.Policy(policy.scorer, policy.vocabulary, about={"method": "x", "origin": _origin("shop")})
    with pytest.raises(InputError, match="x was learned from"):
        bcd4rec.evaluate(foreign, env="recsim", users=5)


def _origin(env: str) -> dict[str, Any]:
    return {"env": env, "preset": None, "alike": [None], "items": 200, "categories": 20}


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("bcd4erc", {}, "Unknown method 'bcd4erc'"),
        ("popular", {"preset": "paper"}, "--preset is for agents"),
        ("bcd4rec", {"preset": "papre"}, "Unknown preset 'papre'"),
        ("bcd4rec", {"settings": {"bta": 1}}, "unknown key 'bta'"),
    ],
)
def test_bad_input(method, options, sentence, data):
    with pytest.raises(InputError, match=sentence):
        bcd4rec.train(method, data, **options)


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102 (our own file)
    auc = dict(names["ranked"].table().filter(pl.col("measure") == "auc").select("policy", "value").rows())
    assert auc["bcd4rec"] > auc["ctr"]
    rates = dict(names["played"].table().select("policy", "ctr").rows())
    assert rates["bcd4rec"] > rates["random"] + 5
