"""What can be known of users from what they were shown and how they answered.

A Bayes filter that knows all rules of the interest-evolution environment but sees no user from within: as close as a
policy can come to the best guess from the session alone. No agent that learns these rules from a log can be expected to
do better, so between it and the oracle lies what sessions do not tell.
"""

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import Doubles, FloatArray, IntArray, Mask
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import Outcome
from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution, InterestEvolutionConfig

AT_ONCE = 32  # users whose guesses are weighed at once, to bound memory
JITTER = 0.03  # standard deviation of what is added to guesses that are drawn again, so that no two stay the same


class Believed(InterestEvolution):
    """The same users with the same luck; only the scores of the oracle come from guesses instead of from within.

    A particle filter: guesses of a user's interests are drawn from where interests start, weighed by how likely they
    make each answer, moved as a click moves interests, and drawn again when a few of them have most of the weight.
    """

    def __init__(self, config: InterestEvolutionConfig = PRESETS["paper"], guesses: int = 2000):
        self._count = guesses
        super().__init__(config)

    def reset(self, users: int, seed: int) -> None:
        super().reset(users, seed)
        self._rng = generator(seed, "belief")
        shape = (users, self._count, self.config.categories)
        self._guesses: FloatArray = 2 * self._rng.random(shape, dtype=np.float32) - 1  # (B, P, C)
        self._weights = np.full((users, self._count), 1 / self._count)  # (B, P)

    def step(self, slates: IntArray) -> Outcome:
        clickable, asked = self._clickable(slates), self._step < self.config.horizon
        outcome = super().step(slates)
        if asked:
            for first in range(0, len(slates), AT_ONCE):
                rows = slice(first, first + AT_ONCE)
                self._learn(rows, slates[rows], clickable[rows], outcome.responses[rows])
        return outcome

    def oracle_scores(self) -> FloatArray:
        """(B, A) the mean guess of the user's interest in each item's category now."""
        mean: Doubles = np.einsum("bp,bpc->bc", self._weights, self._guesses)
        scores: FloatArray = mean.astype(np.float32).take(self._categories, axis=1)
        return scores

    def _learn(self, rows: slice, slates: IntArray, clickable: Mask, responses: NDArray[np.int8]) -> None:
        guesses = self._guesses[rows].astype(np.float64)  # (b, P, C)
        users, places = np.nonzero(responses)
        categories = self._categories[slates]  # (b, K)
        self._weights[rows] = self._weighed(self._weights[rows], guesses, categories, clickable, users, places)
        moving = categories[users, places]
        draws = self._rng.random((len(users), self._count))
        guesses[users, :, moving] = self._moved(guesses[users, :, moving], draws)
        for user, weights in enumerate(self._weights[rows]):
            if 1 / (weights**2).sum() < self._count / 2:
                guesses[user] = self._drawn_again(guesses[user], weights)
                weights[:] = 1 / self._count
        self._guesses[rows] = guesses

    def _weighed(
        self,
        weights: Doubles,
        guesses: Doubles,
        categories: IntArray,
        clickable: Mask,
        users: NDArray[np.intp],
        places: NDArray[np.intp],
    ) -> Doubles:
        """(b, P) weights times the chance that each guess gives the answers: `users` click `places`, others skip."""
        shown = np.take_along_axis(guesses, categories[:, None, :], axis=2)  # (b, P, K)
        attraction = self._weight(shown) * clickable[:, None, :]
        skip = self._skip_weight(guesses)
        total = attraction.sum(axis=2) + skip
        answer = skip.copy()
        answer[users] = attraction[users, :, places]
        silent = np.zeros_like(answer)  # where nothing attracts, not even skipping, users skip
        silent[np.setdiff1d(np.arange(len(answer)), users)] = 1.0
        chance = np.divide(answer, total, out=silent, where=total > 0)
        product: Doubles = weights * chance
        norm = product.sum(axis=1, keepdims=True)
        return np.where(norm > 0, product / np.where(norm > 0, norm, 1.0), 1 / self._count)

    def _drawn_again(self, guesses: Doubles, weights: Doubles) -> Doubles:
        """As many guesses, each as often as its weight says, a little apart."""
        edges = (np.arange(self._count) + self._rng.random()) / self._count
        chosen = np.minimum(np.searchsorted(weights.cumsum(), edges), self._count - 1)
        return np.clip(guesses[chosen] + self._rng.normal(0.0, JITTER, guesses.shape), -1.0, 1.0)
