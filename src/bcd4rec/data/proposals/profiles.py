"""What a sample of each column holds: numbers, times, lists or texts, whatever the file calls and writes them."""

import re
from dataclasses import dataclass
from typing import Literal

import polars as pl

from bcd4rec.data.proposals.words import answer_of
from bcd4rec.data.readers._rows import NOTHING
from bcd4rec.data.readers._slates import PIECE

Kind = Literal["empty", "integer", "number", "flag", "time", "list", "text", "other"]
TIME_FORMATS = (
    *("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S"),
    *("%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M", "%Y%m%d%H%M%S", "%d/%b/%Y:%H:%M:%S %z"),
    *("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S%.f UTC", "%d.%m.%Y, %H:%M:%S", "%d-%m-%Y %H:%M:%S", "%d.%m.%Y"),
)
ISO = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d:?\d\d))?)?$"
UNITS = {"s": (1e8, 5e9), "ms": (1e11, 5e12), "us": (1e14, 5e15)}  # numbers since 1970 from 1973 to 2128
PER_SECOND = {"s": 1, "ms": 1e3, "us": 1e6}
LATE = (7.5e8, 2.3e9)  # seconds since 1970: 1993 to 2042
MARK = r"^(.+)([-:=_])([^-:=_]+)$"
MOST_PLACES = 5000
MOST = 0.98  # of the values, for a column to be of a kind


@dataclass(frozen=True)
class ColumnProfile:
    """`values` are typed: Int64, Float64, Boolean, lists of String, or String (also for ids and times as text)."""

    name: str
    kind: Kind
    values: pl.Series
    time_format: str = ""
    time_unit: str = ""
    mark: str = ""
    separator: str = ""  # of a list, where the usual ones would cut items in two
    fractions: bool = False  # whole numbers that are written as 17.0

    @property
    def distinct(self) -> int:
        return self.values.drop_nulls().n_unique()

    @property
    def filled(self) -> float:
        return 1 - self.values.null_count() / max(len(self.values), 1)

    @property
    def clock_like(self) -> bool:
        """Whether numbers are times of the years in which logs were written; many ids have as many digits."""
        low, high = (LATE[place] * PER_SECOND.get(self.time_unit, 0) for place in (0, 1))
        return bool(self.time_unit) and low < float(self.values.min()) and float(self.values.max()) < high  # type: ignore[arg-type]

    @property
    def an_id(self) -> bool:
        return self.kind in ("integer", "text") and self.distinct > 1 and self.filled > MOST


def profile(series: pl.Series) -> ColumnProfile:
    name, dtype = series.name, series.dtype
    if series.null_count() == len(series):
        return ColumnProfile(name, "empty", series)
    if dtype == pl.List:
        if isinstance(dtype.inner, pl.List | pl.Struct):  # type: ignore[attr-defined]
            return ColumnProfile(name, "other", series)
        return _marked(name, series.cast(pl.List(pl.String)))
    if dtype == pl.Boolean:
        return ColumnProfile(name, "flag", series)
    if dtype.is_temporal():
        return ColumnProfile(name, "time", series)
    if dtype.is_integer():
        return ColumnProfile(name, "integer", series.cast(pl.Int64), time_unit=_unit(series))
    if dtype.is_float():
        return _numbers(name, series)
    if dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum):
        return _text(name, series.cast(pl.String))
    return ColumnProfile(name, "other", series)


def _text(name: str, series: pl.Series) -> ColumnProfile:
    empty = series.str.strip_chars().str.to_lowercase().is_in(NOTHING)
    given = pl.select(pl.when(~empty).then(series)).to_series().rename(name)
    found = given.drop_nulls()
    if found.is_empty():
        return ColumnProfile(name, "empty", given)
    whole = given.cast(pl.Int64, strict=False)
    if whole.null_count() == given.null_count():
        return ColumnProfile(name, "integer", whole, time_unit=_unit(whole))
    numbers = given.cast(pl.Float64, strict=False)
    if numbers.null_count() == given.null_count():
        return _numbers(name, numbers)
    if set(found.str.to_lowercase().unique()) <= {"true", "false"}:
        return ColumnProfile(name, "flag", given)
    if found.str.contains(ISO).mean() > MOST:  # type: ignore[operator]
        return ColumnProfile(name, "time", given)
    for pattern in TIME_FORMATS:
        if found.str.to_datetime(pattern, strict=False).is_not_null().all():
            return ColumnProfile(name, "time", given, time_format=pattern)
    return _listed(name, given) or ColumnProfile(name, "text", given)


def _numbers(name: str, numbers: pl.Series) -> ColumnProfile:
    """Whole numbers above 1 that are written as fractions were ids or counts before some of them were missing."""
    numbers = numbers.fill_nan(None)
    found = numbers.drop_nulls()
    whole = len(found) > 0 and bool((found == found.round()).all()) and 1 < float(found.abs().max()) < 2**53  # type: ignore[arg-type]
    if whole:
        return ColumnProfile(name, "integer", numbers.cast(pl.Int64), time_unit=_unit(found), fractions=True)
    return ColumnProfile(name, "number", numbers, time_unit=_unit(numbers))


def _unit(numbers: pl.Series) -> str:
    low, high = float(numbers.min() or 0), float(numbers.max() or 0)  # type: ignore[arg-type]
    return next((unit for unit, (least, most) in UNITS.items() if least < low and high < most), "")


def _listed(name: str, given: pl.Series) -> ColumnProfile | None:
    """A list that is written as text: brackets, or several pieces of which most look like ids."""
    found = given.drop_nulls()
    separator = next((one for one in "|;" if found.str.contains(one, literal=True).mean() > 0.3), "")  # type: ignore[operator]
    if separator and not found.str.contains(r"\s").any():
        separator = ""
    pieces = given.str.split(separator) if separator else given.str.extract_all(PIECE)
    each = pieces.drop_nulls().explode().drop_nulls()
    several = float((pieces.list.len() > 1).mean() or 0)  # type: ignore[arg-type]
    brackets = bool(found.str.starts_with("[").all())
    if not brackets and (several < 0.3 or float(each.str.contains(r"\d").mean() or 0) < 0.8):  # type: ignore[arg-type]
        return None
    return _marked(name, pieces, separator)


def _marked(name: str, lists: pl.Series, separator: str = "") -> ColumnProfile:
    """Whether all pieces are like N1-0, the last part of which is a response."""
    each = lists.explode().drop_nulls().unique().head(2000).to_list()
    found = [re.match(MARK, piece) for piece in each]
    mark = ""
    if found and all(found):
        marks, answers = ({one.group(part) for one in found if one} for part in (2, 3))
        if len(marks) == 1 and len(answers) <= 4 and all(answer_of(answer) for answer in answers):
            mark = marks.pop()
    return ColumnProfile(name, "list", lists, mark=mark, separator=separator)


# ---- what a column can be


def share_inside(one: ColumnProfile, shown: ColumnProfile) -> float:
    """How many of a column's values are among the items of the same row."""
    if one.kind not in ("list", "text", "integer"):
        return 0.0
    given = one.values if one.kind == "list" else one.values.cast(pl.String).str.extract_all(r"[^\s,;|\[\]\"']+")
    frame = pl.DataFrame({"given": given.cast(pl.List(pl.String)), "shown": shown.values})
    inside = frame.select(
        pl.col("given").list.set_intersection("shown").list.len().sum(), all=pl.col("given").list.len().sum()
    )
    return float(inside[0, 0] or 0) / max(float(inside[0, 1] or 0), 1.0)


def runs(one: ColumnProfile) -> int:
    return int((one.values != one.values.shift(1)).sum()) + 1


def is_id(one: ColumnProfile) -> bool:
    return one.an_id


def is_one_id(one: ColumnProfile) -> bool:
    """An id in every row, perhaps the same: a log of one session, or of one item."""
    return one.kind in ("integer", "text") and one.filled > MOST


def is_loose_id(one: ColumnProfile) -> bool:
    return one.kind in ("integer", "text") and one.distinct > 1


def is_repeating(one: ColumnProfile) -> bool:
    return one.an_id and 1.05 * one.distinct < len(one.values)


def is_propensity(one: ColumnProfile) -> bool:
    values = one.values.explode().cast(pl.Float64, strict=False) if one.kind == "list" else one.values
    if one.kind not in ("number", "integer", "list") or values.null_count() == len(values):
        return False
    low, high = values.min(), values.max()
    return float(low) > 0 and float(high) <= 1  # type: ignore[arg-type]


def is_time(one: ColumnProfile) -> bool:
    return one.kind == "time" or bool(one.time_unit)


def is_place(one: ColumnProfile) -> bool:
    if one.kind != "integer":  # lists have no least value
        return False
    low, high = one.values.min(), one.values.max()
    return int(low) >= 0 and int(high) < MOST_PLACES  # type: ignore[arg-type]
