"""A recommendation for one raw session, by ids."""

from typing import Any

import numpy as np

from bcd4rec.data.states import HISTORY, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.bundle import Bundle
from bcd4rec.policies.ranking import exclude, top

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)


def recommend_items(
    bundle: Bundle, session: list[Any], skipped: list[Any], k: int, candidates: list[Any] | None = None
) -> dict[str, Any]:
    """The best `k` items with values and, where the policy knows them, quantiles of the return.

    Unknown items are named under `unknown` and play no part; items of the session are not recommended again.
    """
    vocabulary = bundle.vocabulary
    liked, unknown = vocabulary.encode(session)
    passed, more = vocabulary.encode(skipped)
    history = bundle.manifest.get("history", {})
    skips = history.get("skips", 0)
    remembered = States.of([passed[-skips:] if skips else []], skips).positives
    states = States(States.of([liked], history.get("length", HISTORY)).positives, remembered)
    allowed: list[int] | None = None
    if candidates is not None:
        allowed, strange = vocabulary.encode(candidates)
        more = more + strange
        if not allowed:
            raise InputError("None of the candidates is known to the policy; give ids that were in its data set.")
    items, values = _best(bundle, states, liked, k, allowed)
    quantiles = _quantiles(bundle, states, items)
    found = [
        {
            "item": vocabulary.id(item),
            "value": float(value),
            "quantiles": dict(zip(map(str, FRACTIONS), map(float, spread), strict=True))
            if spread is not None
            else None,
        }
        for item, value, spread in zip(items, values, quantiles, strict=True)
    ]
    return {"items": found, "unknown": unknown + more}


def _best(
    bundle: Bundle, states: States, liked: list[int], k: int, allowed: list[int] | None
) -> tuple[IntArray, np.ndarray[Any, Any]]:
    """Item indices and their scores, best first; ties to the lower index."""
    if allowed is None:
        scores = bundle.policy.scores(states)
        exclude(scores, np.array([liked], np.int32).reshape(1, -1))
        ranked = top(scores, k)[0]
        ranked = ranked[ranked >= 0]
        return ranked, scores[0, ranked]
    # Ascending, so that ties go to the lower index.
    pool = np.setdiff1d(np.array(allowed, np.int32), np.array(liked, np.int32))
    if len(pool) == 0:
        return pool, np.empty(0, np.float32)
    scores = bundle.policy.scores(states, pool[None, :])
    places = top(scores, k)[0]
    places = places[places >= 0]
    return pool[places], scores[0, places]


def _quantiles(bundle: Bundle, states: States, items: IntArray) -> list[Any]:
    ask = getattr(bundle.policy, "quantiles", None)
    if ask is None or len(items) == 0:
        return [None] * len(items)
    repeated = states[np.zeros(len(items), np.int64)]
    known = ask(repeated, items, 50)  # (k, N) at evenly spread fractions
    middles = (np.arange(known.shape[1]) + 0.5) / known.shape[1]
    return [np.interp(FRACTIONS, middles, row) for row in known]
