"""The shop's logs in the raw file formats of Diginetica (CIKM Cup 2016), written day by day.

Six files, `;`-separated with a header. Item numbers are those of the environment, so that what is learned from the
files can be tried on it. A buy is a click, a view and a purchase; a click is a click and a view. What a session opens
with is a view alone, before its first query: no list had shown it. `origin.json` beside them says whose they are.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import polars as pl
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.origin import Origin
from bcd4rec.seeding import generator
from bcd4rec.sim.shop_catalogue import ShopCatalogue
from bcd4rec.sim.traffic import Day

QUERIES, CLICKS, VIEWS, PURCHASES = (
    "train-queries.csv",
    "train-clicks.csv",
    "train-item-views.csv",
    "train-purchases.csv",
)
PRODUCTS, CATEGORIES = "products.csv", "product-categories.csv"
FILES = (QUERIES, CLICKS, VIEWS, PURCHASES, PRODUCTS, CATEGORIES)
WORDS = 20_000  # different words in product names
PAGE_LOAD = 400  # milliseconds from a click to the view of its item; less than any time spent on an item that pleases


class RawConfig(Config):
    """What the raw files hold beyond the impressions."""

    anonymous: float = Field(default=0.62, ge=0, le=1, description="Share of sessions without a userId (fitted).")
    repeated_views: float = Field(
        default=0.159, ge=0, lt=1, description="Share of views of an item seen before (fitted)."
    )
    searched: float = Field(default=0.5, ge=0, le=1, description="Share of queries with a search string (chosen).")
    withheld: float = Field(
        default=0.03,
        ge=0,
        le=1,
        description="Share of sessions whose last query is.test: no outcome is written (chosen).",
    )


class RawWriter:
    """Writes into a folder; a context manager. `counts` says how many rows each file has got."""

    def __init__(
        self,
        folder: Path,
        catalogue: ShopCatalogue,
        seed: int,
        config: RawConfig | None = None,
        origin: Origin | None = None,
    ):
        self._folder = folder
        self._origin = origin
        self._catalogue = catalogue
        self._seed = seed
        self._config = config or RawConfig()
        self._names = product_names(catalogue)
        self._queries = self._orders = 0
        self._files: dict[str, BinaryIO] = {}
        self.counts = dict.fromkeys(FILES, 0)

    def __enter__(self) -> Self:
        if self._origin is not None:
            self._origin.write(self._folder)
        self._append(PRODUCTS, products(self._catalogue, self._names))
        numbered: dict[str, Any] = {"itemId": np.arange(len(self._names)), "categoryId": self._catalogue.categories + 1}
        self._append(CATEGORIES, pl.DataFrame(numbered))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def write(self, day: Day) -> None:
        rng = generator(self._seed, "raw", day.number)
        log = self._of_users(day, rng)
        shown = self._numbered(log.filter(~pl.col("organic")))
        self._append(QUERIES, self._query_rows(shown, rng))
        liked = shown.filter(~pl.col("is.test") & (pl.col("response") != "skip"))
        self._append(CLICKS, liked.select("queryId", timeframe="turned", itemId="item_id"))
        self._append(VIEWS, self._view_rows(log.filter("organic"), liked, rng))
        self._append(PURCHASES, self._purchase_rows(liked, rng))

    def _of_users(self, day: Day, rng: np.random.Generator) -> pl.DataFrame:
        """The day's log with the users of its sessions, and which sessions have a query that is withheld."""
        sessions = day.log.select(pl.col("session_id").unique(maintain_order=True))
        users = rng.integers(1, 200_000, len(sessions)).astype(str)
        anonymous = rng.random(len(sessions)) < self._config.anonymous
        sessions = sessions.with_columns(
            userId=pl.Series(np.where(anonymous, "NA", users)),
            withheld=pl.Series(rng.random(len(sessions)) < self._config.withheld),
        )
        log = day.log.with_columns(eventdate=pl.lit(day.date))
        return log.join(sessions, on="session_id", how="left", maintain_order="left")

    def _numbered(self, log: pl.DataFrame) -> pl.DataFrame:
        """What was shown, with query numbers, and which queries are withheld."""
        log = log.with_columns(queryId=pl.col("request_id").rle_id().cast(pl.Int64) + self._queries + 1)
        last = (pl.col("queryId") == pl.col("queryId").max().over("session_id")) & pl.col("withheld")
        # A click happens when the user turns to the item; `answered` is when the user is done with it.
        turned = pl.col("answered").shift().over("queryId").fill_null(pl.col("asked")) + 1
        self._queries += log["queryId"].n_unique()
        return log.with_columns(last.alias("is.test"), turned=turned)

    def _query_rows(self, log: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
        queries = log.group_by("queryId", maintain_order=True).agg(
            pl.col("session_id", "userId", "eventdate", "is.test").first(),
            timeframe=pl.col("asked").first(),
            items=pl.col("item_id").cast(pl.String).str.join(","),
            category=pl.col("category").mode(maintain_order=True).first(),
            first_item=pl.col("item_id").first(),
        )
        searched = pl.Series(rng.random(len(queries)) < self._config.searched)
        names = pl.Series(self._names).gather(queries["first_item"])
        return queries.with_columns(
            sessionId="session_id",
            duration=pl.Series(rng.integers(30, 900, len(queries))),
            words=pl.when(searched).then(names),
            categoryId=pl.when(searched).then(0).otherwise("category"),
            test=pl.when("is.test").then(pl.lit("TRUE")).otherwise(pl.lit("FALSE")),
        ).select(
            *("queryId", "sessionId", "userId", "timeframe", "duration", "eventdate"),
            pl.col("words").alias("searchstring.tokens"),
            *("categoryId", "items"),
            pl.col("test").alias("is.test"),
        )

    def _view_rows(self, openings: pl.DataFrame, liked: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
        """A view for each opening and click, and some items looked at once more when the session is through."""
        share = self._config.repeated_views
        times = (
            openings.with_columns(timeframe="asked"),
            liked.with_columns(timeframe=pl.col("turned") + PAGE_LOAD),
        )
        columns = {"session_id": "sessionId", "userId": "userId", "item_id": "itemId"}
        rest = ("timeframe", "eventdate", "answered")
        views = pl.concat(one.select(*(pl.col(old).alias(new) for old, new in columns.items()), *rest) for one in times)
        views = views.sort("sessionId", "timeframe", maintain_order=True)
        again = pl.Series(rng.random(len(views)) < share / (1.0 - share), dtype=pl.Boolean)
        repeated = views.with_columns(timeframe=pl.col("answered").max().over("sessionId")).filter(again)
        later = pl.Series(rng.integers(1_000, 600_000, len(repeated)))
        rows = pl.concat([views, repeated.with_columns(pl.col("timeframe") + later)]).drop("answered")
        return rows.sort("sessionId", "timeframe", maintain_order=True)

    def _purchase_rows(self, liked: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
        """Everything that a session buys is one order, when the session is through."""
        end = liked.group_by("session_id").agg(end=pl.col("answered").max())
        bought = liked.filter(pl.col("response") == "buy").join(end, on="session_id", how="left", maintain_order="left")
        orders = bought["session_id"].rle_id().cast(pl.Int64) + self._orders + 1
        self._orders += bought["session_id"].n_unique()
        checkout = pl.Series(rng.integers(600_000, 3_600_000, len(bought)))
        return bought.with_columns(ordernumber=orders, checkout=checkout).select(
            pl.col("session_id").alias("sessionId"),
            "userId",
            (pl.col("end") + pl.col("checkout").first().over("session_id")).alias("timeframe"),
            "eventdate",
            "ordernumber",
            pl.col("item_id").alias("itemId"),
        )

    def _append(self, name: str, rows: pl.DataFrame) -> None:
        new = name not in self._files
        if new:
            self._files[name] = (self._folder / name).open("wb")
        rows.write_csv(self._files[name], separator=";", include_header=new, quote_style="never")
        self.counts[name] += len(rows)


def products(catalogue: ShopCatalogue, names: list[str]) -> pl.DataFrame:
    """The price is the first axis of taste, in powers of two."""
    price = np.clip(np.round(9.0 + 1.5 * catalogue.places[:, 0]), 0, 20).astype(np.int64)
    rows: dict[str, Any] = {"itemId": np.arange(len(names)), "pricelog2": price, "product.name.tokens": names}
    return pl.DataFrame(rows)


def product_names(catalogue: ShopCatalogue) -> list[str]:
    """Words as numbers: the first is that of the category, the others are the item's own."""
    rng = generator(0, "raw", "names")  # of the catalogue, not of the users
    words = rng.integers(len(catalogue.related) + 1, WORDS, (len(catalogue.categories), 4))
    return [",".join(map(str, [category + 1, *own])) for category, own in zip(catalogue.categories, words, strict=True)]
