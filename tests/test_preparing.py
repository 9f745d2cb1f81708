"""`prepare` against a plain loop over random logs; the same bytes every time; splits, counts, loading."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data import sessions, transition_file
from bcd4rec.data.dataset import FILES, Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogOptions
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY
from bcd4rec.data.splits import SplitConfig, assign_splits, refuse_no_train
from bcd4rec.data.states import PAD
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator

RESPONSES = Responses(rewards={"skip": -0.25, "click": 1, "buy": 5}, target="buy")
Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def prepared(log: Path, out: Path, config: dict[str, Any] | None = None, seed: int = 0, **options: Any) -> Dataset:
    prepare(Log(log, LogOptions(**options)), RESPONSES, PrepareConfig.model_validate(config or {}), out, seed)
    return Dataset.load(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# ---- random logs


@st.composite
def session_rows(draw: st.DrawFn, session: int, clock: str, slate: str, position: bool, organic: bool) -> list[Row]:
    """The rows of one session in the order of the file; `slate` is the column that makes slates, or nothing.

    With `organic`, what nobody recommended stands before, within and behind slates, also with the slate's own name.
    """
    time = draw(st.integers(0, 3))
    rows: list[Row] = []

    def read(request: int) -> None:
        for item in draw(st.lists(st.integers(0, 5), max_size=2, unique=True)):
            row: Row = {"session_id": session, clock: time, "item_id": item, "organic": True, "position": None}
            row["response"] = draw(st.sampled_from(["skip", "click", "buy"]))
            row["request_id"] = draw(st.sampled_from([None, f"{session % 2}-{request}"]))
            rows.append({name: row[name] for name in row if name in kept})

    kept = {"session_id", clock, "item_id", "response", slate} | ({"position"} if position else set())
    kept |= {"organic"} if organic else set()
    for request in range(draw(st.integers(1, 5))):
        if organic:
            read(request)
            time += 1
        size = draw(st.integers(1, 4)) if slate else 1
        items = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size, unique=True))
        places = draw(st.permutations(range(size)))
        for item, place in zip(items, places, strict=True):
            row: Row = {"session_id": session, clock: time, "item_id": item}
            row["response"] = draw(st.sampled_from(["skip", "skip", "click", "buy"]))
            if slate == "request_id":
                row["request_id"] = f"{session % 2}-{request}"  # the same name in two sessions is two slates
            if position:
                row["position"] = place
            if organic:
                row["organic"] = draw(st.sampled_from([False, None]))
                if draw(st.integers(0, 4)) == 0:
                    read(request)
            rows.append(row)
        time += draw(st.integers(0 if slate == "request_id" and not organic else 1, 2))
    if organic:
        read(0)
    once = {}  # rows that stand twice would be refused
    for row in rows:
        once.setdefault(repr(row | {"response": "", "organic": bool(row.get("organic"))}), row)
    return list(once.values())


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    clock = draw(st.sampled_from(["timestamp", "step"]))
    slate = draw(st.sampled_from(["request_id", "step" if clock == "step" else ""]))
    position = draw(st.booleans())
    organic = draw(st.booleans())
    count = draw(st.integers(1, 4))
    queues = [draw(session_rows(number, clock, slate, position, organic)) for number in range(count)]
    turns = [number for number, queue in enumerate(queues) for _ in queue]
    if draw(st.booleans()):
        turns = draw(st.permutations(turns))
    rows = [queues[number].pop(0) for number in turns]
    if draw(st.booleans()):
        rows = [row | {"session_id": f"s{row['session_id']}", "item_id": f"i{row['item_id']}"} for row in rows]
    return rows


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    history = draw(st.sampled_from(["positives", "all"]))
    return {
        "history": history,
        "length": draw(st.integers(1, 4)),
        "skips": draw(st.integers(1, 3)),
        "convention": draw(st.sampled_from(["shown", "chosen"])),
        "next_state": "slate" if history == "all" else draw(st.sampled_from(["item", "slate"])),
        "gamma": 0.75,
    }


# ---- the plain loop

State = tuple[tuple[Any, ...], tuple[Any, ...]]  # positive items, skipped items; oldest first


def in_sessions(rows: list[Row]) -> list[tuple[Any, list[list[Row]]]]:
    """(session id, its slates and organic events) in order of start, then of appearance."""
    clock = "timestamp" if "timestamp" in rows[0] else "step"
    slate = next((name for name in ("request_id", "step") if name in rows[0]), None)
    found: dict[Any, dict[Any, list[Row]]] = {}
    starts: dict[Any, int] = {}
    for number, row in enumerate(rows):
        session = row["session_id"]
        starts[session] = min(starts.get(session, row[clock]), row[clock])
        alone = slate is None or row.get("organic")
        found.setdefault(session, {}).setdefault(("row", number) if alone else row[slate], []).append(row)
    ordered = sorted(found, key=lambda session: starts[session])
    in_place = [
        [sorted(shown, key=lambda row: row.get("position") or 0) for shown in found[session].values()]
        for session in ordered
    ]
    return list(zip(ordered, in_place, strict=True))


def reference(rows: list[Row], config: dict[str, Any], seed: int) -> Iterator[tuple[Any, ...]]:
    rng = generator(seed, "chosen")
    keep_skips = config["skips"] if config["history"] == "all" else 0

    def state(liked: list[Any], skipped: list[Any]) -> State:
        return tuple(liked[-config["length"] :]), tuple(skipped[-keep_skips:]) if keep_skips else ()

    for session, requests in in_sessions(rows):
        liked: list[Any] = []
        skipped: list[Any] = []
        befores: list[State] = []  # of each request, and after the last one
        after_items: list[list[State]] = []
        for slate in requests:
            befores.append(state(liked, skipped))
            after_items.append([])
            for row in slate:
                if row["response"] in ("click", "buy"):
                    liked.append(row["item_id"])
                elif not row.get("organic"):
                    skipped.append(row["item_id"])
                positive = row["response"] in ("click", "buy")
                after_items[-1].append(state(liked, skipped) if positive else befores[-1])
        befores.append(state(liked, skipped))
        recommended = [number for number, slate in enumerate(requests) if not slate[0].get("organic")]
        for number, slate in enumerate(requests):
            organic = number not in recommended
            step = sum(other < number for other in recommended)
            following = [other for other in recommended if other > number]
            before, after_item = befores[number], after_items[number]
            after_slate = befores[number + 1] if organic else befores[min([*following, len(requests)])]
            discount = config["gamma"] if following else 0.0
            drawn = int(rng.random() * len(slate))
            hits = [place for place, row in enumerate(slate) if row["response"] in ("click", "buy")]
            chosen = hits[0] if hits else drawn
            for place, row in enumerate(slate):
                if config["convention"] == "shown" or place == chosen:
                    after = after_item[place] if config["next_state"] == "item" else after_slate
                    reward = RESPONSES.rewards[row["response"]]
                    position = row.get("position")
                    rest = (-1 if organic or position is None else position, organic)
                    yield session, step, before, row["item_id"], row["response"], reward, after, discount, *rest


def decoded(dataset: Dataset) -> list[tuple[Any, ...]]:
    ids, names = dataset.items["item_id"].to_list(), dataset.responses.names
    session_ids = dataset.sessions["session_id"].to_list()

    def state(row: int) -> State:
        sides = (dataset.states.positives[row], dataset.states.skips[row])
        positives, skips = (tuple(ids[item] for item in side if item != PAD) for side in sides)
        return positives, skips

    return [
        (
            session_ids[row["session"]],
            row["step"],
            state(row["state"]),
            ids[row["action"]],
            names[row["response"]],
            row["reward"],
            state(row["next_state"]),
            row["discount"],
            row["position"],
            row["organic"],
        )
        for row in dataset.frame.iter_rows(named=True)
    ]


def check_state_table(dataset: Dataset) -> None:
    table = np.concatenate([dataset.states.positives, dataset.states.skips], axis=1)
    assert len(np.unique(table, axis=0)) == len(table)
    assert (table[0] == PAD).all()
    for side in (dataset.states.positives, dataset.states.skips):
        full = side != PAD
        assert (np.sort(~full, axis=1) == ~full).all()  # content on the left, padding on the right
    referred = set(dataset.frame["state"]) | set(dataset.frame["next_state"])
    assert referred <= set(range(len(table)))


@given(
    rows=logs(), config=configs(), suffix=st.sampled_from(["csv", "parquet"]), chunk=st.integers(1, 7), data=st.data()
)
@settings(max_examples=100, deadline=None)
def test_transitions_are_those_of_a_plain_loop(
    rows: list[Row], config: dict[str, Any], suffix: str, chunk: int, data: st.DataObject
) -> None:
    """Also: files of any size and chunks of any size make no difference to the bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = write(folder / f"log.{suffix}", rows)
        dataset = prepared(log, folder / "out", {"transitions": config}, seed=3)
        assert decoded(dataset) == list(reference(rows, config, seed=3))
        check_state_table(dataset)
        cut = data.draw(st.integers(0, len(rows)), label="rows in the first file")
        parts = [part for part in (rows[:cut], rows[cut:]) if part]
        (folder / "parts").mkdir()
        for number, part in enumerate(parts):
            write(folder / "parts" / f"{number}.{suffix}", part)
        with mock.patch.object(sessions, "CHUNK_ROWS", chunk):
            prepared(folder / "parts", folder / "other", {"transitions": config}, seed=3)
        assert contents(folder / "other") == contents(folder / "out")


# ---- cases by hand


def slate_log() -> list[Row]:
    """One session: a slate with two positives, a slate of skips; and one session of a single slate."""
    columns = ("session_id", "step", "position", "item_id", "response")
    table = [
        (7, 0, 0, 10, "click"),
        (7, 0, 1, 11, "skip"),
        (7, 0, 2, 12, "buy"),
        (7, 1, 0, 13, "skip"),
        (7, 1, 1, 10, "skip"),
        (9, 4, 0, 12, "click"),
    ]
    return [dict(zip(columns, row, strict=True)) for row in table]


def test_transitions_by_hand(tmp_path: Path) -> None:
    config = {"transitions": {"history": "positives", "length": 10}}
    dataset = prepared(write(tmp_path / "log.csv", slate_log()), tmp_path / "out", config)
    assert decoded(dataset) == [
        (7, 0, ((), ()), 10, "click", 1.0, ((10,), ()), np.float32(0.9), 0, False),
        (7, 0, ((), ()), 11, "skip", -0.25, ((), ()), np.float32(0.9), 1, False),
        (7, 0, ((), ()), 12, "buy", 5.0, ((10, 12), ()), np.float32(0.9), 2, False),
        (7, 1, ((10, 12), ()), 13, "skip", -0.25, ((10, 12), ()), 0.0, 0, False),
        (7, 1, ((10, 12), ()), 10, "skip", -0.25, ((10, 12), ()), 0.0, 1, False),
        (9, 0, ((), ()), 12, "click", 1.0, ((12,), ()), 0.0, 0, False),
    ]
    assert dataset.states.positives[:, :2].tolist() == [[PAD, PAD], [0, PAD], [0, 2], [2, PAD]]
    assert dataset.states.positives.shape == (4, 10)
    assert dataset.states.skips.shape == (4, 0)
    assert dataset.manifest["counts"] == {
        "sessions": 2,
        "sessions_by_split": {"train": 2},
        "sessions_without_impressions": 0,
        "impressions": 6,
        "impressions_by_split": {"train": 6},
        "organic": 0,
        "responses": {"skip": 3, "click": 2, "buy": 1},
        "transitions": 6,
        "states": 4,
        "items": 4,
        "categories": 0,
    }


def test_states_with_skips_by_hand(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", slate_log())
    dataset = prepared(log, tmp_path / "out", {"transitions": {"history": "all", "skips": 2}})
    states = [(row[2], row[6]) for row in decoded(dataset)]
    first, second, last = ((), ()), ((10, 12), (11,)), ((10, 12), (13, 10))
    assert states == [(first, second)] * 3 + [(second, last)] * 2 + [(first, ((12,), ()))]
    assert dataset.manifest["config"]["next_state"] == "slate"


def organic_log() -> list[Row]:
    """A read, a slate, two reads (one of them no like), a slate, a read; a session of reads alone; reads at the end."""
    columns = ("session_id", "timestamp", "request_id", "position", "item_id", "response", "organic")
    table = [
        (1, 0, None, None, 20, "click", True),
        (1, 1, "a", 0, 10, "click", None),
        (1, 1, "a", 1, 11, "skip", None),
        (1, 2, "a", 1, 21, "buy", True),  # the name of the slate makes it no part of it
        (1, 3, None, None, 22, "skip", True),
        (1, 4, "b", 0, 12, "skip", False),
        (1, 5, None, None, 23, "click", True),
        (2, 6, None, None, 20, "click", True),
        (2, 7, None, None, 10, "click", True),
    ]
    return [dict(zip(columns, row, strict=True)) for row in table]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_organic_events_by_hand(tmp_path: Path, suffix: str) -> None:
    log = write(tmp_path / f"log.{suffix}", organic_log())
    dataset = prepared(log, tmp_path / "out", {"split": {"validation": 0}})
    found = [(row[1], row[2], row[3], row[6], row[7], row[8], row[9]) for row in decoded(dataset)]
    gamma, read, done = np.float32(0.9), ((20,), ()), ((20, 10, 21), (11,))
    end = ((20, 10, 21, 23), (11, 12))
    assert found == [
        (0, ((), ()), 20, read, gamma, -1, True),
        (0, read, 10, done, gamma, 0, False),
        (0, read, 11, done, gamma, 1, False),
        (1, ((20, 10), (11,)), 21, done, gamma, -1, True),
        (1, done, 22, done, gamma, -1, True),
        (1, done, 12, end, 0.0, 0, False),
        (2, ((20, 10, 21), (11, 12)), 23, end, 0.0, -1, True),
        (0, ((), ()), 20, ((20,), ()), 0.0, -1, True),
        (0, ((20,), ()), 10, ((20, 10), ()), 0.0, -1, True),
    ]
    train = dataset.transitions("train")
    assert (train.step.tolist(), train.position.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert train.position.dtype == np.int32
    ids = dataset.items["item_id"].to_list()
    assert [[ids[item] for item in one] for one in dataset.sequences("train")] == [[20, 10, 21, 23], [20, 10]]
    counts = dataset.manifest["counts"]
    assert (counts["sessions"], counts["sessions_without_impressions"]) == (2, 1)
    assert (counts["impressions"], counts["organic"], counts["transitions"]) == (3, 6, 3)
    assert counts["impressions_by_split"] == {"train": 3}
    assert counts["responses"] == {"skip": 2, "click": 1, "buy": 0}
    shown = {item: (shown, liked) for item, _, shown, liked in dataset.items.iter_rows()}
    assert shown == {10: (1, 1), 11: (1, 0), 12: (1, 0), 20: (0, 0), 21: (0, 0), 22: (0, 0), 23: (0, 0)}
    assert dataset.sessions["organic"].to_list() == [4, 2]


def test_one_transition_per_slate_and_all_organic_events(tmp_path: Path) -> None:
    config = {"transitions": {"convention": "chosen"}, "split": {"validation": 0}}
    dataset = prepared(write(tmp_path / "log.csv", organic_log()), tmp_path / "out", config)
    assert dataset.frame.filter("organic").height == 6
    assert dataset.manifest["counts"]["transitions"] == len(dataset.transitions("train")) == 2


def test_a_log_of_organic_events_alone_is_refused(tmp_path: Path) -> None:
    rows = [row for row in organic_log() if row["organic"]]
    with pytest.raises(BadLog, match="every row is organic, expected rows of what was recommended"):
        prepared(write(tmp_path / "log.csv", rows), tmp_path / "out")


@pytest.mark.parametrize(
    ("written", "means"), [("1", True), ("0", False), ("TRUE", True), ("False", False), ("", False)]
)
def test_how_organic_is_written(tmp_path: Path, written: str, means: bool) -> None:
    text = f"session_id,step,item_id,response,organic\n1,0,5,skip,0\n1,1,6,click,{written}\n"
    (tmp_path / "log.csv").write_text(text)
    assert prepared(tmp_path / "log.csv", tmp_path / "out").frame["organic"].to_list() == [False, means]


def test_organic_that_is_neither_true_nor_false(tmp_path: Path) -> None:
    rows = [row | {"organic": 2 if row["item_id"] == 11 else 0} for row in slate_log()]
    for suffix in ("csv", "parquet"):
        with pytest.raises(BadLog, match="row 2, column organic: found '2', expected true or false, or 1 or 0"):
            prepared(write(tmp_path / f"log.{suffix}", rows), tmp_path / "out")
    rows = [row | {"organic": 0.5} for row in slate_log()]
    with pytest.raises(InputError, match="column organic has type Float64, expected true and false, or 1 and 0"):
        prepared(write(tmp_path / "log.parquet", rows), tmp_path / "out")


# ---- how much a state holds


def sized_log(positives: list[int], skips: list[int]) -> list[Row]:
    """Session j likes `positives[j]` items and passes over `skips[j]`."""
    return [
        {"session_id": session, "step": step, "item_id": step, "response": response}
        for session, (liked, passed) in enumerate(zip(positives, skips, strict=True))
        for step, response in enumerate(["click"] * liked + ["skip"] * passed)
    ]


@pytest.mark.parametrize(
    ("positives", "skips", "sizes"),
    [
        ([3] * 18 + [4, 9], [7] * 19 + [30], (4, 7)),  # 19 of 20 sessions are 95 %
        ([3] * 17 + [4, 9, 9], [7] * 18 + [30, 30], (9, 30)),
        ([0] * 19 + [2], [1] * 20, (1, 1)),  # at least one
        ([60] * 3, [210] * 3, (50, 200)),  # not without end
        ([2] * 6, [0] * 6, (2, 0)),  # nothing was passed over
        ([1] * 20, [0] * 19 + [5], (1, 1)),
    ],
)
def test_sizes_are_taken_from_the_log(tmp_path: Path, positives: list[int], skips: list[int], sizes: Any) -> None:
    log = write(tmp_path / "log.csv", sized_log(positives, skips))
    dataset = prepared(log, tmp_path / "out")
    config = dataset.manifest["config"]
    assert (config["history"], config["next_state"], config["automatic"]) == ("all", "slate", ["length", "skips"])
    assert (config["length"], config["skips"]) == sizes
    assert (dataset.states.positives.shape[1], dataset.states.skips.shape[1]) == sizes


def test_sizes_by_hand_are_not_automatic(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", sized_log([3, 5], [4, 2]))
    for name, values, sizes, automatic in (
        ("a", {"length": 7}, (7, 4), ["skips"]),
        ("b", {"skips": 0}, (5, 0), ["length"]),
        ("c", {"length": 2, "skips": 3}, (2, 3), []),
        ("d", {"history": "positives"}, (5, 0), ["length"]),
    ):
        dataset = prepared(log, tmp_path / name, {"transitions": values})
        config = dataset.manifest["config"]
        assert (config["length"], config["skips"], config["automatic"]) == (*sizes, automatic)
        assert (dataset.states.positives.shape[1], dataset.states.skips.shape[1]) == sizes


def test_organic_likes_count_for_the_size_and_organic_skips_do_not(tmp_path: Path) -> None:
    rows = [row for row in organic_log() if row["session_id"] == 1]
    config = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out").manifest["config"]
    assert (config["length"], config["skips"]) == (4, 2)


def test_items_that_train_never_showed_are_warned_about(tmp_path: Path) -> None:
    """Ten sessions, of which five test; each of them is shown three items of all, and some one of its own."""
    for own, told in ((0, None), (1, "25 % of the test and validation impressions")):
        rows = [
            {"session_id": s, "step": t, "item_id": t if t < 3 else 100 + s, "response": "click"}
            for s in range(10)
            for t in range(3 + own)
        ]
        log = write(tmp_path / f"{own}.csv", rows)
        config = {"split": {"test": 0.5, "validation": 0}}
        warned = prepared(log, tmp_path / str(own), config).manifest["warnings"]
        assert [one["kind"] for one in warned] == (["unknown items"] if told else [])
        assert all(one["message"].startswith(str(told)) and one["value"] == 0.25 for one in warned)


def test_a_session_longer_than_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"session_id": s, "step": t, "item_id": t, "response": "skip"} for s in (0, 1) for t in range(50)]
    log = write(tmp_path / "log.csv", rows)
    for history in ("positives", "all"):
        config = {"transitions": {"history": history}}
        whole = prepared(log, tmp_path / history, config)
        monkeypatch.setattr(sessions, "CHUNK_ROWS", 4)
        assert prepared(log, tmp_path / f"{history}-in-chunks", config).content_hash == whole.content_hash
        monkeypatch.undo()


def test_row_groups_have_a_length_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transition_file, "ROW_GROUP", 4)
    log = write(tmp_path / "log.csv", slate_log())
    whole = prepared(log, tmp_path / "whole")
    monkeypatch.setattr(sessions, "CHUNK_ROWS", 1)
    assert prepared(log, tmp_path / "chunks").content_hash == whole.content_hash
    written = pq.ParquetFile(tmp_path / "chunks" / "transitions.parquet").metadata
    assert [written.row_group(number).num_rows for number in range(written.num_row_groups)] == [4, 2]


def test_slates_that_overlap_in_the_file(tmp_path: Path) -> None:
    """Rows of one slate need not stand together; slates count in the order of their first rows."""
    order = [("x", 1), ("y", 2), ("x", 3), ("y", 4)]
    rows = [{"session_id": 0, "timestamp": 5, "request_id": r, "item_id": i, "response": "skip"} for r, i in order]
    frame = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out").frame
    assert frame["step"].to_list() == [0, 0, 1, 1]
    assert frame["action"].to_list() == [0, 2, 1, 3]


@pytest.mark.parametrize("slates", [True, False])
def test_sorting_gives_what_the_sorted_log_gives(tmp_path: Path, slates: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"session_id": s, "timestamp": 10 * t, "item_id": 10 * t + k, "response": rng.choice(["skip", "click"])}
        | ({"request_id": f"{s}/{t}"} if slates else {})
        for s in range(4)
        for t in range(6)
        for k in range(2 if slates else 1)
    ]
    right = prepared(write(tmp_path / "right.csv", rows), tmp_path / "right")
    # Slates in any order; rows of a slate in theirs, and sessions first seen in theirs.
    starts = [row for row in rows if row["timestamp"] == 0]
    later = [row for row in rows if row["timestamp"] > 0]
    mixed = starts + sorted(later, key=lambda row: (row["timestamp"] * 7 % 11, row["session_id"]))
    shuffled = write(tmp_path / "shuffled.csv", mixed)
    with pytest.raises(BadLog, match="with a time before the row above"):
        prepared(shuffled, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    assert prepared(shuffled, tmp_path / "sorted", sort=True).content_hash == right.content_hash


def test_propensities_pass_through(tmp_path: Path) -> None:
    rows = [row | {"propensity": p} for row, p in zip(slate_log(), [0.5, None, 0.25, 1, 0.125, None], strict=True)]
    transitions = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out").transitions("train")
    assert transitions.propensity.dtype == np.float32
    np.testing.assert_array_equal(transitions.propensity, [0.5, np.nan, 0.25, 1, 0.125, np.nan])


def test_bad_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    rows = slate_log()
    rows[3]["response"] = "like"
    with pytest.raises(BadLog, match="row 4, column response: found 'like'"):
        prepared(write(tmp_path / "log.csv", rows), tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"history": "all", "next_state": "item"}, "history all needs next_state slate"),
        ({"length": 0}, "length"),
        ({"skips": -1}, "skips"),
        ({"gamma": 1.5}, "gamma"),
        ({"convention": "clicked"}, "convention"),
        ({"colour": 1}, "unknown key 'transitions.colour'"),
    ],
)
def test_configurations_that_make_no_sense(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PrepareConfig.parse({"transitions": values}, "config")


# ---- the same bytes


def many_rows() -> list[Row]:
    rng = np.random.default_rng(1)
    rows = []
    for session in range(60):
        for step in range(int(rng.integers(1, 9))):
            for position, item in enumerate(rng.permutation(40)[:3]):
                response = rng.choice(["skip", "click", "buy"], p=[0.7, 0.2, 0.1])
                row = {"session_id": f"s{session}", "step": step, "position": position, "item_id": f"i{item}"}
                rows.append(row | {"response": str(response), "category": int(item) % 4})
    return rows


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    log = write(tmp_path / "log.parquet", many_rows())
    config = {"transitions": {"convention": "chosen"}, "split": {"test": 0.25}}
    prepared(log, tmp_path / "a", config, seed=1)
    prepared(log, tmp_path / "b", config, seed=1)
    prepared(log, tmp_path / "c", config, seed=2)
    assert contents(tmp_path / "a").keys() == {*FILES, "manifest.json"}
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    different = [name for name, value in contents(tmp_path / "c").items() if value != contents(tmp_path / "a")[name]]
    assert {"sessions.parquet", "transitions.parquet", "manifest.json"} <= set(different)


def test_threads_make_no_difference(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", many_rows())
    for threads in ("1", "2"):
        subprocess.run(
            [sys.executable, "-m", "bcd4rec.cli", "prepare", str(log), "--out", str(tmp_path / threads), "--json"],
            check=True,
            env=os.environ | {"POLARS_MAX_THREADS": threads},
            capture_output=True,
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_the_hash_tells_data_sets_apart(tmp_path: Path) -> None:
    rows = many_rows()
    first = prepared(write(tmp_path / "a.csv", rows), tmp_path / "a")
    rows[5]["response"] = "buy" if rows[5]["response"] != "buy" else "skip"
    assert prepared(write(tmp_path / "b.csv", rows), tmp_path / "b").content_hash != first.content_hash
    assert prepared(write(tmp_path / "a.parquet", many_rows()), tmp_path / "c").content_hash == first.content_hash


# ---- splits


def dated(*spans: tuple[float, float]) -> pl.DataFrame:
    """Sessions from their first and last moments in days, of a log that starts at noon."""
    begin = 19_000.5 * MICROSECONDS_PER_DAY
    times = [[int(begin + day * MICROSECONDS_PER_DAY) for day in span] for span in spans]
    return pl.DataFrame(
        {
            "session_id": list(range(len(spans))),
            "start": [time[0] for time in times],
            "end": [time[1] for time in times],
            "rows": [1] * len(spans),
        }
    )


@pytest.mark.parametrize("count", [1, 2, 7, 250])
@pytest.mark.parametrize(("test", "validation"), [(0.0, 0.2), (0.3, 0.2), (0.1, 0.0), (0.5, 0.5)])
def test_split_by_session(count: int, test: float, validation: float) -> None:
    frame = dated(*[(day, day) for day in range(count)])
    config = SplitConfig(test=test, validation=validation)
    kept, dropped = assign_splits(frame, config, seed=0, clock=False)
    sizes = dict(kept["split"].value_counts().iter_rows())
    held_out = round(test * count)
    assert dropped == {}
    assert kept["session_id"].to_list() == frame["session_id"].to_list()
    assert sizes.get("test", 0) == held_out
    assert sizes.get("validation", 0) == round(validation * (count - held_out))
    assert sum(sizes.values()) == count
    assert kept.equals(assign_splits(frame, config, seed=0, clock=False)[0])


def test_split_by_session_depends_on_the_seed_and_mixes_time() -> None:
    frame = dated(*[(day, day) for day in range(200)])
    kept, _ = assign_splits(frame, SplitConfig(test=0.5), seed=0, clock=True)
    other, _ = assign_splits(frame, SplitConfig(test=0.5), seed=1, clock=True)
    assert not kept.equals(other)
    for split in ("train", "validation", "test"):
        days = kept.filter(pl.col("split") == split)["session_id"]
        assert days.min() < 40  # type: ignore[operator]
        assert days.max() > 160  # type: ignore[operator]


def test_split_by_time_by_hand() -> None:
    """The log starts at noon of its first day; periods start at midnight before."""
    config = SplitConfig(by="time", periods={"user": 2, "train": 1, "test": 1}, validation=0)
    spans = [(0, 0.1), (0, 1.49), (1.4, 1.6), (1.5, 2.4), (2.0, 2.5), (2.5, 3.4), (3.4, 3.6), (3.5, 3.5), (0.2, 9.0)]
    kept, dropped = assign_splits(dated(*spans), config, seed=0, clock=True)
    assert dict(kept.select("session_id", "split").iter_rows()) == {0: "user", 1: "user", 3: "train", 5: "test"}
    # 2 and 4 cross into the next period, 6 leaves the last one, 8 spans them all; 7 comes after.
    assert dropped == {"sessions across two periods": 4, "sessions after the last period": 1}


@given(
    spans=st.lists(st.tuples(st.floats(0, 9), st.floats(0, 2)), min_size=3, max_size=30),
    days=st.lists(st.floats(1, 5), min_size=2, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_split_by_time_does_not_leak(spans: list[tuple[float, float]], days: list[float]) -> None:
    names = ["train", "later", "last"][: len(days)]
    config = SplitConfig(by="time", periods=dict(zip(names, days, strict=True)))
    frame = dated((0, 0), *[(start, start + length) for start, length in spans])
    kept, dropped = assign_splits(frame, config, seed=0, clock=True)
    assert len(kept) + sum(dropped.values()) == len(frame)
    assert kept["session_id"].is_unique().all()
    periods = kept.with_columns(split=pl.col("split").replace("validation", "train"))
    reach = [periods.filter(pl.col("split") == name) for name in names]
    for earlier, later in pairwise([one for one in reach if len(one)]):
        assert earlier["end"].max() < later["start"].min()  # type: ignore[operator]
    trained = kept.filter(pl.col("split").is_in(["train", "validation"]))
    assert (trained["split"] == "validation").sum() == round(0.2 * len(trained))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"by": "time"}, "needs a period called train"),
        ({"by": "time", "periods": {"test": 3}}, "needs a period called train"),
        ({"by": "time", "periods": {"train": 0}}, "days above 0"),
        ({"by": "time", "periods": {"train": float("nan")}}, "days above 0"),
        ({"by": "time", "periods": {"train": 3, "validation": 3}}, "cannot be a period"),
        ({"by": "time", "periods": {"train": 3}, "test": 0.1}, "from a period"),
        ({"periods": {"train": 3}}, "periods are for a split by time"),
        ({"test": 1.0}, "test"),
        ({"validation": -0.1}, "validation"),
    ],
)
def test_splits_that_make_no_sense(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SplitConfig.parse(values, "config")


def test_splits_that_leave_nothing() -> None:
    with pytest.raises(InputError, match="No session is left to train on"):
        refuse_no_train(assign_splits(dated((0, 0)), SplitConfig(test=0.9), 0, True)[0])
    split = SplitConfig(by="time", periods={"user": 3, "train": 2})
    with pytest.raises(InputError, match="No session is left to train on"):
        refuse_no_train(assign_splits(dated((0, 0)), split, 0, True)[0])
    with pytest.raises(InputError, match="needs a column timestamp"):
        assign_splits(dated((0, 0)), SplitConfig(by="time", periods={"train": 2}), 0, False)


def test_periods_longer_than_any_calendar() -> None:
    config = SplitConfig(by="time", periods={"train": 1e12, "test": 1e12}, validation=0)
    assert assign_splits(dated((0, 0)), config, 0, True)[0]["split"].to_list() == ["train"]


def test_prepare_by_time(tmp_path: Path) -> None:
    """Days 0 to 5, a session a day, one over midnight; dropped sessions leave no transitions."""
    day = 86_400
    rows = [{"session_id": n, "timestamp": n * day, "item_id": n, "response": "click"} for n in range(6)]
    rows.append({"session_id": 1, "timestamp": 2 * day, "item_id": 7, "response": "skip"})
    split = {"by": "time", "periods": {"user": 2, "train": 2, "test": 1}, "validation": 0.5}
    dataset = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out", {"split": split})
    assert dataset.manifest["dropped"] == {"sessions across two periods": 1, "sessions after the last period": 1}
    by_split = dataset.manifest["counts"]["sessions_by_split"]
    assert by_split == {"test": 1, "train": 1, "user": 1, "validation": 1}
    assert dataset.manifest["counts"]["sessions"] == 4
    assert dataset.manifest["counts"]["impressions"] == 4
    assert sorted(dataset.sessions["session_id"].to_list()) == [0, 2, 3, 4]
    assert len(dataset.frame) == 4
    assert dataset.n_items == 7  # the catalogue is that of the whole log
    assert set(dataset.transitions("test").action) == {4}


def test_no_session_is_in_two_splits_and_popularity_is_of_train(tmp_path: Path) -> None:
    rows = many_rows()
    dataset = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out", {"split": {"test": 0.3}}, seed=5)
    split_of = dict(dataset.sessions.select("session_id", "split").iter_rows())
    assert len(split_of) == 60
    seen: dict[str, set[int]] = {split: set(dataset.transitions(split).session) for split in set(split_of.values())}
    assert set(seen) == {"train", "validation", "test"}
    assert sum(len(one) for one in seen.values()) == 60
    expected = {item: [0, 0] for item in dataset.items["item_id"]}
    for row in rows:
        if split_of[row["session_id"]] == "train":
            expected[row["item_id"]][0] += 1
            expected[row["item_id"]][1] += row["response"] != "skip"
    found = {item: [shown, liked] for item, _, shown, liked in dataset.items.iter_rows()}
    assert found == expected
    assert sum(shown for shown, _ in expected.values()) < len(rows)


# ---- the data set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set; tests that damage it copy it first."""
    base = tmp_path_factory.mktemp("data [set]")
    prepared(write(base / "log.csv", many_rows()), base / "out")
    return base / "out"


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for name, value in contents(folder).items():
        (to / name).write_bytes(value)
    return to


def test_load_gives_what_was_prepared(folder: Path) -> None:
    dataset = Dataset.load(folder)
    rows = many_rows()
    assert dataset.n_items == len({row["item_id"] for row in rows})
    assert dataset.items["item_id"].to_list() == sorted({row["item_id"] for row in rows})
    assert dataset.gamma == 0.9
    assert dataset.responses == RESPONSES
    train, validation = dataset.transitions("train"), dataset.transitions("validation")
    assert len(train) + len(validation) == len(rows)
    dtypes = [getattr(train, name).dtype for name in ("session", "step", "state", "action", "response", "reward")]
    assert dtypes == [np.uint32, np.uint32, np.int32, np.int32, np.uint8, np.float32]
    assert [train.next_state.dtype, train.discount.dtype] == [np.int32, np.float32]
    categories = {item: int(item[1:]) % 4 for item in dataset.items["item_id"]}
    assert dataset.categories.tolist() == list(categories.values())
    with pytest.raises(InputError, match="no transitions in split 'test'; its splits are train, validation"):
        dataset.transitions("test")


def test_items_without_category(tmp_path: Path) -> None:
    rows = [row | {"category": "x" if row["item_id"] == 11 else None} for row in slate_log()]
    assert prepared(write(tmp_path / "log.csv", rows), tmp_path / "out").categories.tolist() == [-1, 0, -1, -1]


def test_sequences_are_the_positive_items_of_each_session(folder: Path) -> None:
    dataset = Dataset.load(folder)
    for split in ("train", "validation"):
        wanted = set(dataset.sessions.filter(pl.col("split") == split)["session_id"])
        liked: dict[str, list[str]] = {}
        for row in many_rows():
            if row["session_id"] in wanted and row["response"] != "skip":
                liked.setdefault(row["session_id"], []).append(row["item_id"])
        sequences = dataset.sequences(split)
        assert [[dataset.vocabulary.id(item) for item in one] for one in sequences] == list(liked.values())
        assert len(sequences) == len(liked)


def test_sequences_without_positives(tmp_path: Path) -> None:
    rows = [row | {"response": "skip"} for row in slate_log()]
    sequences = prepared(write(tmp_path / "log.csv", rows), tmp_path / "out").sequences("train")
    assert len(sequences) == 0
    assert list(sequences) == []


def test_load_refuses_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder; expected a data set"):
        Dataset.load(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"manifest.json is missing"):
        Dataset.load(tmp_path)
    for text in ("{", "[]", '{"kind": "policy", "format": 2}', '{"kind": "dataset", "format": 1}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match=r"is not JSON|is not a data set of format 2; make it anew"):
            Dataset.load(tmp_path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise"])
def test_load_refuses_damaged_files(folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    broken = copy(folder, tmp_path / "broken")
    whole = (broken / name).read_bytes()
    if damage == "missing":
        (broken / name).unlink()
    else:
        (broken / name).write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "noise": b"\x00" * 500}[damage])
    if (name, damage) == ("skips.npy", "cut"):
        (broken / name).write_bytes(whole[:20])
    with pytest.raises(InputError, match=r"is damaged \(.*\); make it anew with `bcd4rec prepare`\.$"):
        Dataset.load(broken)


def test_load_refuses_files_of_another_data_set(folder: Path, tmp_path: Path) -> None:
    other = prepared(write(tmp_path / "log.csv", many_rows()[:90]), tmp_path / "other")
    assert other.n_items > 1
    for name in FILES[:4]:
        broken = copy(folder, tmp_path / f"broken {name}")
        (broken / name).write_bytes((tmp_path / "other" / name).read_bytes())
        with pytest.raises(InputError, match=r"is damaged \(\d+ .*, but the manifest says \d+\)"):
            Dataset.load(broken)


@pytest.mark.parametrize("key", ["counts", "responses"])
def test_load_refuses_half_a_manifest(folder: Path, tmp_path: Path, key: str) -> None:
    broken = copy(folder, tmp_path / "broken")
    manifest = json.loads((broken / "manifest.json").read_text())
    del manifest[key]
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="is damaged"):
        Dataset.load(broken)


# ---- vocabulary


def test_vocabulary_of_integers() -> None:
    vocabulary = Vocabulary(pl.Series([-5, 3, 17]))
    assert len(vocabulary) == 3
    assert [vocabulary.id(index) for index in range(3)] == [-5, 3, 17]
    assert [vocabulary.index(item) for item in (-5, 17, "17", "-5", 4, "x", "017", "--5", "²", True)] == (
        [0, 2, 2, 0, None, None, None, None, None, None]
    )
    assert vocabulary.encode([17, "99", "3"]) == ([2, 1], ["99"])


def test_vocabulary_of_strings() -> None:
    vocabulary = Vocabulary(pl.Series(["007", "17", "a"]))
    assert [vocabulary.index(item) for item in ("a", 17, "17", 7, "007", "7", False)] == [2, 1, 1, None, 0, None, None]
    other = Vocabulary(pl.Series(["a", "b", "007"]))
    assert vocabulary.positions_of(other).tolist() == [2, -1, 0]
    assert vocabulary.positions_of(Vocabulary(pl.Series([17, 18]))).tolist() == [1, -1]


# ---- responses


@pytest.mark.parametrize(
    ("rewards", "positive", "target", "words"),
    [
        ("skip=0", None, None, "at least two responses"),
        ("skip=0,click=x", None, None, "click is 'x', expected a number"),
        ("skip=0,click", None, None, "expected name=value pairs"),
        ("skip=0,skip=1", None, None, "'skip' is given twice"),
        ("skip=0,click=inf", None, None, "finite"),
        ("skip=0,click=nan", None, None, "finite"),
        ("skip=0,click=0", None, None, "no response is positive"),
        ("skip=1,click=2", None, None, "every response is positive"),
        ("skip=0,click=1", "buy", None, "'buy' has no reward"),
        ("skip=0,click=1", None, "buy", "'buy' has no reward"),
    ],
)
def test_rewards_that_make_no_sense(rewards: str, positive: str | None, target: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Responses.from_options(rewards, positive, target)


def test_rewards_and_their_defaults() -> None:
    responses = Responses.from_options("skip=0, click=1 ,buy=5")
    assert (responses.names, responses.positive, responses.target) == (
        ("skip", "click", "buy"),
        ("click", "buy"),
        "buy",
    )
    assert [responses.code(name) for name in responses.names] == [0, 1, 2]
    responses = Responses.from_options("skip=0,click=1", "click,click", "click")
    assert responses.target == "click"
    responses = Responses.from_options("skip=-1,click=0,buy=5", "click, buy", "click")
    assert (responses.positive, responses.target) == (("click", "buy"), "click")
