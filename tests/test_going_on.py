"""`train --from`: an agent goes on from a policy, with items that are new, to the same bits; what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from bcd4rec.agents.agent import Begun
from bcd4rec.agents.embedding_material import kept_embeddings
from bcd4rec.cli import build
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy, learned_policy
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import Fitted, fit

SMALL = InterestEvolution(InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=5))
EVIDENCE = {"updates": 200, "batch_size": 128, "shrink": 0.1, "warm_up": 0.0}
PAPER = {"evidence": False, "pretraining": "svd", "dimension": 6, "encoder": "gru", "updates": 200, "batch_size": 64}
PAPER |= {"freeze_embeddings": False, "learning_rate": 3e-3, "decay": 0.0, "warm_up": 0.0}
HOW = {"evidence": ("qrdqn", EVIDENCE), "embeddings": ("bcd4rec", PAPER)}
HIDDEN_ITEMS = (0, 7, 20)  # which the first days do not have


@pytest.fixture(scope="module")
def rows() -> dict[str, pl.DataFrame]:
    """The first days, without some items, and more days with all of them."""
    rows = rollout(SMALL, random_policy(SMALL), 500, 3)
    sessions = rows.group_by("session_id").agg(pl.col("item_id").is_in(HIDDEN_ITEMS).any().alias("later"))
    early = rows.join(sessions.filter(~pl.col("later")), on="session_id", how="semi", maintain_order="left")
    return {"first": early, "all": rows}


def prepared(rows: dict[str, pl.DataFrame], gamma: float) -> dict[str, Dataset]:
    config = PrepareConfig(split=SplitConfig(by="hash"), transitions=TransitionConfig(gamma=gamma))
    return {name: Dataset.from_frame(frame, SMALL.responses, config) for name, frame in rows.items()}


@pytest.fixture(scope="module")
def logs(rows) -> dict[str, Dataset]:
    return prepared(rows, 0.9)


def trained(
    method: str, data: Dataset, settings: dict[str, Any], earlier: Policy | None = None
) -> tuple[Fitted, Policy]:
    found = fit(method, data, settings, search="none", earlier=earlier)
    return found, learned_policy(found.scorer, data, found.about)


def test_it_reaches_the_loss_of_long_training_with_items_that_are_new(rows):
    """Without a look ahead targets stay where they are, so that losses can be compared."""
    method, settings = HOW["embeddings"]
    logs, few = prepared(rows, 0.0), settings | {"updates": 20}
    assert logs["all"].n_items > logs["first"].n_items  # with new items before, between and behind the old ones
    _, policy = trained(method, logs["first"], settings)
    long, anew, more, again = (
        trained(method, logs["all"], *how)[0] for how in ((settings,), (few,), (few, policy), (few, policy))
    )
    assert more.reports[-1].loss < 1.05 * long.reports[-1].loss  # after a tenth of the updates
    assert anew.reports[-1].loss > 1.05 * more.reports[-1].loss
    _same_bits(more, again)
    assert more.about["from"]["data"]["content_hash"] == logs["first"].content_hash


def test_it_reaches_the_values_of_long_training(logs):
    method, settings = HOW["evidence"]
    few = settings | {"updates": 20}
    _, policy = trained(method, logs["first"], settings)
    long, anew, more, again = (
        trained(method, logs["all"], *how)[0] for how in ((settings,), (few,), (few, policy), (few, policy))
    )
    values = {name: one.reports[-1].q_bar for name, one in (("long", long), ("anew", anew), ("more", more))}
    assert values["anew"] < values["long"]  # values grow with the look ahead
    assert values["more"] > values["long"] - 0.2 * (values["long"] - values["anew"])
    _same_bits(more, again)


def _same_bits(one: Fitted, other: Fitted) -> None:
    for name, array in one.scorer.arrays().items():
        assert np.array_equal(array, other.scorer.arrays()[name]), name


@pytest.mark.parametrize("network", HOW)
def test_without_a_step_it_is_the_policy_that_it_was(logs, network):
    """A learning rate of almost nothing: on the same log the same values come out, quantile by quantile."""
    method, settings = HOW[network]
    first, policy = trained(method, logs["first"], settings)
    same, _ = trained(method, logs["first"], settings | {"updates": 1, "learning_rate": 1e-9}, policy)
    states = logs["first"].states[np.arange(40)]
    np.testing.assert_allclose(same.scorer.scores(states), first.scorer.scores(states), atol=1e-4)
    if network == "embeddings":
        grown, _ = trained(method, logs["all"], settings | {"updates": 1, "learning_rate": 1e-9}, policy)
        places = logs["all"].vocabulary.positions_of(logs["first"].vocabulary)
        mapped = replace(states, positives=np.append(places, -1)[states.positives].astype(np.int32))
        found = grown.scorer.scores(mapped)[:, places] - grown.scorer.offset  # which is the rewards' mean of the log
        np.testing.assert_allclose(found, first.scorer.scores(states) - first.scorer.offset, atol=1e-4)


def test_new_items_are_turned_to_where_the_policy_has_the_old_ones():
    rng = np.random.default_rng(0)
    own = rng.normal(size=(9, 4)).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]

    class Scorer:
        def arrays(self) -> dict[str, Any]:
            return {"network.embeddings": own[[5, 0, 7, 2, 3, 8]]}

    places = np.array([1, -1, 3, 4, -1, 0, -1, 2, 5], np.int32)
    found = kept_embeddings(Begun(Scorer(), places), (own @ turn).astype(np.float32))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, own, atol=1e-5)
    assert np.array_equal(found[places >= 0], own[places >= 0])


def command(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(build("train"), ["train", *map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_cannot_be_gone_on_from(logs, tmp_path):
    first, policy = trained("qrdqn", logs["all"], EVIDENCE | {"updates": 2})
    with pytest.raises(InputError, match=r"knows 3 items that the data set does not have, such as 0; add days"):
        fit("qrdqn", logs["first"], EVIDENCE, earlier=policy)
    for method, settings, words in (
        ("dqn", EVIDENCE, "was trained by qrdqn, expected dqn"),
        ("crr", {}, "--from is for agents whose policies keep all that they learned .*, not crr"),
        ("popular", {}, "not popular"),
        ("qrdqn", PAPER, "has a network with evidence=True, but this one has evidence=False; give the settings"),
        ("qrdqn", EVIDENCE | {"quantiles": 4}, "quantiles=10, but this one has quantiles=4"),
    ):
        with pytest.raises(InputError, match=words):
            fit(method, logs["all"], settings, earlier=policy)
    bare = learned_policy(fit("response", logs["all"]).scorer, logs["all"], first.about)
    with pytest.raises(InputError, match="nothing beyond the response model"):
        fit("qrdqn", logs["all"], EVIDENCE, earlier=bare)
    other = replace(policy, responses=policy.responses.model_copy(update={"rewards": {"skip": 0.0, "click": 9.0}}))
    with pytest.raises(InputError, match=r"learned with the rewards skip=0, click=9 .* but the data set has"):
        fit("qrdqn", logs["all"], EVIDENCE, earlier=other)


def test_the_command(logs, tmp_path):
    from bcd4rec.data.preparing import prepare
    from bcd4rec.data.schema import Log

    rollout(SMALL, random_policy(SMALL), 120, 4).write_parquet(tmp_path / "log.parquet")
    prepare(Log(tmp_path / "log.parquet"), SMALL.responses, PrepareConfig(), tmp_path / "dataset")
    quick = ("--search", "none", "--set", "updates=20")
    command("qrdqn", tmp_path / "dataset", "--out", tmp_path / "one", *quick)
    command("qrdqn", tmp_path / "dataset", "--from", tmp_path / "one", "--out", tmp_path / "two", *quick)
    assert bundle.load(tmp_path / "two").about["from"]["seed"] == 0
    with pytest.raises(InputError, match="is not a folder; expected a policy"):
        command("qrdqn", tmp_path / "dataset", "--from", tmp_path / "none", "--out", tmp_path / "x", *quick)
    assert not Path(tmp_path / "x").exists()
