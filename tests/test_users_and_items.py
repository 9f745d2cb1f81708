"""Users across sessions, what was asked for, what is shown again, and features of items: each against plain loops."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.row_counts import shown_again
from bcd4rec.data.splits import SplitConfig, assign_splits
from bcd4rec.errors import InputError
from bcd4rec.workflows.judging import JudgedLog, guesses_better, judge
from test_cli import fails, result, works

REWARDS = {"skip": 0, "click": 1, "buy": 5}


def log(seed: int = 0, users: int = 9) -> list[dict[str, Any]]:
    """Sessions of users that overlap in time, some of nobody known, with organic rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(40):
        user = f"u{rng.integers(users)}" if rng.random() < 0.9 else None
        time = int(rng.integers(0, 500))
        for request in range(int(rng.integers(1, 4))):
            for place, item in enumerate(rng.permutation(12)[: rng.integers(1, 5)]):
                row = {"session_id": session, "user_id": user, "timestamp": time, "request_id": f"{session}-{request}"}
                row |= {"position": place, "item_id": int(item), "organic": bool(rng.random() < 0.1)}
                rows.append(row | {"response": str(rng.choice(list(REWARDS), p=[0.6, 0.3, 0.1]))})
            time += int(rng.integers(1, 60))
    return rows


def dataset(rows: list[dict[str, Any]], **config: Any) -> Dataset:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return Dataset.from_frame(frame, REWARDS, PrepareConfig.model_validate(config))


# ---- users


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.2, 0.5]), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_no_user_is_in_two_splits(seed: int, share: float, users: int) -> None:
    rng = np.random.default_rng(seed)
    owner = [None if rng.random() < 0.2 else f"u{rng.integers(users)}" for _ in range(60)]
    sessions = pl.DataFrame({"session_id": range(60), "user_id": owner}, schema_overrides={"user_id": pl.String})
    split = assign_splits(sessions, SplitConfig(test=share, validation=0.3), seed, True)[0]
    of_user: dict[str, set[str]] = {}
    for user, name in split.select("user_id", "split").iter_rows():
        if user is not None:
            of_user.setdefault(user, set()).add(name)
    assert all(len(names) == 1 for names in of_user.values())
    units = len(set(owner) - {None}) + owner.count(None)
    alone = split.with_columns(pl.coalesce("user_id", pl.col("session_id").cast(pl.String)).alias("unit"))
    assert alone.filter(pl.col("split") == "test")["unit"].n_unique() == round(share * units)


def test_splits_without_users_are_as_before() -> None:
    """The draw of numbers is the same as it was when there were no users."""
    sessions = pl.DataFrame({"session_id": range(50)})
    split = assign_splits(sessions, SplitConfig(test=0.2, validation=0.25), 3, True)[0]["split"].to_list()
    from bcd4rec.seeding import generator

    order = generator(3, "split", "test").permutation(50)
    train = [row for row in range(50) if order[row] >= 10]
    chosen = {train[place] for place in generator(3, "split", "validation").permutation(40)[:10]}
    expected = ["test" if order[row] < 10 else "validation" if row in chosen else "train" for row in range(50)]
    assert split == expected


def test_users_are_counted_and_kept() -> None:
    rows = log()
    found = dataset(rows)
    owner = {row["session_id"]: row["user_id"] for row in rows if row["user_id"] is not None}
    assert found.manifest["counts"]["users"] == len(set(owner.values()))
    assert found.manifest["counts"]["sessions_of_users"] == len(owner)
    assert dict(found.sessions.select("session_id", "user_id").iter_rows()) == {
        row["session_id"]: row["user_id"] for row in rows
    }
    others = dataset([{name: value for name, value in row.items() if name != "user_id"} for row in rows])
    assert "users" not in others.manifest["counts"]
    assert others.frame.drop("session").equals(found.frame.drop("session"))


def test_a_session_of_two_users_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s,u,n,i,r\n1,a,0,x,skip\n1,b,1,y,click\n")
    words = fails("check", tmp_path / "a.csv", "--map", "session=s,user=u,step=n,item=i,response=r")
    assert "column u (user_id): found session 1 with the users 'a' and 'b', expected one user per session" in words


# ---- earlier sessions


@pytest.mark.parametrize("most", [1, 3, 50])
def test_earlier_sessions_open_a_session(most: int) -> None:
    rows = log(1)
    found = dataset(rows, earlier=most)
    start: dict[int, int] = {}
    for row in rows:
        start[row["session_id"]] = min(start.get(row["session_id"], row["timestamp"]), row["timestamp"])
    ids = found.items["item_id"].to_list()
    opened = 0
    for number, (session, user, organic, count) in enumerate(
        found.sessions.select("session_id", "user_id", "organic", "rows").iter_rows()
    ):
        liked = [
            (row["timestamp"], place, row["item_id"], row["response"])
            for place, row in enumerate(rows)
            if user is not None
            and row["user_id"] == user
            and row["response"] != "skip"
            and row["timestamp"] < start[session]
        ]
        expected = [(item, response) for _, _, item, response in sorted(liked)[-most:]]
        own = [row for row in rows if row["session_id"] == session]
        events = found.frame.filter(pl.col("session") == number)
        assert events.height == count == len(own) + len(expected)
        assert organic == len(expected) + sum(row["organic"] for row in own)
        front = events.head(len(expected))
        names = [found.responses.names[code] for code in front["response"]]
        assert list(zip([ids[item] for item in front["action"]], names, strict=True)) == expected
        assert front["organic"].all()
        opened += len(expected)
    assert opened > 0
    states = found.states.positives[found.frame["next_state"].to_numpy()]
    assert states.shape[0] == len(rows) + opened
    assert found.manifest["config"]["earlier"] == most


def test_earlier_sessions_need_users_and_times() -> None:
    rows = log()
    with pytest.raises(InputError, match="needs a column user"):
        dataset([{name: value for name, value in row.items() if name != "user_id"} for row in rows], earlier=2)
    steps = [{name: value for name, value in row.items() if name != "timestamp"} | {"step": 0} for row in rows[:1]]
    with pytest.raises(InputError, match="needs a column timestamp"):
        dataset(steps, earlier=2)


def test_owners_and_what_they_liked_once() -> None:
    rows = log(3)
    found = dataset(rows, earlier=4, split=SplitConfig(validation=0.0))
    users = found.sessions["user_id"].to_list()
    same = found.owners[:, None] == found.owners
    for one, user in enumerate(users):
        for two, other in enumerate(users):
            assert same[one, two] == (one == two or (user is not None and user == other))
    assert sorted(set(found.owners.tolist())) == list(range(found.owners.max() + 1))
    liked: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for event in found.events("train").to_dicts():
        if event["response"]:  # skip is 0
            owner = int(found.owners[event["session"]])
            last[owner] = event["session"]
            if event["action"] not in liked.setdefault(owner, []):
                liked[owner].append(event["action"])
    expected = [liked[owner] for owner in sorted(liked, key=lambda one: last[one])]
    sequences = found.sequences("train")
    each = [sequences.items[low:high].tolist() for low, high in itertools.pairwise(sequences.offsets)]
    assert each == expected
    plain = dataset(rows, split=SplitConfig(validation=0.0)).sequences("train")
    assert len(plain) > len(sequences)  # without openings each session is one


def test_earlier_sessions_help_where_tastes_last() -> None:
    """People of fixed tastes: what they liked before tells more than the items' rates. If sessions of one user were
    learned from and counted at once, each like would be told by the openings of later sessions, and nothing learned."""
    rng = np.random.default_rng(0)
    taste = rng.normal(0, 2.0, (50, 6))
    rows = []
    for session in range(900):
        user = int(rng.integers(50))
        for place, item in enumerate(rng.permutation(48)[:6]):
            liked = rng.random() < 1 / (1 + np.exp(1.5 - taste[user, item % 6]))
            row = {"session_id": session, "user_id": f"u{user}", "timestamp": 100 * session, "item_id": int(item)}
            rows.append(
                row | {"request_id": str(session), "position": place, "response": ("skip", "click")[int(liked)]}
            )
    found = dataset(rows, earlier=30, split=SplitConfig(test=0.25, validation=0.1))
    judged = judge(["response"], {}, JudgedLog(found, "test"), found, 0)
    auc = {one["policy"]: one["auc"] for one in judged.to_json([])["policies"]}
    assert auc["response"] > auc["ctr"] + 0.15


def test_validation_chooses_who_guesses_the_next_item() -> None:
    """Chains that neighbours know, and draws of which only the popularity of items tells."""
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(300, 0.3))
    for chains in (True, False):
        rows = []
        for session in range(400):
            begin = int(rng.integers(100))
            items = [3 * begin + step for step in range(3)] if chains else rng.choice(300, 3, replace=False, p=popular)
            rows += [
                {"session_id": session, "timestamp": 10 * session + step, "item_id": int(item), "response": "click"}
                for step, item in enumerate(items)
            ]
        found = dataset(rows, split=SplitConfig(validation=0.3))
        assert guesses_better(("popular", "stan"), found, 0) == ("stan" if chains else "popular")


# ---- what was asked for, and what is shown again


def test_the_category_of_a_request_is_carried(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s,n,i,r,d\n1,0,a,skip,Rome\n1,0,b,click,Rome\n1,1,c,skip,\n2,0,a,click,Oslo\n")
    mapped = ("--map", "session=s,step=n,item=i,response=r,request_category=d")
    told = result("prepare", tmp_path / "a.csv", *mapped, "--out", tmp_path / "data")
    assert told["request_categories"] == 2
    frame = Dataset.load(tmp_path / "data").frame
    assert frame["request_category"].to_list() == ["Rome", "Rome", None, "Oslo"]


def test_liked_items_that_are_shown_again() -> None:
    rows = log(2)
    found = dataset(rows)
    expected = {"impressions_after_a_like": 0, "of_items_liked_before": 0, "liked_again": 0}
    positive = [found.responses.code(name) for name in found.responses.positive]
    for _, events in found.frame.group_by("session", maintain_order=True):
        steps = events.select("step", "action", "response", "organic").rows()
        for step, item, response, organic in steps:
            if organic:
                continue
            before = [
                other
                for earlier, other, answer, unasked in steps
                if answer in positive and (earlier < step or (unasked and earlier <= step))
            ]
            expected["impressions_after_a_like"] += bool(before)
            expected["of_items_liked_before"] += item in before
            expected["liked_again"] += item in before and response in positive
    assert found.manifest["availability"] == expected
    assert 0 < expected["liked_again"] < expected["of_items_liked_before"] < expected["impressions_after_a_like"]
    frame = found.frame.rename({"action": "item"})
    assert shown_again(frame, found.responses) == expected


# ---- features

MAPPED = "session=s,step=n,item=sku,response=r"


def features(path: Path, text: str, *options: object) -> tuple[pl.DataFrame, dict[str, Any]]:
    (path / "log.csv").write_text("s,n,sku,r\n1,0,a,skip\n1,0,b,click\n2,0,c,click\n")
    name = "items.jsonl" if text.startswith("{") else "items.csv"
    (path / name).write_text(text)
    works("prepare", path / "log.csv", "--map", MAPPED, "--items", path / name, "--out", path / "data", *options)
    found = Dataset.load(path / "data")
    return found.items, found.manifest["features"]


def test_features_of_items(tmp_path: Path) -> None:
    text = "sku,price,brand,category,size\nc,1.5,x,tools,\na,2,y,food,4\nz,9,x,food,5\n"
    items, told = features(tmp_path, text)
    assert items.drop("impressions", "positives").rows() == [
        ("a", "food", 2.0, "y", 4.0),
        ("b", None, None, None, None),
        ("c", "tools", 1.5, "x", None),
        ("z", "food", 9.0, "x", 5.0),
    ]
    kinds = {"price": "number", "brand": "category", "category": "category", "size": "number"}
    assert told == {"columns": kinds, "items": 2, "items_without": 1, "items_new": 1, "left_out": 0}


def test_items_that_the_log_never_shows(tmp_path: Path) -> None:
    text = "sku,price,category\nz,9,food\nb,1,food\n_,2,toys\n"
    items, told = features(tmp_path, text)
    assert items["item_id"].to_list() == ["a", "b", "c", "_", "z"]  # those of the log keep their numbers
    assert items["impressions"].to_list()[3:] == [0, 0]
    assert items["category"].to_list() == [None, "food", None, "toys", "food"]
    assert (told["items_new"], told["left_out"]) == (2, 0)
    shown = works(
        "prepare", tmp_path / "log.csv", "--map", MAPPED, "--items", tmp_path / "items.csv", "--out", tmp_path / "d"
    )
    assert "2 others, which the log never shows, can be recommended, too" in " ".join(shown.stdout.split())
    items, told = features(tmp_path, text, "--no-new-items", "--force")
    assert items["item_id"].to_list() == ["a", "b", "c"]
    assert (told["items_new"], told["left_out"]) == (0, 2)


def test_titles_are_texts_and_kinds_can_be_said(tmp_path: Path) -> None:
    text = "sku,title,size,code\na,red shoe,36,x-1\nb,blue warm coat,38,x-2\nc,green hat,36,x-3\n"
    _, told = features(tmp_path, text)
    assert told["columns"] == {"title": "text", "size": "number", "code": "text"}
    items, told = features(tmp_path, text, "--force", "--item-kinds", "size=category,code=ignored")
    assert told["columns"] == {"title": "text", "size": "category", "code": "ignored"}
    assert items.columns[4:] == ["title", "size"]
    assert items["size"].to_list() == ["36", "38", "36"]
    for wish, words in (
        ("colour=text", "has no feature colour; its features are title, size, code"),
        ("size=big", "size=big, expected one of number, category, tags, text, ignored"),
        ("title=number", "column title of"),
    ):
        args = ("prepare", tmp_path / "log.csv", "--map", MAPPED, "--out", tmp_path / "no")
        assert words in fails(*args, "--items", tmp_path / "items.csv", "--item-kinds", wish)
        assert "give --items, too" in fails(*args, "--item-kinds", wish)


def test_vectors_and_truth_values(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": [1, 2.5], "new": True}, {"id": "b", "text": None, "new": False}]
    items, told = features(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "--items-id", "id")
    assert items["text"].to_list() == [[1.0, 2.5], None, None]
    assert items["new"].to_list() == [True, False, None]
    assert told["columns"] == {"text": "vector of 2", "new": "number"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,price\na,1\n", "has no column sku with the ids of items; the columns found are id, price"),
        ("sku,price\na,1\na,2\n", "row 1, column sku: found 'a', expected each item once"),
        ("sku,price\n,1\n", "row 1, column sku: found nothing, expected an id"),
        ("sku,price\na,1\nb,inf\n", "row 2, column price: found 'inf', expected a finite number"),
        ("sku,positives\na,1\n", "column positives has a name that the data set uses itself"),
        ('{"sku": "a", "v": [1, 2]}\n{"sku": "b", "v": [1]}\n{"sku": "c", "v": [1, 3]}\n', "row 2, column v: found"),
        ('{"sku": "a", "v": [true]}\n', "column v holds lists of Boolean, expected numbers or texts"),
        ('{"sku": "a", "v": [[1]]}\n', "column v holds lists of List"),
    ],
)
def test_features_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "log.csv").write_text("s,n,sku,r\n1,0,a,skip\n1,0,b,click\n")
    name = "items.jsonl" if text.startswith("{") else "items.csv"
    (tmp_path / name).write_text(text)
    args = (
        "prepare",
        tmp_path / "log.csv",
        "--map",
        "session=s,step=n,item=sku,response=r",
        "--out",
        tmp_path / "data",
    )
    assert words in fails(*args, "--items", tmp_path / name)
    assert not (tmp_path / "data").exists()
