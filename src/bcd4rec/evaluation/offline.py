"""What can be said of a policy from the log alone."""

import numpy as np
import polars as pl

from bcd4rec.data.dataset import Dataset


def realised_return(dataset: Dataset, split: str = "validation") -> float:
    """The mean discounted return that the log's own policy got from each of its steps on, in the unit of the rewards.

    A step is worth the mean reward of its transitions, because a Q-value is the value of showing one item. It is
    what Q̄ should lie somewhat above; far above is overestimation.
    """
    columns = dataset.transitions(dataset.split_or_train(split))
    steps = (
        pl.DataFrame({"session": columns.session, "step": columns.step, "reward": columns.reward})
        .group_by("session", "step")
        .agg(pl.col("reward").mean())
        .sort("session", "step", descending=True)
    )
    total, returns, last = 0.0, [], None
    for session, reward in steps.select("session", "reward").iter_rows():
        total = reward + (dataset.gamma * total if session == last else 0.0)
        last = session
        returns.append(total)
    return float(np.mean(returns))
