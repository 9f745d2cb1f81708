"""R@X against a plain loop over the log, and by cases worked out by hand."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.recall import recall, still_to_come
from bcd4rec.policies.uniform import Uniform

ITEMS, SESSIONS, SLATE, LONGEST = 23, 41, 3, 7
Row = tuple[int, int, int, int, str]


def random_rows(seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        (session, step, position, item, str(rng.choice(["skip", "click", "buy"], p=[0.7, 0.2, 0.1])))
        for session in range(SESSIONS)
        for step in range(rng.integers(1, LONGEST + 1))
        for position, item in enumerate(rng.permutation(ITEMS)[: rng.integers(1, SLATE + 1)].tolist())
    ]


def dataset_of(rows: list[Row], folder: Path, validation: float = 0.6, history: str = "positives") -> Dataset:
    frame = pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")
    folder.mkdir()
    frame.with_columns(pl.format("{}-{}", "session_id", "step").alias("request_id")).write_parquet(
        folder / "log.parquet"
    )
    config = PrepareConfig(
        transitions=TransitionConfig.parse({"history": history}, "test"), split=SplitConfig(validation=validation)
    )
    prepare(Log(folder / "log.parquet"), DIGINETICA, config, folder / "dataset")
    return Dataset.load(folder / "dataset")


class LastLiked:
    """Scores with many ties that depend on the last liked item, on how many there are and on how many were skipped."""

    n_items = ITEMS

    def score(self, positives: list[int], skips: int, item: int) -> float:
        return float((7 * item + 3 * positives[-1] + 5 * len(positives) + skips) % 4)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        assert candidates is not None
        found = np.full(candidates.shape, -np.inf, np.float32)
        for row, column in np.argwhere(candidates != PAD):
            positives = [item for item in states.positives[row].tolist() if item != PAD]
            skips = int((states.skips[row] != PAD).sum())
            found[row, column] = self.score(positives, skips, int(candidates[row, column]))
        return found


def by_hand(rows: list[Row], dataset: Dataset, policy: LastLiked, x: int) -> tuple[list[int], list[int]]:
    """Hits and eventually liked items of every session that counts, from the raw rows."""
    hits, liked_counts = [], []
    skips_kept = dataset.states.skips.shape[1]
    for session in sorted(dataset.sessions.filter(split="validation")["session_id"].to_list()):
        own = [row for row in rows if row[0] == session]
        begun = [step for _, step, _, _, response in own if response != "skip"]
        if not begun:
            continue
        before = [row for row in own if row[1] <= min(begun)]
        after = [row for row in own if row[1] > min(begun)]
        positives = [dataset.vocabulary.index(item) for _, _, _, item, response in before if response != "skip"]
        skips = min(sum(row[4] == "skip" for row in before), skips_kept)
        liked = {dataset.vocabulary.index(item) for _, _, _, item, response in after if response != "skip"}
        if not liked:
            continue
        items = sorted({dataset.vocabulary.index(row[3]) for row in after})
        ranked = sorted(items, key=lambda item: (-policy.score(positives, skips, item), item))
        hits.append(len(liked & set(ranked[:x])))
        liked_counts.append(len(liked))
    return hits, liked_counts


def test_what_was_liked_without_being_recommended_is_a_beginning(tmp_path: Path) -> None:
    """Session 0 opens with a read, so that its first slate comes later; session 1 has to like something first."""
    columns = ("session_id", "step", "item_id", "response", "organic")
    table = [
        (0, 0, 5, "click", True),
        (0, 1, 3, "click", False),
        (0, 2, 4, "skip", False),
        (1, 0, 3, "click", False),
        (1, 1, 4, "buy", False),
        (1, 2, 6, "click", True),
    ]
    pl.DataFrame(table, schema=columns, orient="row").write_parquet(tmp_path / "log.parquet")
    config = PrepareConfig(split=SplitConfig(validation=0))
    prepare(Log(tmp_path / "log.parquet"), DIGINETICA, config, tmp_path / "dataset")
    dataset = Dataset.load(tmp_path / "dataset")
    ids = dataset.items["item_id"].to_list()
    found = still_to_come(dataset, "train")
    assert [[ids[item] for item in items] for items in found["items"]] == [[3, 4], [4]]
    assert found["liked"].to_list() == [[True, False], [True]]
    states = dataset.states.positives[found["state"].to_numpy()]
    assert [[ids[item] for item in row if item != PAD] for row in states] == [[5], [3]]


@pytest.mark.parametrize(("x", "history"), [(1, "positives"), (3, "positives"), (3, "all"), (50, "all")])
def test_recall_is_the_plain_loop(x: int, history: str, tmp_path: Path) -> None:
    rows = random_rows()
    dataset = dataset_of(rows, tmp_path / "data", history=history)
    policy = LastLiked()
    assert dataset.n_items == ITEMS
    hits, liked = by_hand(rows, dataset, policy, x)
    found = recall(policy, dataset, x=x)
    assert found.interval.value == pytest.approx(100 * sum(hits) / sum(liked))
    assert found.sessions == len(hits)
    assert found.skipped == (dataset.sessions["split"] == "validation").sum() - len(hits) > 0
    assert found == recall(policy, dataset, x=x)
    if x == 50:
        assert found.interval.value == 100
    else:
        assert found.interval.low < found.interval.value < found.interval.high < 100


def test_equal_scores_go_to_the_lower_index_and_a_repeated_item_counts_once(tmp_path: Path) -> None:
    rows = [(0, 0, 0, 9, "click"), (0, 1, 0, 5, "skip"), (0, 2, 0, 5, "click"), (0, 3, 0, 5, "skip")]
    rows += [(0, 4, 0, 2, "skip"), (0, 5, 0, 7, "buy"), (0, 6, 0, 9, "skip"), (1, 0, 0, 2, "skip")]
    dataset = dataset_of(rows, tmp_path / "data", validation=0.0)
    assert dataset.vocabulary.ids.to_list() == [2, 5, 7, 9]  # to come: 2, 5 (liked), 7 (liked), 9
    assert [recall(Uniform(4), dataset, x=x).interval.value for x in (1, 2, 3, 4)] == [0, 50, 100, 100]
    assert recall(Uniform(4), dataset)[1:] == (1, 1)  # without a validation split, on train


def test_agents_and_baselines_are_measured_alike(tmp_path: Path) -> None:
    from bcd4rec.workflows.fitting import fit

    dataset = dataset_of(random_rows(1), tmp_path / "data")
    quick = {"updates": 3, "batch_size": 8}
    for policy in (fit("iqn", dataset, quick).scorer, BASELINES["sknn"]().fit(dataset, 0)):
        every = recall(policy, dataset, x=ITEMS).interval.value
        assert recall(policy, dataset, x=1).interval.value < recall(policy, dataset, x=5).interval.value <= every


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    dataset = dataset_of([(0, 0, 0, 4, "click"), (0, 1, 0, 5, "skip")], tmp_path / "data", validation=0.0)
    with pytest.raises(InputError, match="'train' has a positive response after its first"):
        recall(Uniform(2), dataset)
    with pytest.raises(InputError, match="first 0 items"):
        recall(Uniform(2), dataset, x=0)
    with pytest.raises(InputError, match="knows 3 items, but the data set has 2"):
        recall(Uniform(3), dataset)
