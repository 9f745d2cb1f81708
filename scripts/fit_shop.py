"""Fit the numbers that the synthetic shop needs to a folder of real logs in Diginetica's formats.

    python scripts/fit_shop.py DATA [RAW]

DATA holds `diginetica/train-purchases.csv`, `diginetica/product-categories.csv`, a sample (or all) of the item views as
`diginetica/sample_train-item-views.csv` and `diginetica_sequences/train.parquet` with a list of items per session.
RAW is what `bcd4rec simulate --env shop --raw RAW` wrote; the same numbers of it stand beside those of DATA.
A table goes to stderr and one JSON object to stdout; the numbers are the defaults of `bcd4rec.sim.shop_config`,
`shop_raw` and `traffic`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import norm

Doubles = NDArray[np.float64]
SHARES = np.array([0.001, 0.005, 0.02, 0.05, 0.15, 0.4])  # the head of a ranking, as shares of all that is ranked
Frames = dict[str, pl.DataFrame]


def top_shares(counts: Doubles, heads: Doubles = SHARES) -> Doubles:
    """What share of everything the largest entries have, for several sizes of the head."""
    ranked = np.sort(counts)[::-1]
    sizes = np.maximum(np.round(heads * len(ranked)).astype(int), 1)
    shares: Doubles = np.cumsum(ranked)[sizes - 1] / ranked.sum()
    return shares


def lognormal_sigma(counts: Doubles) -> tuple[float, float]:
    """σ of the log-normal law whose head has the shares of `counts`, and the largest error of a share.

    Of a log-normal quantity the largest share p of the entries holds Φ(σ + Φ⁻¹(p)) of the whole.
    """
    heads = np.maximum(np.round(SHARES * len(counts)), 1) / len(counts)
    real = top_shares(counts)

    def error(sigma: float) -> Doubles:
        return np.asarray(norm.cdf(sigma + norm.ppf(heads)) - real)

    found = minimize_scalar(lambda sigma: float((error(sigma) ** 2).sum()), bounds=(0.01, 4), method="bounded")
    return float(found.x), float(np.abs(error(found.x)).max())


def read(folder: Path) -> Frames:
    """Real data: a sample of the views with raw ids, and all of them as lists."""
    raw = folder / "diginetica"
    frames = _read(raw, raw / "sample_train-item-views.csv")
    return frames | {
        "sequences": pl.read_parquet(folder / "diginetica_sequences" / "train.parquet").select(items=pl.first())
    }


def read_raw(folder: Path) -> Frames:
    """A raw folder with all views; lists are sessions of two views and more, as in the prepared real ones."""
    frames = _read(folder, folder / "train-item-views.csv")
    lists = frames["views"].group_by("session", maintain_order=True).agg(items="item")
    return frames | {"sequences": lists.select("items").filter(pl.col("items").list.len() > 1)}


def _read(raw: Path, views_file: Path) -> Frames:
    views = pl.read_csv(views_file, separator=";", null_values="NA")
    views.columns = ["session", "user", "item", "timeframe", "day"]
    purchases = pl.read_csv(raw / "train-purchases.csv", separator=";", null_values="NA", infer_schema_length=None)
    purchases.columns = ["session", "user", "timeframe", "day", "order", "item"]
    categories = pl.read_csv(raw / "product-categories.csv", separator=";")
    categories.columns = ["item", "category"]
    return {
        "views": views.join(categories, on="item", how="left").sort("session", "timeframe"),
        "purchases": purchases.join(categories, on="item", how="left"),
    }


def counts(frame: pl.DataFrame, *by: str) -> Doubles:
    return frame.group_by(by).len()["len"].to_numpy().astype(np.float64)


def popularity(data: Frames) -> dict[str, Any]:
    """How unequal items and categories are."""
    viewed = data["sequences"].select(item=pl.col("items").explode())
    bought = data["purchases"]
    active = bought.unique("item")  # a catalogue of the scale that the shop has: what is sold at all
    item_sigma, item_error = lognormal_sigma(counts(viewed, "item"))
    size_sigma, size_error = lognormal_sigma(counts(active, "category"))
    weight = bought.group_by("category").len("bought").join(active.group_by("category").len("size"), on="category")
    log_size, log_weight = (np.log(weight[name].to_numpy()) for name in ("size", "bought"))
    large = weight["size"].to_numpy() >= 20  # where counts are not mostly noise
    exponent, _ = np.polyfit(log_size[large], log_weight[large], 1)
    return {
        "item_popularity_sigma": item_sigma,
        "item_popularity_error": item_error,
        "item_top_shares": dict(zip(map(str, SHARES), top_shares(counts(viewed, "item")), strict=True)),
        "category_size_sigma": size_sigma,
        "category_size_error": size_error,
        "category_top_shares_of_views": dict(
            zip(map(str, SHARES), top_shares(counts(data["views"], "category")), strict=True)
        ),
        "category_popularity_sigma": lognormal_sigma(counts(data["views"], "category"))[0],
        "category_popularity_exponent": float(exponent),
    }


def sessions(data: Frames) -> dict[str, Any]:
    """How long sessions are, how true they stay to a category, how often they come back to an item."""
    views, lists = data["views"], data["sequences"]["items"]
    lengths = counts(views, "session")
    by_category = views.group_by("session", "category").len("views")
    per_session = by_category.group_by("session").agg(
        main=pl.col("views").max(), total=pl.col("views").sum(), categories=pl.len()
    )
    longer = per_session.filter(pl.col("total") > 1)
    return {
        "views_per_session": float(lengths.mean()),
        "views_per_session_deviation": float(lengths.std()),
        "sessions_of_one_view": float((lengths == 1).mean()),
        "main_category_share": float(longer["main"].sum() / longer["total"].sum()),
        "sessions_of_one_category": float((longer["categories"] == 1).mean()),
        "repeated_views": float(1 - lists.list.n_unique().sum() / lists.list.len().sum()),
        "anonymous_share": float(views["user"].null_count() / len(views)),
    }


def clock(data: Frames) -> dict[str, Any]:
    """Time between views, purchases per buying session, the rhythm of the week."""
    views, bought = data["views"], data["purchases"]
    gaps = views.select(pl.col("timeframe").diff().over("session"))["timeframe"].drop_nulls().to_numpy()
    days = bought.with_columns(pl.col("day").str.to_date()).group_by("day").len()
    full = days.filter(pl.col("day").dt.month().is_in([3, 4, 5]))  # the months that are whole
    week = full.group_by(weekday=pl.col("day").dt.weekday()).agg(pl.col("len").mean()).sort("weekday")["len"]
    return {
        "gap_log_mean": float(np.log(gaps + 1).mean()),
        "gap_log_deviation": float(np.log(gaps + 1).std()),
        "purchases_per_buying_session": float(counts(bought, "session").mean()),
        "week": [round(float(one), 3) for one in week / week.mean()],
    }


def fit(data: Frames) -> dict[str, Any]:
    return popularity(data) | sessions(data) | clock(data)


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{one:.3f}" for one in value.values())
    return " ".join(f"{one:.3f}" for one in (value if isinstance(value, list) else [value]))


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if len(folders) not in (1, 2) or not all(folder.is_dir() for folder in folders):
        sys.exit(__doc__)
    found = {"data": fit(read(folders[0]))}
    if len(folders) == 2:
        found["raw"] = fit(read_raw(folders[1]))
    for name in found["data"]:
        sys.stderr.write(f"{name:32} " + " | ".join(shown(one[name]) for one in found.values()) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
