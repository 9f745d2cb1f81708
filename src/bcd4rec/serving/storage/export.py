"""From the database to the canonical impression log: slates joined with their feedback, a chunk at a time."""

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from bcd4rec.artifacts import atomic_file
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import INTEGER
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Unanswered
from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.database import Connection, Database, Row
from bcd4rec.serving.storage.queries import Selection
from bcd4rec.serving.storage.records import ORGANIC, strongest

CHUNK_ROWS = 100_000  # rows of the log that are in memory at once
PATIENCE = 10.0  # seconds to wait for another process's lock
SCHEMA: dict[str, Any] = {
    "session_id": pl.String,
    "request_id": pl.String,
    "step": pl.Int64,
    "timestamp": pl.Datetime("us"),
    "position": pl.Int32,
    "item_id": pl.String,
    "response": pl.String,
    "propensity": pl.Float64,
    "policy": pl.String,
    "arm": pl.String,
    "organic": pl.Boolean,  # what a session brought along: nobody here recommended it
}


def export_log(
    database: Database,
    out: Path,
    selection: Selection,
    responses: Responses,
    integer_items: bool = False,
    force: bool = False,
    tick: Tick = no_tick,
    unanswered: Unanswered = "skip",
) -> dict[str, Any]:
    """Write the log as Parquet or CSV; what was written, and what was dropped and why.

    What was shown and not answered is a skip, or, where it is `unknown`, left out and counted.
    """
    connection = _open(database)
    try:
        with atomic_file(out, force) as partial, connection.transaction(read_only=True):
            counts = _write(connection, partial, out.suffix, selection, responses, integer_items, tick, unanswered)
            dropped = {
                "feedback_without_impression": queries.feedback_without_slate(connection),
                "feedback_for_items_not_shown": counts.pop("not shown", 0),
            }
            if unanswered == "unknown":
                dropped["unanswered"] = counts["unanswered"]
            if selection.policy is not None:
                several = queries.sessions_of_several_policies(connection, selection.policy)
                dropped["sessions_of_several_policies"] = several
    finally:
        connection.close()
    names = {name: counts[f"response {name}"] for name in responses.names}
    plain = {name: counts[name] for name in ("sessions", "requests", "impressions", "organic", "propensities")}
    return {"database": database.name, "log": str(out)} | plain | {"responses": names, "dropped": dropped}


def _open(database: Database) -> Connection:
    try:
        connection = database.connect(create=False, patience=PATIENCE)
        try:
            queries.check_version(connection)
        except BaseException:
            connection.close()
            raise
    except Exception as error:
        if not database.away(error):
            raise
        words = " ".join(str(error).split())
        raise InputError(
            f"--database: {database.name} cannot be read ({words}); expected what `bcd4rec serve` wrote."
        ) from None
    return connection


def _write(
    connection: Connection,
    path: Path,
    suffix: str,
    selection: Selection,
    responses: Responses,
    integer_items: bool,
    tick: Tick,
    unanswered: Unanswered,
) -> Counter[str]:
    total, sessions = queries.size_of(connection, selection)
    if not total:
        raise InputError("The database has no impressions of these days and this policy; nothing was written.")
    counts = Counter(sessions=sessions)
    slates = _slates(queries.stream_slates(connection, selection), responses, counts, unanswered)
    with _writer(path, suffix) as write:
        while rows := list(_until(slates, CHUNK_ROWS)):
            write(_frame(rows, integer_items))
            tick("writing impressions", counts["read"] / total)
    return counts


def _until(slates: Iterator[list[Row]], size: int) -> Iterator[Row]:
    """The rows of whole slates, until there are `size` or more."""
    count = 0
    while count < size and (slate := next(slates, None)) is not None:
        yield from slate
        count += len(slate)


def _slates(
    rows: Iterator[Row], responses: Responses, counts: Counter[str], unanswered: Unanswered
) -> Iterator[list[Row]]:
    """The log's rows of each slate; counts on the way."""
    skip = min(responses.rewards, key=lambda name: (responses.rewards[name], name != "skip"))
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        feedback = list(group)
        request, session, step, policy, arm, time_us, items, propensities, *_ = feedback[0]
        answers, organic = _answers(feedback, responses), arm == ORGANIC
        slate = []
        for place, (item, propensity) in enumerate(zip(json.loads(items), json.loads(propensities), strict=True)):
            found = answers.pop(item, None)
            if found is None and unanswered == "unknown":
                counts["unanswered"] += 1
                continue
            response = strongest(found, responses.rewards)[0] if found else skip
            slate.append((session, request, step, time_us, place, item, response, propensity, policy, arm, organic))
            counts[f"response {response}"] += not organic
            counts["propensities"] += propensity is not None
        counts["not shown"] += sum(map(len, answers.values()))
        counts["read"] += 1
        counts["requests"] += not organic
        counts["organic" if organic else "impressions"] += len(slate)
        yield slate


def _answers(feedback: list[Row], responses: Responses) -> dict[str, list[tuple[str, int]]]:
    """(response, time) by item."""
    answers: dict[str, list[tuple[str, int]]] = {}
    for *_, item, response, when in feedback:
        if item is None:
            continue
        if response not in responses.rewards:
            raise InputError(
                f"The database holds the response {response!r} (request {feedback[0][0]}, item {item}); expected one "
                f"of {', '.join(responses.names)}; give every response a reward with --rewards."
            )
        answers.setdefault(item, []).append((response, when))
    return answers


def _frame(rows: list[Row], integer_items: bool) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    if not integer_items:
        return frame
    written = frame["item_id"].str.contains(INTEGER)
    items = frame["item_id"].cast(pl.Int64, strict=False)
    if items.has_nulls() or not written.all():
        found = frame["item_id"].filter(items.is_null() | ~written)[0]
        raise InputError(f"--integer-items: found the item {found!r}, expected integers; leave the option out.")
    return frame.with_columns(items)


@contextlib.contextmanager
def _writer(path: Path, suffix: str) -> Iterator[Callable[[pl.DataFrame], None]]:
    with contextlib.ExitStack() as open_files:
        parquet: list[pq.ParquetWriter] = []
        text = open_files.enter_context(path.open("wb")) if suffix == ".csv" else None

        def write(rows: pl.DataFrame) -> None:
            if text is not None:
                rows.write_csv(text, include_header=text.tell() == 0, datetime_format="%Y-%m-%dT%H:%M:%S%.6f")
                return
            table = rows.to_arrow()
            if not parquet:
                parquet.append(open_files.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd")))
            parquet[0].write_table(table)

        yield write
