"""The shop's raw files: whole, consistent among themselves, and the same impressions as the canonical log."""

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from bcd4rec.cli import build
from bcd4rec.data import checking
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.errors import InputError
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import preset
from bcd4rec.sim.shop_raw import FILES
from bcd4rec.sim.traffic import TrafficConfig, traffic
from bcd4rec.workflows.comparison import contestant

DAYS, SEED = 5, 3
HEADERS = {
    "train-queries.csv": "queryId;sessionId;userId;timeframe;duration;eventdate;searchstring.tokens;"
    "categoryId;items;is.test",
    "train-clicks.csv": "queryId;timeframe;itemId",
    "train-item-views.csv": "sessionId;userId;itemId;timeframe;eventdate",
    "train-purchases.csv": "sessionId;userId;timeframe;eventdate;ordernumber;itemId",
    "products.csv": "itemId;pricelog2;product.name.tokens",
    "product-categories.csv": "itemId;categoryId",
}
Raw = dict[str, pl.DataFrame]


def simulate(*options: object) -> str:
    found = CliRunner().invoke(build("simulate"), ["simulate", "--env", "shop", *map(str, options)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("shop")
    options = ["--days", DAYS, "--seed", SEED, "--raw", base / "raw", "--logs", base / "log.parquet", "--json"]
    (base / "said.json").write_text(simulate(*options))
    return base


@pytest.fixture(scope="module")
def raw(folder: Path) -> Raw:
    found = {
        name: pl.read_csv(folder / "raw" / name, separator=";", null_values="NA", infer_schema_length=None)
        for name in FILES
    }
    listed = pl.col("items").cast(pl.String).str.split(",").cast(pl.List(pl.Int64))
    return found | {"train-queries.csv": found["train-queries.csv"].with_columns(listed)}


@pytest.fixture(scope="module")
def impressions(raw: Raw) -> pl.DataFrame:
    """What a reader of the files makes of them: one row per shown item of a query whose outcome is known."""
    queries = raw["train-queries.csv"].filter(~pl.col("is.test"))
    shown = queries.explode("items").rename({"items": "itemId"})
    clicks = raw["train-clicks.csv"].select("queryId", "itemId", clicked=True)
    bought = raw["train-purchases.csv"].select("sessionId", "itemId", bought=True)
    joined = shown.join(clicks, on=["queryId", "itemId"], how="left").join(
        bought, on=["sessionId", "itemId"], how="left"
    )
    response = pl.when("bought").then(pl.lit("buy")).when("clicked").then(pl.lit("click")).otherwise(pl.lit("skip"))
    return joined.with_columns(response=response)


def test_the_six_files_have_their_headers(folder: Path) -> None:
    for name, header in HEADERS.items():
        assert (folder / "raw" / name).read_text().split("\n", 1)[0] == header
    assert set(FILES) == set(HEADERS)
    assert {one.name for one in (folder / "raw").iterdir()} == {*FILES, "manifest.json", "origin.json"}


@pytest.fixture(scope="module")
def known(folder: Path, raw: Raw) -> pl.DataFrame:
    """The canonical log without what the files withhold."""
    tests = raw["train-queries.csv"].filter("is.test")
    assert 0 < len(tests) < 60
    withheld = tests.explode("items").select(session_id="sessionId", item_id="items")
    return pl.read_parquet(folder / "log.parquet").join(
        withheld, on=["session_id", "item_id"], how="anti", maintain_order="left"
    )


def test_reading_the_files_gives_the_canonical_log(
    folder: Path, raw: Raw, known: pl.DataFrame, impressions: pl.DataFrame
) -> None:
    log = pl.read_parquet(folder / "log.parquet")
    shown = known.filter(~pl.col("organic")).select("session_id", "item_id", "response")
    found = impressions.select(session_id="sessionId", item_id="itemId", response="response")
    order = ["session_id", "item_id"]
    assert found.sort(order).equals(shown.sort(order))
    when = pl.col("eventdate").str.to_datetime("%Y-%m-%d") + pl.duration(milliseconds="timeframe")
    times = impressions.select(session_id="sessionId", item_id="itemId", timestamp=when.cast(pl.Datetime("ms")))
    both = times.join(log, on=order, suffix="_log")
    assert len(both) == len(times)
    assert (both["timestamp"] == both["timestamp_log"]).all()
    first = raw["train-item-views.csv"].group_by("sessionId").first()
    opened = first.select(session_id="sessionId", item_id="itemId", timestamp=when.cast(pl.Datetime("ms")))
    assert opened.sort(order).equals(log.filter("organic").select(opened.columns).sort(order))


def test_prepared_from_the_files_it_is_the_data_set_of_the_canonical_log(
    folder: Path, known: pl.DataFrame, tmp_path: Path
) -> None:
    some = known.filter((~pl.col("organic")).any().over("session_id"))  # the only slate of a few is withheld
    alone = known["session_id"].n_unique() - some["session_id"].n_unique()
    assert 0 < alone < 20
    some.write_parquet(tmp_path / "log.parquet")
    manifests = []
    for name, logs in {"files": [folder / "raw", "--format", "diginetica", "--set", "cut=none"], "log": []}.items():
        options = ["--out", tmp_path / name, "--split", "session", "--json"]
        found = CliRunner().invoke(
            build("prepare"), ["prepare", *map(str, logs or [tmp_path / "log.parquet"]), *map(str, options)]
        )
        assert found.exit_code == 0, found.stderr
        manifests.append(json.loads((tmp_path / name / "manifest.json").read_text()))
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert manifests[0]["counts"]["organic"] == some["session_id"].n_unique()
    assert manifests[0]["config"] == manifests[1]["config"]
    for name in ("positives.npy", "skips.npy", "sessions.parquet", "items.parquet"):
        one, other = ((tmp_path / kind / name).read_bytes() for kind in ("files", "log"))
        assert one == other, name
    files, log = (pl.read_parquet(tmp_path / kind / "transitions.parquet") for kind in ("files", "log"))
    assert files.drop("propensity").equals(log.drop("propensity"))
    reading = manifests[0]["reading"]
    views = sum(count for why, count in reading["dropped"].items() if why.startswith("views"))
    assert reading["kept"]["organic"] + views == reading["read"]["views"]
    assert reading["dropped"]["views in sessions without an impression"] >= alone


def test_every_click_is_of_a_query_that_showed_the_item_and_later(raw: Raw) -> None:
    clicks = raw["train-clicks.csv"].join(raw["train-queries.csv"], on="queryId", how="left", suffix="_query")
    assert clicks["items"].null_count() == 0
    assert clicks.select(pl.col("items").list.contains(pl.col("itemId")).all()).item()
    assert (clicks["timeframe"] > clicks["timeframe_query"]).all()
    assert not clicks["is.test"].any()


def test_every_click_is_followed_by_a_view_and_every_other_view_is_of_the_opening(raw: Raw) -> None:
    clicks = raw["train-clicks.csv"].join(raw["train-queries.csv"].select("queryId", "sessionId"), on="queryId")
    views = raw["train-item-views.csv"]
    pairs = views.join(clicks, on=["sessionId", "itemId"], how="full", suffix="_click")
    assert pairs["timeframe"].null_count() == 0
    assert (pairs["timeframe"] > pairs["timeframe_click"]).all()
    first = pl.col("itemId").first().over("sessionId")
    others = views.with_columns(opening=first).join(clicks, on=["sessionId", "itemId"], how="anti")
    assert (others["itemId"] == others["opening"]).all()
    assert others["sessionId"].n_unique() == views["sessionId"].n_unique()
    asked = raw["train-queries.csv"].group_by("sessionId").agg(asked=pl.col("timeframe").min())
    opened = views.group_by("sessionId").agg(pl.col("timeframe").min()).join(asked, on="sessionId")
    assert len(opened) == len(asked)
    assert (opened["timeframe"] < opened["asked"]).all()
    repeated = 1 - len(views.unique(["sessionId", "itemId"])) / len(views)
    assert repeated == pytest.approx(0.159, abs=0.03)


def test_every_purchase_was_viewed_before_and_is_in_its_sessions_one_order(raw: Raw) -> None:
    bought = raw["train-purchases.csv"]
    views = raw["train-item-views.csv"].group_by("sessionId", "itemId").agg(pl.col("timeframe").min())
    seen = bought.join(views, on=["sessionId", "itemId"], how="left", suffix="_view")
    assert (seen["timeframe"] > seen["timeframe_view"]).all()
    orders = bought.group_by("sessionId").agg(pl.col("ordernumber", "timeframe").n_unique())
    assert orders["ordernumber"].max() == orders["timeframe"].max() == 1
    assert bought["ordernumber"].n_unique() == len(orders)


def test_queries_are_numbered_and_timed_in_order_and_show_nothing_twice(raw: Raw) -> None:
    queries = raw["train-queries.csv"]
    assert queries["queryId"].to_list() == list(range(1, len(queries) + 1))
    assert queries["sessionId"].is_sorted()
    assert queries.select((pl.col("timeframe").diff().over("sessionId") > 0).all()).item()
    assert queries.group_by("sessionId").agg(pl.col("userId", "eventdate").n_unique().max()).max().row(0)[1:] == (1, 1)
    shown = queries.explode("items")
    assert len(shown) == len(shown.unique(["sessionId", "items"]))
    assert set(queries["items"].list.len()) == {5}


def test_items_are_known_and_have_one_category(raw: Raw) -> None:
    products, categories = raw["products.csv"], raw["product-categories.csv"]
    assert products["itemId"].to_list() == categories["itemId"].to_list() == list(range(6666))
    np.testing.assert_array_equal(categories["categoryId"].to_numpy(), Shop().categories)
    searched = raw["train-queries.csv"].filter(pl.col("categoryId") == 0)
    assert searched["searchstring.tokens"].null_count() == 0
    browsed = raw["train-queries.csv"].filter(pl.col("categoryId") > 0)
    assert browsed["searchstring.tokens"].null_count() == len(browsed) > 0


def test_days_have_the_fitted_number_of_sessions_and_their_calendar(raw: Raw) -> None:
    days = raw["train-queries.csv"].group_by("eventdate").agg(pl.col("sessionId").n_unique()).sort("eventdate")
    first = date(2016, 1, 1)
    assert days["eventdate"].to_list() == [str(first + timedelta(days=number)) for number in range(DAYS)]
    for day, sessions in days.rows():
        expected = 4843 / 30 * TrafficConfig().week[date.fromisoformat(day).weekday()]
        assert abs(sessions - expected) < 5 * np.sqrt(expected)
    users = raw["train-queries.csv"].unique("sessionId")["userId"]
    assert users.null_count() / len(users) == pytest.approx(0.62, abs=0.06)


def test_the_log_is_canonical_and_the_numbers_are_told(folder: Path) -> None:
    found = checking.check(Log(folder / "log.parquet"), DIGINETICA)
    assert not found.problems
    said = json.loads((folder / "said.json").read_text())
    manifest = json.loads((folder / "raw" / "manifest.json").read_text())
    log = pl.read_parquet(folder / "log.parquet")
    recommended = log.filter(~pl.col("organic"))
    assert said["impressions"] == manifest["impressions"] == found.summary["impressions"] == len(recommended)
    assert said["sessions"] == said["organic"] == found.summary["organic"] == log["session_id"].n_unique()
    assert len(recommended) == len(log) - said["sessions"] == log["propensity"].count()
    assert said["buy_percent"] == pytest.approx(100 * (recommended["response"] == "buy").mean())
    assert said["buy_percent"] == pytest.approx(4.1, abs=1.2)
    for name, rows in manifest["rows"].items():
        assert rows == (folder / "raw" / name).read_text().count("\n") - 1


def test_same_seed_same_bytes_and_days_do_not_depend_on_how_many_follow(folder: Path, tmp_path: Path) -> None:
    simulate("--days", 2, "--seed", SEED, "--raw", tmp_path / "again", "--logs", tmp_path / "log.csv")
    for name in HEADERS:
        whole, part = ((path / name).read_bytes() for path in (folder / "raw", tmp_path / "again"))
        assert whole.startswith(part)
        assert part.count(b"\n") > 100
    simulate("--days", 2, "--seed", SEED + 1, "--raw", tmp_path / "other")
    assert (tmp_path / "again" / "train-clicks.csv").read_bytes() != (
        tmp_path / "other" / "train-clicks.csv"
    ).read_bytes()
    text = checking.check(Log(tmp_path / "log.csv"), DIGINETICA)
    assert not text.problems


def test_outputs_are_not_overwritten(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        simulate("--days", 1, "--raw", folder / "raw")
    with pytest.raises(InputError, match="exists already"):
        simulate("--days", 1, "--logs", folder / "log.parquet")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letters.txt").write_text("dear")
    with pytest.raises(InputError, match="did not write"):
        simulate("--days", 1, "--raw", mine, "--force")
    with pytest.raises(InputError, match="expected --env shop"):
        simulate("--env", "recsim", "--raw", tmp_path / "new")
    with pytest.raises(InputError, match="--scale"):
        simulate("--days", 1, "--scale", 0, "--raw", tmp_path / "new")
    with pytest.raises(InputError, match="No session came"):
        simulate("--days", 1, "--scale", 0.0001, "--raw", tmp_path / "new", "--logs", tmp_path / "new.parquet")
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


def test_logs_of_users_without_a_clock_open_with_a_click(tmp_path: Path) -> None:
    said = json.loads(simulate("--users", 40, "--seed", 1, "--logs", tmp_path / "log.parquet", "--json"))
    log = pl.read_parquet(tmp_path / "log.parquet")
    assert not checking.check(Log(tmp_path / "log.parquet"), DIGINETICA).problems
    first = log.filter(pl.col("step") == 0)
    assert (len(first), set(first["response"]), first["propensity"].null_count()) == (40, {"click"}, 40)
    assert said["policy"] == "behaviour"
    assert said["steps"] == len(log) - 40  # one item at a time, and the opening is no recommendation


def test_batches_of_users_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcd4rec.sim.traffic.BATCH", 50)
    env = Shop(preset("pages"))
    days = list(traffic(env, contestant("behaviour", env), TrafficConfig(days=2), 0))
    sessions = [session for day in days for session in day.log["session_id"].unique(maintain_order=True)]
    assert sessions == list(range(1, sum(day.sessions for day in days) + 1))
    opened = days[0].log.filter(pl.col("propensity").is_null())["item_id"]
    assert opened[:50].to_list() != opened[50:100].to_list()
