"""Result files and what is compared in them: one row for each session or test case of each policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from bcd4rec.errors import InputError
from bcd4rec.evaluation.statistics import DISCOUNTED_RETURN, OUTSIDE, RATE, RETURN, Ratio
from bcd4rec.workflows.sessions import K

SESSION = ["session_id", "policy", "steps", "targets", "return", "discounted_return"]
SUPPORT = ["shown", "outside"]  # where the user was a learned one
LOGGED = ["session_id", "policy", "cases"]  # on a log; all other columns are sums of measures over the cases
CASE = ["case", "target", "rank"]
LISTS, ON_USERS, ON_A_LOG = "cases", "sessions", "sessions of a log"
EXPECTED = "expected what `bcd4rec benchmark sessions --lists` or `bcd4rec evaluate --sessions` writes"


class ResultTables(NamedTuple):
    """Policies that met the same sessions or test cases. The tables have a `session_id`, for a case its number."""

    unit: str  # session or case
    ratios: dict[str, Ratio]
    tables: dict[str, pl.DataFrame]

    def long(self) -> pl.DataFrame:
        """All tables as one, which `read_results` reads again."""
        named = [table.insert_column(1, pl.lit(name).alias("policy")) for name, table in self.tables.items()]
        unit = "session_id" if self.unit == "session" else "case"
        return pl.concat(named).rename({"session_id": unit})


def session_table(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """The tables of policies with a row for each session as one: those of `per_session`, or of a log's judgement."""
    joined = pl.concat(
        [
            table.select("session_id", pl.lit(name).alias("policy"), pl.all().exclude("session_id"))
            for name, table in tables.items()
        ]
    )
    if "cases" in joined.columns:
        return joined
    return joined.select(*SESSION, *(name for name in SUPPORT if name in joined.columns))


def read_results(paths: Sequence[Path]) -> ResultTables:
    """Files of one kind. A file without a column `policy` holds one policy, named like the file."""
    frames = {path: _read(path) for path in paths}
    kinds = {path: _kind(frame) for path, frame in frames.items()}
    kind = kinds[paths[0]]
    if odd := next((path for path in paths if kinds[path] != kind), None):
        raise InputError(
            f"{paths[0]} and {odd} hold different things, {kind} and {kinds[odd]}; give files of one kind."
        )
    tables: dict[str, pl.DataFrame] = {}
    for path, frame in frames.items():
        for name, part in _by_policy(path, frame).items():
            free = name if name not in tables else f"{path.with_suffix('')}:{name}"
            tables[free] = TABLES[kind](path, part)
    if kind == LISTS:
        _check_targets(tables)
        gains = {f"p@{K}": Ratio("hit", scale=100.0), f"mrr@{K}": Ratio("reciprocal_rank", scale=100.0)}
        return ResultTables("case", gains, tables)
    if kind == ON_A_LOG:
        shared = set.intersection(*(set(table.columns) for table in tables.values()))
        measures = [name for name in next(iter(tables.values())).columns if name in shared - set(LOGGED)]
        return ResultTables("session", {name: Ratio(name, "cases") for name in measures}, tables)
    ratios = {"rate": RATE, "return": RETURN, "discounted_return": DISCOUNTED_RETURN}
    if all(set(SUPPORT) <= set(table.columns) for table in tables.values()):
        return ResultTables("session", ratios | {"outside_support": OUTSIDE}, tables)
    plain = {name: table.drop(SUPPORT, strict=False) for name, table in tables.items()}
    return ResultTables("session", ratios, plain)


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise InputError(f"{path} is not a file; {EXPECTED}.")
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read ({str(error).splitlines()[0]}); {EXPECTED}.") from None
    if not _kind(frame):
        raise InputError(f"{path} has the columns {', '.join(frame.columns)}; {EXPECTED}.")
    if frame.is_empty():
        raise InputError(f"{path} holds no rows; {EXPECTED}.")
    return frame


def _kind(frame: pl.DataFrame) -> str:
    """What a file holds; empty where it is none of ours."""
    kinds = {LISTS: CASE, ON_USERS: SESSION, ON_A_LOG: LOGGED}
    return next((kind for kind, columns in kinds.items() if set(columns) <= set(frame.columns)), "")


def _by_policy(path: Path, frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    if "policy" not in frame.columns:
        return {path.stem: frame}
    parts = frame.partition_by("policy", maintain_order=True, as_dict=True, include_key=False)
    return {str(key[0]): part for key, part in parts.items()}


def _numbers(path: Path, frame: pl.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if not frame[name].dtype.is_numeric():
            raise InputError(f"{path}: column {name!r} holds {frame[name].dtype}, expected numbers.")


def _once(path: Path, frame: pl.DataFrame, key: str) -> pl.DataFrame:
    if frame[key].is_duplicated().any():
        raise InputError(f"{path}: a {key} appears twice for the same policy; write the file anew.")
    if frame.drop("target", "rank", strict=False).null_count().sum_horizontal().sum():
        raise InputError(f"{path} has empty cells; write the file anew.")
    return frame.sort(key)


def _session_table(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    support = SUPPORT if set(SUPPORT) <= set(frame.columns) else []
    table = frame.select(name for name in [*SESSION, *support] if name != "policy")
    _numbers(path, table, table.columns[1:])
    return _once(path, table, "session_id")


def _case_table(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """`session_id`, the target (null for an unknown item), its rank (null where missed) and what that is worth."""
    _numbers(path, frame, ["case", "rank"])
    rank = pl.col("rank")
    return _once(path, frame, "case").select(
        pl.col("case").alias("session_id"),
        "target",
        rank,
        hit=rank.is_not_null().cast(pl.Float64),
        reciprocal_rank=(1.0 / rank).fill_null(0.0),
    )


def _logged_table(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    table = frame.drop("policy", strict=False)
    _numbers(path, table, [name for name in table.columns if name != "session_id"])
    return _once(path, table, "session_id")


TABLES = {LISTS: _case_table, ON_USERS: _session_table, ON_A_LOG: _logged_table}


def _check_targets(tables: dict[str, pl.DataFrame]) -> None:
    """Equally many cases are not enough: they must be the same cases."""
    first, *others = tables
    for name in others:
        one, other = tables[first]["target"], tables[name]["target"]
        if len(one) == len(other) and not one.equals(other):
            raise InputError(f"{first} and {name} were asked for different targets; run both on the same data.")
