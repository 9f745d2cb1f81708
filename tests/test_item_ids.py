"""An item is its id as written: `7` and `"7"` are one, and what merely looks like it is another, wherever ids meet."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.features import ItemFeatures
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.serving.catalogue import Names
from serving_help import serving
from test_cli import fails, result, run, works

ALIKE = ("007", "7.0", " 7", "7 ", "+7", "7e0", "７")  # the last is a full-width digit
NUMBERS = list(range(7, 7 + len(ALIKE)))


def write_log(path: Path, items: list[Any], first: int = 0, sessions: int = 60) -> Path:
    """Sessions of two slates of three items, drawn at random with known probabilities; early items are liked more."""
    rng = np.random.default_rng(len(items) + first)
    rows: list[dict[str, Any]] = []
    for session in range(first, first + sessions):
        for step in range(2):
            for place, one in enumerate(rng.permutation(len(items))[:3].tolist()):
                liked = rng.random() < 0.8 - 0.7 * one / len(items)
                row = {"session_id": session, "step": step, "position": place, "item_id": items[one]}
                rows.append(row | {"response": "click" if liked else "skip", "propensity": 1 / (len(items) - place)})
    pl.DataFrame(rows).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets of the same shape, and a policy of each: of numbers, of their spelling, and of what looks alike."""
    folder = tmp_path_factory.mktemp("ids")
    spelt = [str(number) for number in NUMBERS]
    for name, items in {"numbers": NUMBERS, "spelt": spelt, "alike": list(ALIKE), "mixed": ["7", *ALIKE]}.items():
        log = write_log(folder / f"{name}.parquet", items)
        works("prepare", log, "--test", 0.3, "--split", "hash", "--out", folder / name)
        works("train", "ctr", folder / name, "--out", folder / f"{name}-policy")
    return folder


@pytest.mark.parametrize("item", [*ALIKE, 7.0, 7.5, True, "true", "0x7", "-7", None])
def test_looked_up(item: Any) -> None:
    for ids in (pl.Series([1, 7, 8]), pl.Series(["1", "7", "8"])):
        vocabulary = Vocabulary(ids)
        assert vocabulary.index(item) is None
        assert vocabulary.index(7) == vocabulary.index("7") == 1
    assert Vocabulary(pl.Series([str(item), "7"])).index(str(item)) == 0


@pytest.mark.parametrize("item", ALIKE)
def test_recommended_to(made: Path, item: str) -> None:
    """Blanks around an id are the list's on the command line, unless the id has them."""
    listed = item.strip() == "7"
    for policy in ("numbers-policy", "spelt-policy"):
        assert result("recommend", made / policy, "--session", item)["unknown"] == ([] if listed else [item])
    assert result("recommend", made / "alike-policy", "--session", "7")["unknown"] == ["7"]
    assert result("recommend", made / "mixed-policy", "--session", item)["unknown"] == []


def test_candidates_of_a_file(made: Path, tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("\n".join([*ALIKE, "8"]) + "\n", encoding="utf-8")
    told = result("recommend", made / "numbers-policy", "--candidates", tmp_path / "pool.txt", "--top", 9)
    assert {one["item"] for one in told["items"]} == {7, 8}
    assert set(told["unknown"]) == {one for one in ALIKE if one.strip() != "7"}


def test_served(made: Path, tmp_path: Path) -> None:
    """As texts, numbers and their look-alikes are items side by side."""
    for name, ids in {"numbers": NUMBERS, "mixed": ["7", *ALIKE]}.items():
        scratch = tmp_path / name
        scratch.mkdir()
        with serving(scratch, made / f"{name}-policy") as server:
            for item in ("7", 7, *ALIKE):
                known = str(item) == "7" or item in ids
                told = server.recommend(session=[item])
                assert told["unknown"] == ([] if known else [item]), item
                others = server.recommend(exclude=[item], k=9)["items"]
                assert {str(one["item"]) for one in others} == {str(one) for one in ids} - {str(item)}
            answer = server.post("/v1/recommend", {"session": [7.0]})
            assert answer.status_code == 422  # neither a number of JSON nor a text that an id can be
            assert "session" in answer.json()["error"]


@pytest.mark.parametrize("command", ["evaluate", "judge"])
def test_judged_on_another_data_set(made: Path, command: str) -> None:
    """A policy of look-alikes knows nothing of numbers; numbers and their spelling are the same items."""
    for one, other in (("alike", "numbers"), ("numbers", "alike"), ("alike", "spelt")):
        told = run(command, made / f"{one}-policy", "--log", made / other, "--json")
        assert told.returncode == 2, told.stdout
        assert "knows none of the log's 7 items" in told.stderr
    for one, other in (("numbers", "spelt"), ("spelt", "numbers")):
        assert "knows none" not in run(command, made / f"{one}-policy", "--log", made / other).stderr


@pytest.mark.parametrize("item", [*ALIKE, 7.0, 7.5, True, [7]])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_features_of_a_second_file(tmp_path: Path, item: Any, suffix: str) -> None:
    if suffix == "csv" and not isinstance(item, str):
        return
    file, rows = tmp_path / f"items.{suffix}", pl.DataFrame({"item_id": [item], "price": [1.5]})
    rows.write_csv(file) if suffix == "csv" else rows.write_parquet(file)
    log = write_log(tmp_path / "numbers.parquet", NUMBERS)
    told = fails("prepare", log, "--items", file, "--out", tmp_path / "data")
    assert f"row 1, column item_id: found {item!r}, expected an integer" in told
    if isinstance(item, str):
        found = ItemFeatures.read(file, "item_id", pl.String).catalogue(
            pl.DataFrame({"item_id": ["7"], "impressions": [1]})
        )
        assert found["item_id"].to_list() == ["7", item]  # one more item


def test_features_by_numbers_and_by_their_spelling(tmp_path: Path) -> None:
    pl.DataFrame({"item_id": ["7", "8"], "price": [1.5, 2.5]}).write_csv(tmp_path / "items.csv")
    pl.DataFrame({"item_id": [7, 8], "price": [1.5, 2.5]}).write_parquet(tmp_path / "items.parquet")
    for name in ("items.csv", "items.parquet"):
        assert ItemFeatures.read(tmp_path / name, "item_id", pl.Int64).table["item_id"].to_list() == [7, 8]
        assert ItemFeatures.read(tmp_path / name, "item_id", pl.String).table["item_id"].to_list() == ["7", "8"]


def test_names_for_people(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("item_id,name\n7,Rake\n007,Spade\n 7,Hose\n", encoding="utf-8")
    names = Names.read(tmp_path / "names.csv")
    assert [names.of(item)["name"] for item in (7, "7", "007", " 7", "7.0")] == ["Rake", "Rake", "Spade", "Hose", "7.0"]


def test_appended(made: Path, tmp_path: Path) -> None:
    """Other types are refused, and look-alikes of the same type are items of their own."""
    later = write_log(tmp_path / "later.parquet", list(ALIKE), first=100)
    assert "holds strings, but the data set" in fails("prepare", later, "--append", made / "numbers")
    numbers = write_log(tmp_path / "numbers.parquet", NUMBERS, first=100)
    assert "holds integers, but the data set" in fails("prepare", numbers, "--append", made / "alike")
    works(
        "prepare", write_log(tmp_path / "spelt.parquet", ["7"] * 3, 200, 9), "--split", "hash", "--out", tmp_path / "s"
    )
    works("prepare", later, "--append", tmp_path / "s")
    assert set(Dataset.load(tmp_path / "s").items["item_id"]) == {"7", *ALIKE}
