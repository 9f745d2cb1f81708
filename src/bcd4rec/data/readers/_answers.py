"""What people did, in the ways that tables tell it: values, columns of yes and no, names of files, nothing at all."""

from dataclasses import dataclass, replace

import polars as pl

from bcd4rec.data.readers._slates import TOUCHES
from bcd4rec.data.readers.reader import Reading
from bcd4rec.data.tables import ROW, RawTable, collect, shown
from bcd4rec.errors import InputError

DROP = "drop"
ORGANIC = "organic"  # `organic:click` is a click on what nobody recommended
HISTORY = "#history"
TOLD = "#response"  # a column of responses that the file does not have
MOST_LISTED = 8  # response values without a rule that a message lists
TRUE = ("true", "yes", "y", "t", "ja", "oui", "si")
MOMENT = r"^\d{1,4}[-./]\d{1,2}[-./]\d{1,4}"  # when it was done: it was
FALSE = ("false", "no", "n", "f", "", "null", "na", "nan", "none", "nein", "non")


@dataclass(frozen=True)
class TableAnswers:
    """How a file tells responses: `rules` translate values, `every` is that of all rows where no column tells, `file`
    the same for one file; with `attribution` whatever is no skip is a row of its own behind its impression."""

    rules: dict[str, str]
    every: str
    file: str
    attribution: bool

    def told(
        self, table: RawTable, own_names: dict[str, str], lists: bool, marked: bool
    ) -> tuple[RawTable, dict[str, str]]:
        """The table with a column of responses, where neither a column nor lists or marks of items tell them."""
        flags = {name: own_names[name] for name in TOUCHES if name in own_names}
        if self.file:
            response = pl.lit(self.file)
        elif flags and not lists:
            response = self._of_flags(table, flags)
        elif self.every and not (flags or marked or "response" in own_names):
            response = pl.lit(self.every)
        else:
            return table, own_names
        frame = table.frame.with_columns(response.alias(TOLD))
        names = {name: own for name, own in own_names.items() if name not in TOUCHES}
        return replace(table, frame=frame, columns=(*table.columns, TOLD)), names | {"response": TOLD}

    def _of_flags(self, table: RawTable, flags: dict[str, str]) -> pl.Expr:
        response = pl.lit("skip")
        for name, word in (("clicked", "click"), ("bought", "buy")):
            if name in flags:
                self._refuse_other(table, name, flags[name])
                response = pl.when(_true(flags[name])).then(pl.lit(word)).otherwise(response)
        return response

    def _refuse_other(self, table: RawTable, name: str, own: str) -> None:
        if table.frame.collect_schema()[own] == pl.List:
            raise InputError(
                f"{table.path}: column {own} ({name}) is a list beside a list of items; name the items that were "
                "shown, too, with --map items=COLUMN."
            )
        other = ~(_true(own) | _text(own).is_in(FALSE) | (_number(own) <= 0)).fill_null(False)
        for row, value in collect(table, table.frame.filter(other).select(ROW, own).head(1)).iter_rows():
            raise InputError(
                f"{table.path}, row {row}, column {own} ({name}): found {shown(value)}, expected yes or no: true or "
                "false, 1 or 0, an amount, a time or nothing."
            )

    def translated(self, table: RawTable, history: bool, reading: Reading) -> RawTable:
        """The table with its responses by the rules, without those that a rule drops, organic ones marked."""
        if not (self.rules or self.attribution):
            return table
        value = pl.col("response").cast(pl.String)
        counts = collect(table, table.frame.group_by(value).len()).drop_nulls().sort("len", "response")[::-1]
        rules = self.rules if self.rules and not self.file else {found: found for found in counts["response"]}
        _refuse_unruled(table, counts, rules)
        dropped = [found for found, response in rules.items() if response == DROP]
        for found, rows in counts.filter(pl.col("response").is_in(dropped)).iter_rows():
            reading.drop(f"rows with the response {found}", rows)
        kept = table.frame.filter(value.is_null() | ~value.is_in(dropped))
        names = {found: response.removeprefix(f"{ORGANIC}:") for found, response in rules.items()}
        organic = [found for found, response in rules.items() if self._organic(response)]
        if history:  # which says nothing but that it was clicked
            kept = kept.with_columns(
                pl.when(pl.col("organic") & value.is_null()).then(pl.lit(HISTORY)).otherwise(value).alias("response")
            )
            names[HISTORY] = "click"
        translated = [value.replace(names).alias("response")]
        mark = self.attribution or bool(organic)
        if mark:
            told = pl.col("organic").cast(pl.String) if "organic" in table.columns else pl.lit("false")
            translated.append(pl.when(value.is_in(organic)).then(pl.lit("true")).otherwise(told).alias("organic"))
        columns = tuple(dict.fromkeys((*table.columns, *(["organic"] if mark else []))))
        return replace(table, frame=kept.with_columns(translated), columns=columns)

    def _organic(self, response: str) -> bool:
        """With attribution also what may still find the impression that it answers."""
        return response.startswith(f"{ORGANIC}:") or (self.attribution and response not in ("skip", DROP))


def _refuse_unruled(table: RawTable, counts: pl.DataFrame, rules: dict[str, str]) -> None:
    unruled = counts.filter(~pl.col("response").is_in(list(rules)))
    if unruled.is_empty():
        return
    listed = [f"{shown(found)} ({rows:,} rows)" for found, rows in unruled.head(MOST_LISTED).iter_rows()]
    more = f" and {unruled.height - MOST_LISTED:,} more" if unruled.height > MOST_LISTED else ""
    example = f"{unruled['response'][0]}={DROP}"
    raise InputError(
        f"{table.path}, column {table.name('response')}: no rule covers {', '.join(listed)}{more}; add them "
        f"to --responses, e.g. {example} to leave these rows out."
    )


def _text(own: str) -> pl.Expr:
    return pl.col(own).cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("")


def _number(own: str) -> pl.Expr:
    return _text(own).cast(pl.Float64, strict=False)


def _true(own: str) -> pl.Expr:
    return (_text(own).is_in(TRUE) | (_number(own) > 0) | _text(own).str.contains(MOMENT)).fill_null(False)
