"""Lists of a table in other forms: objects of a JSON array, rows of their own, columns such as item_1, item_2."""

import re
from collections.abc import Iterable, Sequence

import polars as pl

STAR = "*"  # stands for the numbers of columns that are one list
PLUS = "+"  # between columns that are one id together
NUMBERED = r"^(.*?[^0-9])?(\d{1,4})(\D*)$"


def flattened(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Objects become columns `user.id`, arrays of objects become lists `shown.item`, also those inside others."""
    schema = frame.collect_schema()
    columns = [one for name, dtype in schema.items() for one in _flat(name, pl.col(name), dtype)]
    return frame if [one.meta.output_name() for one in columns] == schema.names() else frame.select(columns)


def _flat(name: str, column: pl.Expr, dtype: pl.DataType) -> list[pl.Expr]:
    if isinstance(dtype, pl.Struct):
        inside = [(one.name, column.struct.field(one.name), one.dtype) for one in dtype.fields]
    elif isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct):
        inside = [
            (one.name, column.list.eval(pl.element().struct.field(one.name)), pl.List(one.dtype))  # type: ignore[arg-type]
            for one in dtype.inner.fields
        ]
    else:
        return [column.alias(name)]
    return [deeper for key, found, kind in inside for deeper in _flat(f"{name}.{key}", found, kind)]  # type: ignore[arg-type]


def numbered(columns: Sequence[str]) -> dict[str, list[str]]:
    """Columns that differ by a number alone, by what they share: `item_*` are item_1, item_2 and so on, in order."""
    found: dict[str, dict[int, str]] = {}
    for name in columns:
        if match := re.match(NUMBERED, name):
            before, number, after = match.groups()
            found.setdefault(f"{before or ''}{STAR}{after}", {})[int(number)] = name
    return {star: [own[number] for number in sorted(own)] for star, own in found.items() if len(own) > 1}


def with_lists(frame: pl.LazyFrame, columns: Sequence[str], wanted: Iterable[str]) -> tuple[pl.LazyFrame, list[str]]:
    """The frame with a list for each wanted name with a star that stands for several columns; empty cells left out."""
    groups = numbered(columns)
    names = [name for name in dict.fromkeys(wanted) if name not in columns and name in groups]
    lists = [pl.concat_list(groups[name]).list.drop_nulls().alias(name) for name in names]
    return (frame.with_columns(lists) if lists else frame), names


def with_joined(frame: pl.LazyFrame, columns: Sequence[str], wanted: Iterable[str]) -> tuple[pl.LazyFrame, list[str]]:
    """The frame with an id for each wanted name such as user+visit, where the numbers of visits begin anew."""
    parts = {name: name.split(PLUS) for name in dict.fromkeys(wanted) if PLUS in name and name not in columns}
    names = {name: own for name, own in parts.items() if set(own) <= set(columns)}
    ids = [pl.concat_str([pl.col(one).cast(pl.String) for one in own], separator="-") for own in names.values()]
    return frame.with_columns(one.alias(name) for one, name in zip(ids, names, strict=True)), list(names)


def inside(columns: Iterable[str], nested: str) -> list[str]:
    """The columns that a list of objects became."""
    return [name for name in columns if name.startswith(f"{nested}.")]


def unnested(frame: pl.LazyFrame, columns: Sequence[str], nested: str) -> pl.LazyFrame:
    """A row for each object of a list, with what the list's row says of all of them; empty lists have none."""
    own = inside(columns, nested)
    return frame.filter(pl.col(own[0]).list.len() > 0).explode(own)
