"""The files of a Diginetica folder: which are there, what is lost without one, and their rows as integers."""

from pathlib import Path

import polars as pl

from bcd4rec.data.readers._raw import NO_ID, open_raw, read_typed
from bcd4rec.data.readers.reader import Reading
from bcd4rec.data.tables import ROW, RawTable, scan
from bcd4rec.errors import InputError

NAMES = {
    "queries": "train-queries.csv",
    "clicks": "train-clicks.csv",
    "views": "train-item-views.csv",
    "purchases": "train-purchases.csv",
    "categories": "product-categories.csv",
}
LOST = {
    "queries": "it holds what was shown; without it only the item views can be read, as positive responses: "
    "--set source=views",
    "clicks": "without it no response is a click; get it, or go on without clicks: --set without=clicks",
    "views": "it holds the item views, which --set source=views reads; get it, or read the queries",
    "purchases": "without it no response is a buy; get it, or go on without purchases: --set without=purchases",
    "categories": "without it items have no category; get it, or go on without: --set without=categories",
}
VIEW_SPELLINGS = {"session_id": "sessionId", "user_id": "userId", "item_id": "itemId"}


class Folder:
    """A raw folder; what is read and remarked goes to `reading`."""

    def __init__(self, raw: Path, without: str, source: str, reading: Reading):
        if not raw.is_dir():
            raise InputError(f"{raw} is not a folder; expected the raw Diginetica folder with {NAMES['queries']}.")
        self._raw, self._reading = raw, reading
        self._without = {name.strip() for name in without.split(",") if name.strip()}
        unknown = self._without - {"clicks", "purchases", "categories"}
        if unknown:
            raise InputError(f"--set without: found {min(unknown)!r}, expected clicks, purchases or categories.")
        needed = [source, *(["clicks"] if source == "queries" else []), "purchases", "categories"]
        missing = [name for name in needed if name not in self._without and not self.has(name)]
        if missing:
            also = f" (also missing: {', '.join(NAMES[name] for name in missing[1:])})" if missing[1:] else ""
            raise InputError(f"{NAMES[missing[0]]} is missing from {raw}: {LOST[missing[0]]}{also}.")
        reading.remarks += [f"read without {NAMES[name]}" for name in sorted(self._without)]

    def _find(self, name: str) -> Path | None:
        """The file, or the only one whose name ends alike, such as sample_train-item-views.csv."""
        exact = self._raw / NAMES[name]
        if exact.is_file():
            return exact
        alike = [file for file in self._raw.iterdir() if file.name.endswith(NAMES[name])]
        return alike[0] if len(alike) == 1 else None

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def path(self, name: str) -> Path:
        return self._find(name) or self._raw / NAMES[name]

    def clicks(self) -> pl.DataFrame:
        """list (the query), timeframe, item_id."""
        if "clicks" in self._without:
            return pl.DataFrame(schema={"list": pl.Int64, "timeframe": pl.Int64, "item_id": pl.Int64})
        kinds = {"queryId": "id", "timeframe": "milliseconds", "itemId": "id"}
        return self._rows("clicks", kinds).rename({"queryId": "list", "itemId": "item_id"})

    def purchases(self) -> pl.DataFrame:
        """session_id, item_id, bought_at: the last purchase of an item in a session, in its milliseconds."""
        if "purchases" in self._without:
            return pl.DataFrame(schema={"session_id": pl.Int64, "item_id": pl.Int64, "bought_at": pl.Int64})
        kinds = {"sessionId": "id or NA", "timeframe": "milliseconds", "itemId": "id"}
        rows = self._rows("purchases", kinds).filter(pl.col("sessionId") != NO_ID)
        keys = [pl.col("sessionId").alias("session_id"), pl.col("itemId").alias("item_id")]
        return rows.group_by(keys).agg(pl.col("timeframe").max().alias("bought_at"))

    def categories(self) -> pl.DataFrame | None:
        """item_id, category."""
        if "categories" in self._without:
            return None
        rows = self._rows("categories", {"itemId": "id", "categoryId": "id"})
        pairs = rows.rename({"itemId": "item_id", "categoryId": "category"}).unique(["item_id", "category"])
        torn = pairs.filter(pl.col("item_id").is_duplicated())
        if not torn.is_empty():
            item = int(torn["item_id"].sort()[0])
            raise InputError(f"{self.path('categories')}: item {item} has two categories; expected one per item.")
        return pairs.drop(ROW)

    def views(self) -> pl.DataFrame:
        """session_id, item_id, timeframe, eventdate."""
        kinds = {"sessionId": "id", "itemId": "id", "timeframe": "milliseconds", "eventdate": "day"}
        own = {ours: theirs for theirs, ours in VIEW_SPELLINGS.items()} if self._underscored() else {}
        rows = self._rows("views", {own.get(name, name): kind for name, kind in kinds.items()})
        return rows.rename({own.get("sessionId", "sessionId"): "session_id", own.get("itemId", "itemId"): "item_id"})

    def _underscored(self) -> bool:
        """The full file spells sessionId, the sample session_id."""
        return "session_id" in scan(self.path("views"), "csv", ";").columns

    def _rows(self, name: str, kinds: dict[str, str]) -> pl.DataFrame:
        table: RawTable = open_raw(self.path(name), kinds, self._reading, ";")
        rows = read_typed(table, kinds)
        self._reading.read[name] = rows.height
        return rows

    def remark_categories(self, log: Path) -> None:
        if "categories" in self._without:
            return
        items = pl.scan_parquet(log, glob=False).filter(pl.col("category").is_null()).select("item_id").unique()
        if count := items.collect(engine="streaming").height:
            self._reading.remarks.append(f"{count:,} items have no category in {NAMES['categories']}")
