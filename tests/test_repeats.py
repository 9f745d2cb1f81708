"""Which items a log shows again: against a plain loop, and for each way to keep items out."""

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.repeats import MetAgain, Repeats, count_repeats
from bcd4rec.data.splits import SplitConfig

ITEMS, SESSIONS, STEPS, SLATE = 17, 60, 6, 3
Row = tuple[int, int, int, int, str, bool]


def log(unavailable: str, steps: int = STEPS) -> list[Row]:
    """Random slates; the session's first row is organic. Items 0 to 4 are liked whenever they are shown."""
    rng, rows = np.random.default_rng(5), []
    for session in range(SESSIONS):
        opening = int(rng.integers(ITEMS))
        gone = {opening} if unavailable in ("liked", "shown") else set()
        rows.append((session, 0, 0, opening, "click", True))
        for step in range(1, steps + 1):
            left = [item for item in range(ITEMS) if item not in gone]
            if len(left) < SLATE:
                break
            for place, item in enumerate(rng.permutation(left)[:SLATE].tolist()):
                liked = item < 5
                rows.append((session, step, place, item, "click" if liked else "skip", False))
                if unavailable in ("shown", "recommended") or (unavailable == "liked" and liked):
                    gone.add(item)
    return rows


def dataset(rows: list[Row]) -> Dataset:
    columns = ["session_id", "step", "position", "item_id", "response", "organic"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return Dataset.from_frame(frame, {"skip": 0, "click": 1}, PrepareConfig(split=SplitConfig(validation=0.0)))


def plain(rows: list[Row]) -> dict[str, Repeats]:
    """Row by row, with a set for each class."""
    shown = [row for row in rows if not row[5]]
    share = {item: sum(row[3] == item for row in shown) / len(shown) for item in range(ITEMS)}
    found, expected = (
        dict.fromkeys(("skipped", "liked", "organic"), 0),
        dict.fromkeys(("skipped", "liked", "organic"), 0.0),
    )
    for session in range(SESSIONS):
        met: dict[int, str] = {}
        mine = [row for row in rows if row[0] == session]
        for step in sorted({row[1] for row in mine}):
            slate = [row for row in mine if row[1] == step]
            for row in slate:
                if not row[5]:
                    if row[3] in met:
                        found[met[row[3]]] += 1
                    for item, kind in met.items():
                        expected[kind] += share[item]
            for row in slate:
                liked = row[4] == "click"
                if row[5]:
                    met.setdefault(row[3], "organic")
                elif liked:
                    met[row[3]] = "liked"
                elif met.get(row[3]) != "liked":
                    met[row[3]] = "skipped"
    return {kind: Repeats(found[kind], expected[kind]) for kind in found}


@pytest.mark.parametrize("unavailable", ["liked", "shown", "recommended", "nothing"])
def test_what_comes_back(unavailable: str) -> None:
    rows = log(unavailable)
    found = count_repeats(dataset(rows))
    for kind, expected in plain(rows).items():
        assert getattr(found, kind).found == expected.found, kind
        assert getattr(found, kind).expected == pytest.approx(expected.expected), kind
    assert found.unavailable()[0] == unavailable


def test_sessions_of_one_slate_cannot_tell() -> None:
    rows = [row for row in log("nothing", steps=1) if not row[5]]
    chosen, why = count_repeats(dataset(rows)).unavailable()
    assert chosen == "liked"
    assert "too short" in why


def test_liked_items_that_come_back_alone() -> None:
    again = MetAgain(Repeats(0, 50.0), Repeats(40, 20.0), Repeats(0, 0.0))
    assert again.unavailable()[0] == "nothing"
