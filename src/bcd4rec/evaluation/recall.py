"""R@X: does a policy put what a held-out session came to like above what else the session was shown?

The first interactions of a session are its requests up to the first with a positive response. The policy gets the
state after them and ranks all items that the session was shown later, each once. R@X is the share, in percent, of
those that got a positive response there which stand among the first X. So it is below 100 where more than X were
liked, and says nothing where no more than X items were to come: compare policies on the same sessions only.
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, IntArray, Rows
from bcd4rec.errors import InputError
from bcd4rec.evaluation.statistics import Interval, Ratio, interval
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import top

BATCH = 256  # sessions ranked at once


class Recall(NamedTuple):
    """R@X in percent, how many sessions it is of, and how many had nothing positive to come and do not count."""

    interval: Interval
    sessions: int
    skipped: int


def recall(policy: Policy, dataset: Dataset, split: str = "validation", x: int = 3, seed: int = 0) -> Recall:
    """R@x on a split (on train where it is missing), with a 95 % interval by the bootstrap over sessions.

    Ties go to the lower item index, and an item that the policy scores −inf is never among the first x.
    """
    if x < 1:
        raise InputError(f"Recall within the first {x} items was asked for; expected 1 or more.")
    if policy.n_items != dataset.n_items:
        raise InputError(f"The policy knows {policy.n_items} items, but the data set has {dataset.n_items}.")
    split = dataset.split_or_train(split)
    coming = still_to_come(dataset, split)
    if coming.is_empty():
        raise InputError(f"No session of split {split!r} has a positive response after its first; there is no recall.")
    hits = np.concatenate([_hits(policy, dataset, part, x) for part in coming.iter_slices(BATCH)])
    counts = coming.select(session_id="session", positives=pl.col("liked").list.sum()).with_columns(hits=hits)
    every = int((dataset.sessions["split"] == split).sum())
    return Recall(interval(counts, Ratio("hits", "positives", 100.0), seed), len(counts), every - len(counts))


def still_to_come(dataset: Dataset, split: str) -> pl.DataFrame:
    """A row for each session that liked something after its first interactions: `session`, the `state` after them,
    the `items` that were shown later, ascending, and which of them were `liked`."""
    rows = dataset.transitions(split)
    positive = np.isin(rows.response, [dataset.responses.code(name) for name in dataset.responses.positive])
    shown = pl.DataFrame({"session": rows.session, "state": rows.state, "item": rows.action, "liked": positive})
    begun = dataset.states.lengths[rows.state] > 0  # something was liked before, recommended or not
    later = shown.filter(pl.Series(begun)).with_columns(pl.col("state").first().over("session"))
    items = later.group_by("session", "state", "item").agg(pl.col("liked").any()).sort("session", "item")
    sessions = items.group_by("session", "state", maintain_order=True).agg(items="item", liked="liked")
    return sessions.filter(pl.col("liked").list.any())


def _hits(policy: Policy, dataset: Dataset, part: pl.DataFrame, x: int) -> Rows:
    """(B,) how many liked items of each session stand among the first x."""
    candidates, liked = _padded(part["items"]), _padded(part["liked"].cast(pl.List(pl.Int32)))
    states = dataset.states[part["state"].to_numpy()]
    places = top(policy.scores(states, candidates), x)  # a lower place is a lower item index: the tie rule
    found = np.take_along_axis(liked, np.maximum(places, 0), axis=1) == 1
    hits: Rows = (found & (places != PAD)).sum(axis=1)
    return hits


def _padded(lists: pl.Series) -> IntArray:
    """(B, C) ragged lists as an array, padded with `PAD`."""
    lengths = lists.list.len().to_numpy()
    array = np.full((len(lists), int(lengths.max())), PAD, np.int32)
    array[np.arange(array.shape[1]) < lengths[:, None]] = lists.explode().to_numpy()
    return array
