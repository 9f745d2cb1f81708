"""What is done to a whole log once its rows are canonical: sessions are cut, clicks find their impression, rare items
go. Each reads one Parquet file and writes another."""

from pathlib import Path

import numpy as np
import polars as pl

from bcd4rec.data.readers.reader import Reading
from bcd4rec.errors import InputError

PLACE = "#place"  # of a row in the log
ANSWERED = "#answered"  # the place of the impression that a row answers
PAIR = ["session_id", "item_id"]
MINUTE = 60_000_000  # microseconds
BEST = "buy"  # counts before other answers to the same impression


def attribute(first: Path, out: Path, reading: Reading) -> None:
    """Write the log with each organic answer moved to the impression that it answers: that of its slate, where the
    row names one, or else the last of its item in the session so far. What answers nothing stays organic."""
    rows, names = _placed(first)
    clock = "timestamp" if "timestamp" in names else "step"
    answers = rows.filter(pl.col("organic") & (pl.col("response") != "skip")).collect(engine="streaming")
    shown = rows.filter(~pl.col("organic")).select(PLACE, *PAIR, clock, *_slate(names))
    shown_again = shown.join(answers.lazy().select(PAIR).unique(), on=PAIR, how="semi").collect(engine="streaming")
    found = _answered(answers, shown_again, clock, _slate(names))
    best = (pl.col("response") == BEST).any()
    won = found.sort(clock, PLACE).group_by(ANSWERED, maintain_order=True)
    responses = won.agg(pl.when(best).then(pl.lit(BEST)).otherwise(pl.col("response").last()).alias("answer"))
    kept = rows.join(found.lazy().select(PLACE), on=PLACE, how="anti", maintain_order="left")
    told = kept.join(responses.lazy(), left_on=PLACE, right_on=ANSWERED, how="left", maintain_order="left")
    response = pl.coalesce("answer", "response").alias("response")
    told.with_columns(response).select(names).sink_parquet(out, engine="streaming")
    reading.kept = count_kept(out)
    reading.drop("rows that answer an impression, which now has their response", found.height)
    if alone := answers.height - found.height:
        reading.remarks.append(
            f"{alone:,} of {answers.height:,} clicks and purchases are of items that their session had not been shown "
            "before: they count as found without a recommendation (organic)"
        )


def _placed(log: Path) -> tuple[pl.LazyFrame, list[str]]:
    """The rows of a log with their places, and the names of its own columns."""
    rows = pl.scan_parquet(log, glob=False)
    return rows.with_row_index(PLACE), rows.collect_schema().names()


def _slate(names: list[str]) -> list[str]:
    return ["request_id"] if "request_id" in names else []


def _answered(answers: pl.DataFrame, shown: pl.DataFrame, clock: str, slate: list[str]) -> pl.DataFrame:
    """The answers that have an impression, with its place."""
    columns = [PLACE, *PAIR, clock, "response", ANSWERED]
    there = shown.rename({PLACE: ANSWERED})
    named = answers.clear().with_columns(pl.lit(None, pl.UInt32).alias(ANSWERED))
    if slate:
        once = there.unique([*PAIR, *slate], keep="last", maintain_order=True).drop(clock)
        named = answers.join(once, on=[*PAIR, *slate], how="inner", maintain_order="left")
    others = answers.join(named.select(PLACE), on=PLACE, how="anti", maintain_order="left").sort(clock)
    times = there.select(*PAIR, clock, ANSWERED).sort(clock, ANSWERED)
    last = others.join_asof(times, on=clock, by=PAIR, strategy="backward", check_sortedness=False)
    return pl.concat([named.select(columns), last.drop_nulls(ANSWERED).select(columns)], how="vertical_relaxed")


def merge_repeats(first: Path, out: Path, reading: Reading) -> None:
    """Write the log with rows that stand several times (in session, moment, slate, place and item) as one, where the
    first stands: a purchase counts before other answers, and the last of these before a skip."""
    rows, names = _placed(first)
    key = [name for name in (*PAIR, "timestamp", "step", "request_id", "position", "organic") if name in names]
    hashes = rows.select(pl.struct(key).hash()).collect(engine="streaming").to_series()
    again = np.flatnonzero(hashes.is_duplicated().to_numpy())  # nearly always exact repeats, and few
    if not len(again):
        first.rename(out)
        return
    some = rows.filter(pl.col(PLACE).is_in(pl.Series(again, dtype=pl.UInt32).implode())).collect(engine="streaming")
    answer = pl.col("response").filter(pl.col("response") != "skip").last().fill_null("skip")
    best = pl.when((pl.col("response") == BEST).any()).then(pl.lit(BEST)).otherwise(answer)
    merged = some.group_by(key, maintain_order=True).agg(pl.col(PLACE).min(), best.alias("answer"))
    others = some.join(merged.select(PLACE), on=PLACE, how="anti")
    kept = rows.join(others.lazy().select(PLACE), on=PLACE, how="anti", maintain_order="left")
    told = kept.join(merged.lazy().select(PLACE, "answer"), on=PLACE, how="left", maintain_order="left")
    told.with_columns(pl.coalesce("answer", "response").alias("response")).select(names).sink_parquet(
        out, engine="streaming"
    )
    reading.kept = count_kept(out)
    reading.drop("rows that stand once more", others.height)


def cut_slates(first: Path, out: Path, reading: Reading) -> None:
    """Write the log with a slate for each run of rising positions of a session, in the order of the rows."""
    rows, names = _placed(first)
    shown = ~pl.col("organic") if "organic" in names else pl.col("position").is_not_null()
    places = rows.filter(shown).select(PLACE, "session_id", "position").collect(engine="streaming")
    again = (pl.col("position") <= pl.col("position").shift().over("session_id")).fill_null(False)
    slate = again.cast(pl.UInt32).cum_sum().over("session_id").cast(pl.String).alias("request_id")
    told = rows.join(places.with_columns(slate).select(PLACE, "request_id").lazy(), on=PLACE, how="left")
    told.sort(PLACE).select(*names, "request_id").sink_parquet(out, engine="streaming")
    reading.kept = count_kept(out)


def cut_sessions(first: Path, out: Path, minutes: float, reading: Reading) -> None:
    """Write the log with a new session wherever one pauses for longer; its old id becomes the user, if none is told."""
    rows, names = _placed(first)
    times = rows.select(PLACE, "session_id", "timestamp").collect(engine="streaming").sort("session_id", "timestamp")
    pause = pl.col("timestamp").diff().over("session_id") > pl.duration(microseconds=round(minutes * MINUTE))
    part = pause.fill_null(False).cast(pl.UInt32).cum_sum().over("session_id").alias("part")
    parts = times.with_columns(part)
    whole = rows.join(parts.lazy().select(PLACE, "part"), on=PLACE, how="left", maintain_order="left")
    if "user_id" not in names:
        whole, names = whole.with_columns(pl.col("session_id").cast(pl.String).alias("user_id")), [*names, "user_id"]
    session = pl.format("{}-{}", "session_id", pl.col("part") + 1).alias("session_id")
    whole.with_columns(session).select(names).sink_parquet(out, engine="streaming")
    reading.kept = count_kept(out)
    before, after = (parts.select(key).n_unique() for key in (["session_id"], ["session_id", "part"]))
    reading.remarks.append(f"{before:,} sessions were cut into {after:,} at pauses of more than {minutes:g} minutes")


def drop_rare(first: Path, out: Path, min_support: int, reading: Reading) -> None:
    """Write the log without items of few impressions, and without sessions of which nothing was recommended then."""
    rows = pl.scan_parquet(first, glob=False)
    shown_rows = ~pl.col("organic") if "organic" in rows.collect_schema() else pl.col("item_id").is_not_null()
    items = rows.group_by("item_id").agg(shown_rows.sum().alias("len")).filter(pl.col("len") >= min_support)
    kept = rows.join(items.collect(engine="streaming").lazy(), on="item_id", how="semi", maintain_order="left")
    sessions = kept.filter(shown_rows).select("session_id").unique().collect(engine="streaming")
    if sessions.is_empty():
        raise InputError(f"No item has {min_support:,} impressions (min_support); choose a smaller number.")
    kept.join(sessions.lazy(), on="session_id", how="semi", maintain_order="left").sink_parquet(out, engine="streaming")
    before = reading.kept
    after = reading.kept = count_kept(out)
    reading.drop(f"items with fewer than {min_support:,} impressions", before["items"] - after["items"])
    for what in ("impressions", "organic", "sessions"):
        reading.drop(f"{what} of such items alone", before.get(what, 0) - after.get(what, 0))


def count_kept(log: Path) -> dict[str, int]:
    rows = pl.scan_parquet(log, glob=False)
    marked = "organic" in rows.collect_schema()
    organic = pl.col("organic").sum() if marked else pl.lit(0)
    columns = [pl.len(), organic.alias("organic"), *(pl.col(name).n_unique() for name in ("session_id", "item_id"))]
    count, found, sessions, items = rows.select(columns).collect(engine="streaming").row(0)
    return (
        {"impressions": count - found} | ({"organic": found} if marked else {}) | {"sessions": sessions, "items": items}
    )
