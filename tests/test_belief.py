"""The Bayes filter against plain integration, and where it stands between chance and the oracle."""

from dataclasses import replace

import numpy as np
import pytest

from bcd4rec.data.states import PAD
from bcd4rec.evaluation.metrics import per_session, target_rate
from bcd4rec.sim.belief import Believed
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import Oracle, policy_of, rollout
from bcd4rec.workflows.comparison import random_policy

TINY = InterestEvolutionConfig(categories=2, items=6, slate_size=3, horizon=4)  # items 0, 2, 4 and 1, 3, 5
EDGE = 60  # cells of the grid along each of the two interests


def integrated(slates: list[list[int]], answers: list[int | None]) -> np.ndarray:
    """(2,) the mean of both interests after answers (the place of a click, or none), over a grid of what they may be.

    A click splits every cell in two: the interest went up or down.
    """
    middle = (np.arange(EDGE) + 0.5) / EDGE * 2 - 1
    cells = [(float(a), float(b), 1.0) for a in middle for b in middle]
    gone: set[int] = set()
    for slate, place in zip(slates, answers, strict=True):
        after = []
        for a, b, weight in cells:
            interest = [a, b]
            attraction = [0.0 if item in gone or item == PAD else max(interest[item % 2], 0.02) for item in slate]
            skip = max(min(a, b), 0.02)  # the second largest of two
            if place is None:
                after.append((a, b, weight * skip / (sum(attraction) + skip)))
                continue
            chance = weight * attraction[place] / (sum(attraction) + skip)
            liked = interest[slate[place] % 2]
            change = 0.3 * (1 - abs(liked)) * (1 - liked)
            for sign, share in ((1, (1 + liked) / 2), (-1, (1 - liked) / 2)):
                new = min(max(liked + sign * change, -1.0), 1.0)
                pair = (new, b) if slate[place] % 2 == 0 else (a, new)
                after.append((*pair, chance * share))
        cells = after
        gone |= {slate[place]} if place is not None else set()
    table = np.array(cells)
    return (table[:, :2] * table[:, 2:]).sum(axis=0) / table[:, 2].sum()


def test_guesses_are_those_of_bayes_rule():
    users = 8
    environment = Believed(TINY, guesses=20_000)
    environment.reset(users, 3)
    slates = np.tile(np.array([[0, 1, 3], [0, 2, PAD]], np.int32)[:, None], (1, users, 1))  # two steps
    places: list[list[int | None]] = [[] for _ in range(users)]
    for slate in slates:
        responses = environment.step(slate).responses
        for user in range(users):
            clicked = np.flatnonzero(responses[user])
            places[user].append(int(clicked[0]) if len(clicked) else None)
    assert len({tuple(map(str, answers)) for answers in places}) > 2
    scores = environment.oracle_scores()
    for user in range(users):
        expected = integrated([slate[user].tolist() for slate in slates], places[user])
        assert scores[user, :2] == pytest.approx(expected, abs=0.03)
        assert scores[user].tolist() == scores[user, [0, 1] * 3].tolist()


def test_users_and_their_luck_are_the_same():
    plain, believed = InterestEvolution(), Believed(guesses=50)
    for environment in (plain, believed):
        environment.reset(40, 7)
    rng = np.random.default_rng(0)
    for _ in range(21):  # one more than a session has
        slates = np.stack([rng.permutation(200)[:7] for _ in range(40)]).astype(np.int32)
        left, right = plain.step(slates), believed.step(slates)
        assert np.array_equal(left.responses, right.responses)
        assert np.array_equal(left.ended, right.ended)
    assert np.array_equal(plain.interests, believed.interests)


def test_same_seed_same_bits():
    def scores(seed: int) -> np.ndarray:
        environment = Believed(TINY, guesses=100)
        environment.reset(5, seed)
        for _ in range(3):
            environment.step(np.tile(np.array([0, 1, 2], np.int32), (5, 1)))
        return environment.oracle_scores()

    assert np.array_equal(scores(1), scores(1))
    assert not np.array_equal(scores(1), scores(2))


def test_nothing_attracts_and_still_there_is_a_belief():
    environment = Believed(TINY.model_copy(update={"smallest_weight": 0.0}), guesses=300)
    environment.reset(30, 1)
    for _ in range(4):
        environment.step(np.full((30, 3), PAD, np.int32))
        assert np.isfinite(environment.oracle_scores()).all()


def test_it_knows_more_than_chance_and_less_than_the_oracle():
    def rate(environment: InterestEvolution, random: bool = False) -> float:
        policy = random_policy(environment) if random else policy_of(Oracle(environment), environment, "oracle")
        vectors = np.eye(20, dtype=np.float32)[environment.categories]
        spread = replace(policy, vectors=vectors).with_rule(after_skip="exclude", diversity=1.0)
        log = rollout(environment, spread, 200, 5)
        return target_rate(per_session(log, environment.responses))

    chance, guessed, seen = (
        rate(InterestEvolution(), random=True),
        rate(Believed(guesses=1000)),
        rate(InterestEvolution()),
    )
    assert chance + 10 < guessed < seen - 4
