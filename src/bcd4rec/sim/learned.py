"""`--env learned --model user/`: the responses of a model that was learned from logs (see `workflows.users`).

A session is like one of the period that is played: it opens with that session's first liked item and has as many shown
items as that session had in later requests, each counted once. Every shown item is answered by itself, with the model's
probabilities given the items liked before the slate, exactly as the model was trained; so several items of a slate may
be liked.
"""

from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import OPTIONS, Config, parse_pairs
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Mask, Rows, States, append
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.models.learned_user import LearnedUser
from bcd4rec.policies.slates import Unavailable
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import ENVIRONMENTS, Environment, EnvironmentOptions, Outcome, check_slates

AT_ONCE = 64  # users whose whole catalogue is scored together


class LearnedConfig(Config):
    """How sessions are played; the defaults are one item at a time, as in the paper's second domain."""

    slate_size: int = Field(default=1, ge=1, description="K: how many items are shown at each step.")
    start: Literal["liked", "empty"] = Field(
        default="liked", description="Sessions open with the first liked item of a real one, or with nothing (empty)."
    )
    shown: int = Field(
        default=0, ge=0, description="Items shown in every session; 0: as many as a real session showed."
    )
    most: int = Field(default=0, ge=0, description="At most so many items shown in a session; 0: no limit.")
    unavailable: Unavailable = Field(
        default="shown",
        description="Items not shown again in a session: shown, clicked, nothing; recommended: what the session opened "
        "with may be recommended once. The model does not see skips, so an "
        "item shown again would be answered as if for the first time.",
    )

    @classmethod
    def from_preset(cls, preset: str | None) -> Self:
        """From settings such as `slate_size=3,most=5`."""
        return cls.parse(dict(parse_pairs(preset, "--preset") if preset else {}), f"{OPTIONS} --preset")


@ENVIRONMENTS.register("learned")
def learned(options: EnvironmentOptions) -> Environment:
    if options.model is None:
        raise InputError("--env learned needs --model, the folder of a user made by `bcd4rec train user`.")
    return Learned(LearnedUser.load(options.model), LearnedConfig.from_preset(options.preset), options.model)


class Learned:
    """B learned users; fulfils `Environment`, `Opening`, `Logged`, `NamesItems` and `Supported`.

    All luck is drawn in `reset`, user by user: the n-th item that a user is shown meets the user's n-th number.
    """

    def __init__(self, user: LearnedUser, config: LearnedConfig | None = None, folder: Path | None = None):
        """`folder` is where the user is from, which tells how well it foretells sessions."""
        self.user, self.config, self.folder = user, config or LearnedConfig(), folder
        self._rewards = np.array(list(user.responses.rewards.values()))
        self._positive = [user.responses.code(name) for name in user.responses.positive]
        with torch.no_grad():
            self._vectors = user.model.vectors()
        self._once = self.config.unavailable in ("liked", "shown")  # what a session opened with is gone
        self._sequels = user.shapes.sequels(liked=self.config.start == "liked", again=not self._once)
        if not len(self._sequels.items):
            raise InputError("No session shows anything new after its first liked item; try --preset start=empty.")
        lengths = np.diff(self._sequels.offsets)
        lengths = np.full(len(lengths), self.config.shown) if self.config.shown else lengths
        self._lengths = np.minimum(lengths, self.config.most) if self.config.most else lengths
        self.reset(0, 0)

    @property
    def responses(self) -> Responses:
        return self.user.responses

    @property
    def n_items(self) -> int:
        return len(self.user.vocabulary)

    @property
    def slate_size(self) -> int:
        return self.config.slate_size

    @property
    def horizon(self) -> int:
        return -(-int(self._lengths.max()) // self.config.slate_size)

    @property
    def unavailable(self) -> Unavailable:
        return self.config.unavailable

    @property
    def categories(self) -> IntArray | None:
        return self.user.categories

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of the items in the logs that the user was learned from."""
        return self.user.vocabulary

    def reset(self, users: int, seed: int) -> None:
        """Draw fresh users. The same seed gives the same users and the same luck."""
        self._which = which = generator(seed, "learned", "sessions").integers(len(self._lengths), size=users)  # (B,)
        self._left = self._lengths[which].astype(np.int64)  # (B,) items still to be shown
        most = self.horizon * self.config.slate_size
        self._draws = generator(seed, "learned", "answers").random((users, most))  # (B, most)
        first = (
            self.user.shapes.first[self._sequels.sessions[which]]
            if self.config.start == "liked"
            else np.empty(0, np.int32)
        )
        self._openings = first.reshape(users, -1) if users else np.empty((0, 0), np.int32)
        self._liked = np.full((users, self.user.length), PAD, np.int32)  # (B, L)
        self._liked[:, : self._openings.shape[1]] = self._openings
        self._users = np.arange(users)[:, None]  # (B, 1)
        self._gone = np.zeros((users, self.n_items), np.bool_)  # (B, A)
        self._gone[self._users, self._openings] = self._once
        self._looked = np.zeros(users, np.int64)  # (B,) items shown so far
        self._states = self._encode(np.arange(users))  # (B, R − 1, D + 1)
        self._oracle: FloatArray | None = None

    def openings(self) -> IntArray:
        """(B, 1) the item that each user liked before anything was recommended; (B, 0) with `start=empty`."""
        return self._openings.copy()

    def behaviour(self) -> "Replay":
        """The log's own lists, answered by the learned users."""
        return Replay(self)

    def listed(self, k: int) -> IntArray:
        """(B, K) the next items that the real sessions were shown, each once; `PAD` behind the last of them."""
        offsets = self._sequels.offsets
        places = (offsets[self._which] + self._looked)[:, None] + np.arange(k)
        there = places < offsets[self._which + 1, None]
        return np.where(there, self._sequels.items[np.where(there, places, 0)], PAD).astype(np.int32)

    def step(self, slates: IntArray) -> Outcome:
        """Show (B, K) slates. An item that is not available any more, or stands twice, is skipped."""
        check_slates(slates, len(self._liked), self)
        probabilities = self.probabilities(slates)  # (B, K, R)
        shown = slates != PAD
        places = self._looked[:, None] + shown.cumsum(axis=1) - 1
        draws = np.take_along_axis(self._draws, np.clip(places, 0, self._draws.shape[1] - 1), axis=1)
        edges = probabilities.cumsum(axis=2)[..., :-1]
        responses = (draws[:, :, None] >= edges).sum(axis=2)
        answered = shown & self._fresh(slates) & (self._looked < self._left)[:, None]
        responses = np.where(answered, responses, self._skip).astype(np.int8)
        self._remember(slates, responses, shown)
        return Outcome(responses, self._looked >= self._left)

    def probabilities(self, items: IntArray) -> Doubles:
        """(B, K, R) of the responses to items (B, K) shown now."""
        return self._probabilities(np.arange(len(self._liked)), np.maximum(items, 0))

    def oracle_scores(self) -> FloatArray:
        """(B, A) the expected reward of showing an item now."""
        if self._oracle is None:
            self._oracle = np.empty((len(self._liked), self.n_items), np.float32)
            self._changed: Rows = np.arange(len(self._liked))
        every = np.arange(self.n_items, dtype=np.int32)[None]
        for start in range(0, len(self._changed), AT_ONCE):
            rows = self._changed[start : start + AT_ONCE]
            self._oracle[rows] = self._probabilities(rows, every) @ self._rewards
        self._changed = np.empty(0, np.intp)
        return self._oracle.copy()

    def outside(self, slates: IntArray) -> Mask:
        """(B, K) recommendations that the model has too little to say about, see `data.support`."""
        return self.user.support.outside(self._liked, slates)

    @property
    def _skip(self) -> int:
        """What nobody answered: the first response that is not positive."""
        return next(code for code in range(len(self._rewards)) if code not in self._positive)

    @torch.no_grad()
    def _encode(self, rows: Rows) -> torch.Tensor:
        # A copy of its own: the states of sessions that have just begun are all the same piece of memory.
        return self.user.model.encode(torch.from_numpy(self._liked[rows]), self._vectors).clone()

    @torch.no_grad()
    def _probabilities(self, rows: Rows, items: IntArray) -> Doubles:
        model, chosen = self.user.model, torch.from_numpy(rows)
        histories = torch.from_numpy(self._liked[rows])
        logits = model.logits(histories, self._states[chosen], self._vectors, torch.from_numpy(items.astype(np.int64)))
        return model.scaled(logits).exp().double().numpy()

    def _fresh(self, slates: IntArray) -> Mask:
        """(B, K) items that are available, and for the first time in their slate."""
        earlier = np.tri(slates.shape[1], k=-1, dtype=np.bool_)
        repeated = ((slates[:, :, None] == slates[:, None, :]) & earlier).any(axis=2)
        fresh: Mask = ~repeated & ~self._gone[self._users, slates]
        return fresh

    def _remember(self, slates: IntArray, responses: NDArray[np.int8], shown: Mask) -> None:
        liked = np.isin(responses, self._positive) & shown
        for place in range(slates.shape[1]):
            rows = np.flatnonzero(liked[:, place]).astype(np.int32)
            self._liked = append(self._liked, rows, slates[rows, place])
        if self.config.unavailable != "nothing":
            users, places = np.nonzero(liked if self.config.unavailable == "liked" else shown)
            self._gone[users, slates[users, places]] = True
        self._looked += shown.sum(axis=1)
        moved = np.flatnonzero(liked.any(axis=1))
        if len(moved):
            self._states[torch.from_numpy(moved)] = self._encode(moved)
            if self._oracle is not None:
                self._changed = np.union1d(self._changed, moved)


class Replay:
    """The lists of the real sessions, whatever the learned users answer: the log's behaviour with the same users."""

    def __init__(self, environment: Learned):
        self._environment = environment

    @property
    def n_items(self) -> int:
        return self._environment.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        raise InputError("The log's own lists have no scores; they are played with their own order alone.")

    def draw(
        self, states: States, unavailable: IntArray, k: int, rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        items = self._environment.listed(k)
        return items, np.ones(items.shape, np.float32)
