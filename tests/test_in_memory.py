"""Data sets from frames and from plain sequences, against `prepare` and plain loops."""

import numpy as np
import polars as pl
import pytest

from bcd4rec.data import in_memory
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import HISTORY, PAD
from bcd4rec.errors import InputError

LISTS = [[2, 0, 2], [], [4], [1, 5, 3, 5, 0, 2, 4, 1, 5, 3, 0, 2, 6], [2, 0]]


def log(sessions: int = 17) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (f"s{one}", step, place, int(item), str(rng.choice(["skip", "click", "buy"], p=[0.6, 0.3, 0.1])), item % 3)
        for one in range(sessions)
        for step in range(4)
        for place, item in enumerate(rng.permutation(9)[:2])
    ]
    columns = ["session_id", "step", "position", "item_id", "response", "category"]
    return pl.DataFrame(rows, schema=columns, orient="row")


@pytest.mark.parametrize("chunk", [1_000_000, 4, 1])
def test_sequences_by_plain_loops(chunk, monkeypatch):
    monkeypatch.setattr(in_memory, "CHUNK_ROWS", chunk)
    dataset = Dataset.from_sequences(Sequences.of(LISTS), 8)
    found = dataset.transitions("train")
    kept = [one for one in LISTS if one]
    rows = [(session, step) for session, one in enumerate(kept) for step in range(len(one))]
    assert list(zip(found.session.tolist(), found.step.tolist(), strict=True)) == rows
    for row, (session, step) in enumerate(rows):
        before, after = kept[session][:step][-HISTORY:], kept[session][: step + 1][-HISTORY:]
        for state, expected in ((found.state[row], before), (found.next_state[row], after)):
            assert dataset.states.positives[state].tolist() == expected + [PAD] * (HISTORY - len(expected))
        assert found.action[row] == kept[session][step]
        assert found.discount[row] == np.float32(0 if step == len(kept[session]) - 1 else dataset.gamma)
    assert (found.reward == 1).all()
    assert np.isnan(found.propensity).all()
    assert [one.tolist() for one in dataset.sequences("train")] == kept
    assert dataset.vocabulary.ids.to_list() == list(range(8))
    assert dataset.items["positives"].to_list() == [sum(one.count(item) for one in LISTS) for item in range(8)]
    assert (dataset.categories == -1).all()
    assert len(np.unique(np.asarray(dataset.states.positives), axis=0)) == len(dataset.states)


def test_the_hash_of_sequences_tells_them_apart():
    others = [LISTS[:-1], [*LISTS[:3], LISTS[3] + LISTS[4]], [[*one] for one in LISTS]]
    hashes = [Dataset.from_sequences(Sequences.of(lists), 8).content_hash for lists in others]
    hashes += [Dataset.from_sequences(Sequences.of(LISTS), size).content_hash for size in (8, 9)]
    assert hashes[2] == hashes[3]
    assert len(set(hashes)) == 4


def test_sequences_without_items_and_with_impossible_ones():
    with pytest.raises(InputError, match="hold no items"):
        Dataset.from_sequences(Sequences.of([[], []]), 3)
    for lists in ([[0, 3]], [[-1]]):
        with pytest.raises(ValueError, match="in a catalogue of 3 items"):
            Dataset.from_sequences(Sequences.of(lists), 3)


def test_a_frame_becomes_what_prepare_makes_of_its_file(tmp_path):
    rewards = {"skip": 0.0, "click": 2.0, "buy": 7.0}
    log().write_parquet(tmp_path / "log.parquet")
    responses = Responses(rewards=rewards)
    prepare(Log(tmp_path / "log.parquet"), responses, PrepareConfig(), tmp_path / "dataset", seed=3)
    expected = Dataset.load(tmp_path / "dataset")
    for given in (rewards, responses):
        found = Dataset.from_frame(log(), given, seed=3)
        assert found.manifest == expected.manifest
        assert found.frame.equals(expected.frame)
        assert not isinstance(found.states.positives, np.memmap)
        np.testing.assert_array_equal(found.states.positives, expected.states.positives)


def test_rewards_have_defaults_and_bad_frames_are_told_by_row():
    assert Dataset.from_frame(log()).responses.rewards == {"skip": 0.0, "click": 1.0, "buy": 5.0}
    first = log()["response"].index_of("buy") + 1
    with pytest.raises(InputError, match=f"frame, row {first}, column response: found 'buy', expected one of"):
        Dataset.from_frame(log(), {"skip": 0.0, "click": 1.0})
    with pytest.raises(InputError, match="frame: column response is missing"):
        Dataset.from_frame(log().drop("response"))
