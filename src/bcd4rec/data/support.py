"""Which questions a log can answer: about items it has shown often enough, to sessions like the one that is asked."""

from dataclasses import dataclass, replace

import numpy as np

from bcd4rec.data.states import PAD, Doubles, IntArray, Mask, Rows

CHUNK = 1_000_000  # impressions that are counted at once
PRIOR = 20.0  # m: impressions by which a group's own counts are drawn towards those of all sessions
STRANGE = 0.01  # share of what sessions were really shown that counts as strange


@dataclass(frozen=True)
class Support:
    """What was shown to whom. A question lies outside where the log has (almost) nothing to say.

    Items are alike by group: their category, or the item itself where it has none. With n_i impressions of item i, n_g
    of its group g, π_g = n_g / n, and N(h, g) impressions of group g to sessions that had liked group h, item i is

        likely(i | s) = n_i / n_g · mean over liked h of (N(h, g) + m π_g) / (N(h) + m)

    in session s; sessions that have liked nothing yet are an h of their own. It lies outside if it was shown fewer than
    `least` times in all, or if it is less likely than all but a hundredth of what other sessions were really shown.
    """

    groups: IntArray  # (A,) the group of each item
    shown: Rows  # (A,) n_i
    pairs: Rows  # sorted keys of the pairs (h, g) that were seen
    counts: Rows  # N of each of them
    totals: Rows  # (G + 1,) N(h); the last is for sessions that have liked nothing yet
    least: int
    threshold: float = 0.0  # how likely an item must be

    @classmethod
    def count(cls, histories: IntArray, items: IntArray, groups: IntArray, least: int) -> "Support":
        """From n impressions: `items` (n,) were shown to sessions that had liked `histories` (n, L)."""
        pairs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        for start in range(0, len(items), CHUNK):
            part = slice(start, start + CHUNK)
            keys = _keys(histories[part], items[part, None], groups)[:, 0]
            keys.sort(axis=1)  # a pair counts once for an impression, however many liked items are of its group
            fresh = (np.diff(keys, axis=1, prepend=-1) != 0) & (keys >= 0)
            pairs, inverse = np.unique(np.append(pairs, keys[fresh]), return_inverse=True)
            weights = np.append(counts, np.ones(len(inverse) - len(counts), np.int64))
            counts = np.bincount(inverse, weights, len(pairs)).astype(np.int64)
        size = _size(groups)
        totals = np.bincount(pairs // size, counts, size + 1).astype(np.int64)
        return cls(groups, np.bincount(items, minlength=len(groups)), pairs, counts, totals, least)

    def with_threshold(self, histories: IntArray, items: IntArray) -> "Support":
        """What is strange is learned from other impressions than were counted, as those are less surprising."""
        seen = self.likely(histories, items[:, None])[:, 0]
        return replace(self, threshold=float(np.quantile(seen, STRANGE)) if len(seen) else 0.0)

    def likely(self, histories: IntArray, items: IntArray) -> Doubles:
        """(B, K) how likely `items` (B, K) are to be shown to sessions that have liked `histories` (B, L)."""
        size, all_shown = _size(self.groups), max(int(self.shown.sum()), 1)
        by_group = np.bincount(self.groups, self.shown, size)
        keys = _keys(histories, items, self.groups)
        place = np.minimum(np.searchsorted(self.pairs, keys), max(len(self.pairs) - 1, 0))
        seen = np.where(self.pairs[place] == keys, self.counts[place], 0) if len(self.pairs) else np.zeros(keys.shape)
        group = self.groups[items]  # (B, K)
        prior = PRIOR * (by_group / all_shown)[group][:, :, None]
        chance = (seen + prior) / (self.totals[np.maximum(keys, 0) // size] + PRIOR)
        valid = keys >= 0
        mean = (chance * valid).sum(axis=2) / np.maximum(valid.sum(axis=2), 1)
        result: Doubles = mean * self.shown[items] / np.maximum(by_group[group], 1)
        return result

    def outside(self, histories: IntArray, items: IntArray) -> Mask:
        """(B, K) which of the shown `items` (B, K) are outside; an empty place never is."""
        rare = self.shown[items] < self.least
        outside: Mask = (rare | (self.likely(histories, items) < self.threshold)) & (items != PAD)
        return outside


def _size(groups: IntArray) -> int:
    return int(groups.max(initial=0)) + 1


def _keys(histories: IntArray, items: IntArray, groups: IntArray) -> Rows:
    """(B, K, L + 1) a key for each pair of a liked group and the item's; −1 for pairs that are none.

    The last place stands for sessions that have liked nothing yet.
    """
    size = _size(groups)
    liked = np.where(histories == PAD, -1, groups[histories]).astype(np.int64)  # (B, L)
    empty = np.where((histories == PAD).all(axis=1), size, -1)[:, None]
    first = np.concatenate([liked, empty], axis=1)[:, None, :]
    keys: Rows = np.where(first < 0, -1, first * size + groups[items].astype(np.int64)[:, :, None])
    return keys


def item_groups(categories: IntArray) -> IntArray:
    """(A,) the category of each item; items without one (−1) get groups of their own behind the categories."""
    alone = np.flatnonzero(categories < 0)
    groups = categories.astype(np.int32).copy()
    groups[alone] = int(categories.max(initial=-1)) + 1 + np.arange(len(alone), dtype=np.int32)
    return groups
