"""From a log to sums: what the collector hands on, against what is known of it by hand."""

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.evaluation.off_policy.collecting import Collector, longest_session
from bcd4rec.evaluation.off_policy.decisions import Decisions
from bcd4rec.evaluation.off_policy.replay import logged_slates
from bcd4rec.policies.policy import Policy
from bcd4rec.sim.rollout import rollout
from tests.test_off_policy_replay import WHOLE, policy_for, world


class Kept(Collector):
    """A collector that keeps its decisions."""

    def _decisions(self, slates, columns):
        self.decisions: Decisions = super()._decisions(slates, columns)
        return self.decisions


def collected(
    dataset: Dataset, candidate: Policy, logger: Policy | None, model: bool = True, trust: bool = True
) -> Kept:
    def expected(sessions, states, items):
        """The number of items and of even ones: enough to tell slates apart."""
        return np.stack([(items != PAD).sum(axis=1), ((items != PAD) & (items % 2 == 0)).sum(axis=1)], axis=1) * 1.0

    found = Kept(dataset, candidate, logger, expected if model else None, longest_session(dataset), 0, trust)
    for slates in logged_slates(dataset):
        found.add(slates)
    return found


def setting(epsilon: float = 0.4) -> tuple[Dataset, Policy]:
    environment = world("liked")
    policy = policy_for(environment, exploration={"kind": "epsilon", "epsilon": epsilon}, after_skip="exclude")
    log = rollout(environment, policy, 60, 2)
    # Some slates are shorter than others: the last place of every third session's last slate is not there.
    short = (pl.col("session_id") % 3 == 0) & (pl.col("position") == 2) & (pl.col("step") == 5)
    return Dataset.from_frame(log.filter(~short), environment.responses, WHOLE), policy


def test_the_logger_beside_itself_has_weights_of_one():
    """Also by the pseudo-inverse: every slate of one size has the same number of items."""
    dataset, policy = setting()
    found = collected(dataset, policy, policy)
    assert found.found.differ == 0
    assert found.decisions.weights == pytest.approx(np.ones(len(found.decisions)), abs=1e-5)
    assert found.decisions.by_categories == pytest.approx(np.ones(len(found.decisions)), abs=1e-4)
    assert found.decisions.by_items is None
    assert found.found.support.outside == 0.0


def test_without_categories_items_are_looked_at():
    dataset, policy = setting()
    bare = Dataset(
        dataset.manifest,
        dataset.items.with_columns(category=pl.lit(None, pl.String)),
        dataset.sessions,
        dataset.frame,
        dataset.states,
    )
    found = collected(bare, policy, policy)
    assert found.decisions.by_categories is None
    assert found.decisions.by_items == pytest.approx(np.ones(len(found.decisions)), abs=1e-4)


def test_models_are_asked_about_what_each_policy_shows():
    dataset, policy = setting()
    greedy = policy.with_rule(exploration={"kind": "none"})
    found = collected(dataset, greedy, policy)
    sizes = (dataset.frame.group_by("session", "step", maintain_order=True).len())["len"].to_numpy()
    assert (found.decisions.model_logged[:, 0] == sizes).all()
    assert (found.decisions.model_candidate[:, 0] == sizes).all()
    even = dataset.frame.group_by("session", "step", maintain_order=True).agg((pl.col("action") % 2 == 0).sum())
    assert (found.decisions.model_logged[:, 1] == even["action"].to_numpy()).all()


def test_numbers_of_the_policy_do_not_matter():
    dataset, policy = setting()
    order = np.random.default_rng(1).permutation(policy.n_items)

    class Shuffled:
        n_items = policy.n_items

        def scores(self, states, candidates=None):
            back = np.append(order, PAD).astype(np.int32)
            known = type(states)(back[states.positives], back[states.skips])
            return policy.scorer.scores(known)[:, order]

    ids = policy.vocabulary.ids.gather(order)
    other = Policy(Shuffled(), Vocabulary(ids), policy.memory, policy.rule, policy.responses)
    one, two = collected(dataset, policy, None), collected(dataset, other, None)
    np.testing.assert_allclose(one.decisions.candidate, two.decisions.candidate)
    assert one.decisions.by_categories is None
    assert one.found.own is None


def test_the_loggers_propensities_stand_in_for_those_of_the_log():
    dataset, policy = setting()
    greedier = policy.with_rule(exploration={"kind": "epsilon", "epsilon": 0.1})
    by_log, by_logger = (collected(dataset, greedier, policy, False, trust) for trust in (True, False))
    np.testing.assert_allclose(by_log.decisions.logged, by_logger.decisions.logged, rtol=1e-5)
    assert by_log.decisions.model_logged is None
    assert by_logger.found.own is None


def test_a_wrong_logger_is_counted():
    dataset, policy = setting()
    other = policy.with_rule(exploration={"kind": "epsilon", "epsilon": 0.5})
    assert collected(dataset, policy, other).found.differ > 0.5 * collected(dataset, policy, other).found.impressions
