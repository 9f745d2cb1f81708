"""`bcd4rec canary --log`: the log of an A/B test, decided by the canary's rule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.evaluation.canary import Canary, CanaryConfig
from test_cli import fails, run

START = 1_700_000_000


def log(path: Path, rates: dict[str, float], sessions: int, seed: int = 0) -> pl.DataFrame:
    """Sessions of three slates of two items, one minute apart, in arms by chance; rows in the order of time."""
    rng, rows = np.random.default_rng(seed), []
    names = list(rates)
    for session in range(sessions):
        arm = names[int(rng.integers(len(names)))]
        for step in range(3):
            for place in range(2):
                click = place == 0 and rng.random() < rates[arm]
                when = START + 1000 * session + 60 * step
                rows.append(
                    (f"s{session}", when, f"r{session}-{step}", place, 7 + place, "click" if click else "skip", arm)
                )
    columns = ["session_id", "timestamp", "request_id", "position", "item_id", "response", "arm"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    (frame.write_csv if path.suffix == ".csv" else frame.write_parquet)(path)
    return frame


def told(*args: object) -> tuple[int, dict[str, Any]]:
    done = run("canary", *args, "--json")
    assert done.stdout.count("\n") == 1, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return done.returncode, found


@pytest.mark.parametrize(
    ("old", "new", "decision", "code"),
    [(0.2, 0.8, "promote", 0), (0.8, 0.2, "roll back", 4), (0.5, 0.5, None, 3)],
)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_decisions_and_exit_codes(
    tmp_path: Path, old: float, new: float, decision: Any, code: int, suffix: str
) -> None:
    path = tmp_path / f"log.{suffix}"
    log(path, {"old": old, "new": new}, 60)
    found = told("--log", path, "--share", "0.5")
    assert (found[0], found[1]["decision"]) == (code, decision)
    spoken = run("canary", "--log", path, "--share", "0.5")
    assert spoken.returncode == code
    assert found[1]["sentence"] in " ".join(spoken.stdout.split())


def test_sessions_are_those_of_plain_loops(tmp_path: Path) -> None:
    """Only two of three slates are within two minutes less a second; a third arm plays no part."""
    frame = log(tmp_path / "log.parquet", {"x": 0.4, "y": 0.6, "z": 0.9}, 50)
    options = ("--old", "x", "--new", "y", "--share", "0.4", "--session-minutes", "1.9", "--most", "20")
    _, found = told("--log", tmp_path / "log.parquet", *options)
    canary = Canary(CanaryConfig(most=20))
    for (_,), rows in frame.group_by("session_id", maintain_order=True):
        arm, first = rows["arm"][0], rows["timestamp"].min()
        if arm == "z":
            continue
        kept = rows.filter(pl.col("timestamp") <= first + 114)
        assert len(kept) == 4
        clicked = [(slate["response"] == "click").any() for _, slate in kept.group_by("request_id")]
        canary.add(arm == "y", sum(clicked) / 2, 0.4)
    assert found["decision"] == canary.decision == "stop"
    assert (found["low"], found["high"]) == canary.interval
    assert found["means"] == pytest.approx(dict(zip(("old", "new"), canary.means, strict=True)))
    assert found["sessions"]["left_out"] == frame.filter(pl.col("arm") == "z")["session_id"].n_unique()


def test_the_order_of_rows_does_not_matter_and_the_share_is_the_logs(tmp_path: Path) -> None:
    frame = log(tmp_path / "log.parquet", {"a": 0.4, "b": 0.6}, 40)
    code, found = told("--log", tmp_path / "log.parquet")
    frame.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "mixed.parquet")
    assert told("--log", tmp_path / "mixed.parquet") == (code, found | {"log": str(tmp_path / "mixed.parquet")})
    assert found["share"] == pytest.approx((frame.unique("session_id")["arm"] == "b").mean())
    assert found["share_from"] == "log"


def test_policies_in_place_of_arms(tmp_path: Path) -> None:
    log(tmp_path / "log.parquet", {"v1": 0.1, "v2": 0.9}, 60).rename({"arm": "policy"}).write_parquet(
        tmp_path / "p.parquet"
    )
    assert told("--log", tmp_path / "p.parquet", "--old", "v1", "--new", "v2")[0] == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "holds 'x', 'y'; say which arm is which with --old and --new"),
        (["--old", "x", "--new", "x"], "expected two arms"),
        (["--old", "x", "--new", "w"], "no session begins in the arm 'w'"),
        (["--arm-column", "group"], "column group is missing"),
        (["--share", "1"], "--share: found 1"),
        (["--session-minutes", "0"], "--session-minutes: found 0"),
        (["--old", "x", "--new", "y", "--margin", "2"], "--margin: found 2"),
        (["--old", "x", "--new", "y", "--error", "0"], "--error: found 0"),
        (["--old", "x", "--new", "y", "--rewards", "skip=0,buy=1"], "found 'click', expected one of skip, buy"),
    ],
)
def test_bad_input(tmp_path: Path, options: list[str], says: str) -> None:
    log(tmp_path / "log.parquet", {"x": 0.4, "y": 0.6}, 20)
    assert says in fails("canary", "--log", tmp_path / "log.parquet", *options)


def test_no_log(tmp_path: Path) -> None:
    assert "does not exist" in fails("canary", "--log", tmp_path / "none.parquet")
