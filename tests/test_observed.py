"""The online agent that sees the users' interests."""

import numpy as np
import pytest

from bcd4rec.evaluation.metrics import per_session, target_rate
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import Oracle, policy_of, rollout
from bcd4rec.workflows.online import OnlineConfig
from reproduction.observed import ObservedRound, Observing, _transitions, learn_observed

SMALL = InterestEvolutionConfig(categories=5, items=23, slate_size=2, horizon=6)


def learned(seed: int, rounds: int, updates: int) -> list[ObservedRound]:
    config = OnlineConfig(rounds=rounds, users=200, last_epsilon=0.9)
    quick = {"updates": updates, "batch_size": 128, "learning_rate": 0.003}
    return list(learn_observed(InterestEvolution(SMALL), config, quick, SlateRule(), seed))


def test_it_comes_near_the_oracle() -> None:
    found = learned(0, rounds=1, updates=150)
    environment = InterestEvolution(SMALL)
    policy = Observing(environment, found[-1].scorer.network)

    def rate(player: Oracle) -> float:
        log = rollout(environment, policy_of(player, environment, "player"), 400, 9)
        return target_rate(per_session(log, environment.responses))

    random, oracle = found[0].rate, rate(Oracle(environment))
    assert rate(policy) > random + 0.7 * (oracle - random)
    assert oracle > random + 10


def weights(found: list[ObservedRound]) -> bytes:
    network = found[-1].scorer.network
    assert network is not None
    return b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second, other = (learned(seed, rounds=2, updates=10) for seed in (1, 1, 2))
    assert [one.rate for one in first] == [one.rate for one in second]
    assert weights(first) == weights(second) != weights(other)


def test_playing_a_policy_between_rounds_changes_nothing() -> None:
    environment, config = InterestEvolution(SMALL), OnlineConfig(rounds=2, users=200, last_epsilon=0.9)
    quick = {"updates": 10, "batch_size": 128, "learning_rate": 0.003}
    found = []
    for one in learn_observed(environment, config, quick, SlateRule(), 1):
        rollout(environment, policy_of(one.scorer, environment, "online"), 31, 5)
        found.append(one)
    assert weights(found) == weights(learned(1, rounds=2, updates=10))


def test_transitions_lead_from_what_was_seen_to_what_was_seen_next() -> None:
    environment, users, first = InterestEvolution(SMALL), 7, 100
    player = Observing(environment)
    rule = SlateRule(exploration=Exploration(kind="epsilon", epsilon=1.0))
    log = rollout(environment, policy_of(player, environment, "random", rule), users, 3)
    found = _transitions(log, environment, first, users, 0.8)
    seen = np.concatenate(player.seen)
    assert len(seen) == 6 * users
    rows = list(log.select("session_id", "step", "item_id", "response").iter_rows())
    assert len(rows) == len(found.state) == 6 * users * 2
    for place, (user, step, item, response) in enumerate(rows):
        assert found.action[place] == item
        assert found.reward[place] == (4.0 if response == "click" else 0.0)
        assert seen[found.state[place] - first].tolist() == player.seen[step][user].tolist()
        assert found.discount[place] == pytest.approx(0.8 if step < 5 else 0.0)
        if step < 5:
            assert seen[found.next_state[place] - first].tolist() == player.seen[step + 1][user].tolist()
