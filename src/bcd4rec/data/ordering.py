"""The rows of some whole sessions, as integers in a file, come into the order in which people saw them."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

NOTHING = {"step": 0, "organic": True, "position": -1, "propensity": None, "request_category": None}


class DisorderError(Exception):
    """Rows that no session can have; whoever knows the names of sessions and items words it."""

    def __init__(self, kind: str, count: int, order: int, session: int, item: int):
        super().__init__(kind, count, order, session, item)
        self.kind, self.count, self.order, self.session, self.item = kind, count, order, session, item

    @classmethod
    def of(cls, kind: str, wrong: pl.DataFrame) -> "DisorderError":
        first = wrong.sort("order").row(0, named=True)
        return cls(kind, len(wrong), first["order"], first["session"], first["item"])


@dataclass(frozen=True)
class ChunkFile:
    """Where the rows of some sessions lie, and all that is needed to order them: on any machine that sees the file."""

    path: Path
    sort: bool  # by time, where rows may stand in any order
    slate: tuple[str, ...]  # the column whose equal values make a slate of a session's rows, where there is one
    opening: pl.DataFrame | None = None  # session, item, response: organic events in front of sessions, in order

    def rows(self) -> pl.DataFrame:
        """As `SessionIndex.chunks` yields them; `DisorderError` where they cannot be ordered."""
        found = self._in_order(pl.scan_ipc(self.path, glob=False).collect())
        return found if self.opening is None else _opened(found, self.opening)

    def _in_order(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.sort("session", *(["time"] if self.sort else []), "order")
        backwards = (pl.col("session") == pl.col("session").shift()) & (pl.col("time") < pl.col("time").shift())
        wrong = rows.filter(backwards)
        if not wrong.is_empty():
            raise DisorderError.of("time backwards", wrong)
        place = [name for name in ("position",) if name in rows.columns]
        # Few rows show an item again in the same session, so the exact comparison runs on those alone.
        again = rows.filter(
            (pl.col("session").cast(pl.UInt64) * 2**32 + pl.col("item").cast(pl.UInt64)).is_duplicated()
        )
        twice = again.filter(~pl.struct("session", "time", "item", "organic", *place, *self.slate).is_first_distinct())
        if not twice.is_empty():
            raise DisorderError.of("duplicate", twice)
        rows = rows.with_row_index("request")
        if self.slate:
            first_row = pl.col("request").min().over("session", "organic", *self.slate)
            request = pl.when("organic").then("request").otherwise(first_row)
            rows = rows.with_columns(request.alias("request")).sort("session", "request", *place, "order")
        new_slate = (pl.col("request") != pl.col("request").shift()).fill_null(True) & ~pl.col("organic")
        slates = new_slate.cast(pl.UInt32).cum_sum().over("session")  # (n,) begun in the session up to this row
        propensity = pl.col("propensity") if "propensity" in rows.columns else pl.lit(None, pl.Float64)
        position = pl.col("position") if place else pl.lit(None, pl.Int64)
        return rows.select(
            "session",
            (slates - (~pl.col("organic")).cast(pl.UInt32)).alias("step"),
            "organic",
            "order",
            "time",
            "item",
            "response",
            pl.when("organic").then(None).otherwise(position).fill_null(-1).cast(pl.Int32).alias("position"),
            propensity.cast(pl.Float32).alias("propensity"),
            *(name for name in ("request_category",) if name in rows.columns),
        )


def _opened(rows: pl.DataFrame, opening: pl.DataFrame) -> pl.DataFrame:
    """Rows of whole sessions with what opens them in front."""
    starts = rows.group_by("session").agg(pl.col("time", "order").first())
    front = opening.join(starts, on="session", maintain_order="left")
    told = [pl.lit(NOTHING[name]).alias(name) for name in rows.columns if name in NOTHING]
    front = front.with_columns(told).select(pl.col(name).cast(dtype) for name, dtype in rows.schema.items())
    return pl.concat([front, rows]).sort("session", maintain_order=True)
