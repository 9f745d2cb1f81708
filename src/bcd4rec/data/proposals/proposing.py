"""What the columns of an unknown log may mean: a proposal with a reason for each choice, by names and by contents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.proposals.hints import (
    MOST_ANSWERS,
    only_days,
    own_names,
    speaks,
    spread_events,
    spread_lists,
    tells_else,
)
from bcd4rec.data.proposals.profiles import (
    MOST,
    ColumnProfile,
    is_id,
    is_loose_id,
    is_one_id,
    is_place,
    is_propensity,
    is_repeating,
    is_time,
    profile,
    runs,
    share_inside,
)
from bcd4rec.data.proposals.proposal import Choice, LogSample, Proposal
from bcd4rec.data.proposals.rules import counted, listed, response_rules, word
from bcd4rec.data.proposals.words import (
    CANONICAL,
    DWELL,
    NUMBERS,
    ORGANIC,
    RATING,
    ROLES,
    SEEN,
    answer_of,
    name_score,
    tokens,
)
from bcd4rec.errors import InputError

TRIVAGO = {"session_id", "timestamp", "step", "action_type", "reference", "impressions"}
ORDER = (  # of the roles in a mapping
    *("session", "user", "time", "step", "slate", "request_category", "position", "item", "items", "category"),
    *("propensity", "response", "clicked", "bought", "history"),
)
UNKNOWN_SHARE = 0.5  # of the rows, from which on values without a meaning are no side issue
CATEGORY_SEPARATORS = "|;/>"
WELL_RATED = 0.75  # of the best rating, from which on a thing counts as liked


def propose(sample: LogSample) -> Proposal:
    """Which column is what; `InputError` where no log can be seen in the file."""
    sample = spread_lists(spread_events(sample))
    columns = [profile(series) for series in sample.frame.get_columns()]
    if set(sample.frame.columns) >= TRIVAGO:
        why = "the columns are those of the RecSys Challenge 2019"
        return Proposal({"format": "trivago", "cut": "none"}, (Choice("format", "trivago", why),))
    if len(columns) == 1 and columns[0].kind == "list" and sample.kind == "parquet":
        name = columns[0].name
        told = Choice("items", name, "the only column, a list of items in each row: plain sessions, all of them liked")
        return Proposal({"format": "sequences", "column": name}, (told,))
    if len(columns) < 2:
        raise InputError(
            f"{sample.path} has one column, {sample.frame.columns[0]!r}; expected a session, an item and what was done "
            "with it, in columns separated by commas, tabs, semicolons or bars."
        )
    return _Proposing(sample, columns).proposal()


@dataclass
class _Proposing:
    """Roles are given one after the other, those first that are told most easily; a column has one role."""

    sample: LogSample
    columns: list[ColumnProfile]
    chosen: dict[str, ColumnProfile] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def proposal(self) -> Proposal:
        if self.sample.names_given:
            self.options["columns"] = [column.name for column in self.columns]
            self.doubts.append("the file has no header, so the columns have numbers; rename them as you like")
        if self.sample.nested:
            self.options["nested"] = self.sample.nested
        if self.sample.delimiter not in ("", ",", "\t"):
            self.options["delimiter"] = self.sample.delimiter
        self._lists()
        self._pick("propensity", is_propensity, "its values are between 0 and 1")
        if not self._pick("time", is_time, "it holds times"):
            clock = next((one for one in self._free() if one.kind == "time"), None)
            if clock is not None:
                self._choose("time", clock, "it holds times")
        self._groups()
        self._responses()
        if "items" not in self.chosen:
            self._pick("position", is_place, "whole numbers from 0 or 1")
        self._order()
        self._together()
        self._facts_about_items()
        self._ignore()
        self._mixed_ids()
        return self._whole()

    # ---- choosing

    def _free(self) -> list[ColumnProfile]:
        taken = {column.name for column in self.chosen.values()}
        return [column for column in self.columns if column.name not in taken]

    def _best(self, role: str, fits: Callable[[ColumnProfile], bool], named: bool = True) -> ColumnProfile | None:
        scores = {one.name: name_score(role, one.name) for one in self._free() if fits(one)}
        if not scores or (named and max(scores.values()) <= 0):
            return None
        best = max(scores, key=lambda name: scores[name])
        return next(one for one in self.columns if one.name == best)

    def _pick(self, role: str, fits: Callable[[ColumnProfile], bool], what: str) -> bool:
        found = self._best(role, fits)
        if found is not None:
            self._choose(role, found, f"by its name, and {what}")
        return found is not None

    def _choose(self, role: str, column: ColumnProfile, reason: str) -> None:
        self.chosen[role], self.reasons[role] = column, reason

    # ---- lists

    def _lists(self) -> None:
        """Items, clicks, purchases and a history, where a row is a slate."""
        lists = [one for one in self.columns if one.kind == "list" and not name_score("category", one.name)]
        marked = [one for one in lists if one.mark]
        shown = marked[0] if marked else None
        shown = shown or self._best("items", lambda one: one in lists and not (tells_else(one) or _past(one)))
        around, chosen = (shown, None) if shown else _chosen_among(lists)
        if around is None and self._best("item", is_id) is None:
            around = self._best("item", lambda one: one in lists and not (tells_else(one) or _past(one)))
        shown = around
        if shown is None:
            return
        if marked:
            self._choose("items", shown, f"a list of items with what was done, such as {shown.values.explode()[0]}")
            self.options["mark"] = shown.mark
        else:
            why = "by its name, and it holds lists" if chosen is None else f"lists that hold those of {chosen.name}"
            self._choose("items", shown, f"{why}: a row is a slate")
        if shown.separator:
            self.options["list_separator"] = shown.separator
        if chosen is not None:
            self._choose("clicked", chosen, f"a list whose values are among those of {shown.name} in the same row")
        for role in ("clicked", "bought"):
            if role in self.chosen:
                continue
            inside = self._best(role, lambda one: one.kind != "flag" and share_inside(one, shown) > 0.5)
            if inside is not None:
                self._choose(role, inside, "by its name, and its values are among the items in view")
        past = self._best("history", lambda one: one in lists) or next(
            (one for one in self._free() if self.sample.names_given and one in lists), None
        )
        if past is not None:
            self._choose("history", past, "a list of items beside those in view, which was there before")

    # ---- sessions, users, slates and items

    def _groups(self) -> None:
        if "items" not in self.chosen:
            self._item()
        self._session()
        self._slate()
        self._user()

    def _item(self) -> None:
        item = self._best("item", lambda one: one.an_id and not speaks(one)) or self._best("item", is_one_id)
        if item is None:
            ids = [one for one in self._free() if one.an_id and own_names(one) <= 0 and one.distinct > 2]
            ids = [one for one in ids if one.distinct < 0.9 * self.rows and runs(one) > 1.5 * one.distinct]
            item = max(ids, key=lambda one: one.distinct, default=None)
            if item is None:
                raise InputError(
                    f"{self.sample.path}: no column looks like items that were shown more than once; the columns are "
                    f"{self._names()}; name it in a TOML file and pass that with --mapping."
                )
            self._choose("item", item, "ids that return in other places of the file")
            return
        self._choose("item", item, "by its name, and it holds ids")

    def _session(self) -> None:
        for role, why in (
            ("session", "by its name"),
            ("user", "whose rows they are; no column tells visits apart, so all of a user's rows are one session"),
            ("slate", "a request; nothing tells which requests belong together, so each is a session of its own"),
        ):
            fits = is_repeating if role == "slate" and "items" not in self.chosen else is_id
            found = self._best(role, fits) or (self._best(role, is_one_id) if role == "session" else None)
            if found is not None:
                self._choose("session", found, why)
                if role == "slate":
                    self._choose("slate", found, "the same column: a request is a session here")
                return
        found = self._contiguous()
        if found is not None:
            self._choose("session", found, "ids that return, most of them in neighbouring rows")
        elif "propensity" in self.chosen or "items" in self.chosen:
            self.options["row_sessions"] = True
            self.doubts.append("no column tells sessions apart, so each row is a session of its own")
        else:
            raise InputError(
                f"{self.sample.path}: no column looks like a session, a visit or a user; the columns are "
                f"{self._names()}; name it in a TOML file and pass that with --mapping."
            )

    def _contiguous(self) -> ColumnProfile | None:
        ids = [one for one in self._free() if one.an_id and own_names(one) <= 0 and one.distinct >= 5]
        ids = [one for one in ids if one.distinct < 0.9 * self.rows]
        if "items" not in self.chosen:
            ids = [one for one in ids if runs(one) <= 1.2 * one.distinct]
        return max(ids, key=lambda one: one.distinct, default=None)

    def _slate(self) -> None:
        if "slate" in self.chosen or "session" not in self.chosen:
            return
        if "items" in self.chosen:
            fits: Callable[[ColumnProfile], bool] = lambda one: is_id(one) and one.distinct == self.rows  # noqa: E731
            found = self._best("slate", fits, named=not self.sample.names_given)
            if found is not None:
                self._choose("slate", found, "it differs in each row, and a row is a slate")
            return
        self._pick("slate", lambda one: is_loose_id(one) and self._size(one) > 1.05, "several rows share it")

    def _size(self, slate: ColumnProfile) -> float:
        """Rows of a session that share a value, on average."""
        return self.rows / max(self._frame(self.chosen["session"], slate).n_unique(), 1)

    def _user(self) -> None:
        if "session" not in self.chosen:
            return
        session = self.chosen["session"]

        def fits(one: ColumnProfile) -> bool:
            by_user = one.values.value_counts(sort=True)
            crowd = by_user["count"][0] / self.rows  # one value for all who are not known
            return is_id(one) and crowd < 0.3 and self._constant(session, one) > MOST

        self._pick("user", fits, "each session has one")

    # ---- responses

    def _responses(self) -> None:
        if {"clicked", "bought"} & set(self.chosen):
            return
        if "mark" in self.options:
            items = self.chosen["items"]
            marks = items.values.explode().drop_nulls().str.split(items.mark).list.last()
            self._rules(marks)
            return
        answers = self._best("response", self._is_response) or self._by_values()
        if answers is None and self._rated():
            return
        if answers is None and "items" in self.chosen:
            raise InputError(
                f"{self.sample.path}: {self.chosen['items'].name} are items that were shown, and no column tells which "
                f"of them were clicked, by their ids; the columns are {self._names()}; add one, or a list of responses "
                "such as skip and click beside the items."
            )
        if answers is None:
            self.options["every"] = "click"
            self.doubts.append("no column tells what people did, so every row counts as a click and nothing as a skip")
            if lasted := [one.name for one in self._free() if DWELL & set(tokens(one.name)) and one.kind != "text"]:
                self.doubts.append(
                    f"{lasted[0]} may tell what people liked: make a column of it that is click from some value on and "
                    "skip below, and there is more to learn"
                )
            return
        values = answers.values
        flat = values.explode() if answers.kind == "list" else values
        self._choose("response", answers, f"its values are {listed(counted(flat))}")
        others = [one.name for one in self._free() if name_score("response", one.name) > 5 and self._is_response(one)]
        if others:
            self.doubts.append(f"{', '.join(others)} may tell of responses, too; one column is read")
        self._rules(flat)

    def _is_response(self, one: ColumnProfile) -> bool:
        values = one.values.explode() if one.kind == "list" else one.values
        if one.kind == "list" and "items" not in self.chosen:
            return False
        found = [value for value, _ in counted(values)]
        if one.kind in ("integer", "number"):
            return set(found) <= set(NUMBERS) and len(found) > 1
        known = sum(answer_of(value) is not None or value in (*SEEN, *ORGANIC) for value in map(word, found))
        return one.kind in ("flag", "text", "list") and len(found) <= MOST_ANSWERS and 2 * known >= len(found) > 0

    def _by_values(self) -> ColumnProfile | None:
        return next((one for one in self._free() if speaks(one)), None)

    def _rated(self) -> bool:
        """Whether a column of ratings tells what was liked."""
        rated = [one for one in self._free() if RATING & set(tokens(one.name)) and one.kind in ("integer", "number")]
        rated = [one for one in rated if 2 < one.distinct <= MOST_ANSWERS and float(one.values.min()) >= 0]  # type: ignore[arg-type]
        if not rated:
            return False
        column = rated[0]
        least = WELL_RATED * float(column.values.max())  # type: ignore[arg-type]
        texts = [value for value, _ in counted(self.sample.frame[column.name].cast(pl.String))]
        self._choose("response", column, f"ratings, such as {', '.join(sorted(texts)[-3:])}")
        self.options["responses"] = {text: "click" if float(text) >= least else "skip" for text in sorted(texts)}
        self.doubts.append(
            f"a {column.name} of {least:g} or more counts as liked, a lower one as skipped, and what nobody rated is "
            "not known"
        )
        return True

    def _rules(self, values: pl.Series) -> None:
        counts = counted(values)
        if {value for value, _ in counts} <= {"skip", "click", "buy"}:
            return
        slates = "items" in self.chosen or "slate" in self.chosen or "propensity" in self.chosen
        rules, unknown = response_rules([value for value, _ in counts], slates or self._placed())
        for value in unknown:
            self.reasons[f"responses.{value}"] = "not a word that is known: its rows are left out"
        rows = dict(counts)
        lost = sum(rows[value] for value in unknown)
        liked = {"click", "buy"} & {rule.split(":")[-1] for rule in rules.values()}
        if lost > UNKNOWN_SHARE * len(values) or (unknown and not liked):
            column = self.chosen.get("response", self.chosen.get("items"))
            raise InputError(
                f"{self.sample.path}, column {column.name if column else ''}: it is not clear which values are a skip, "
                f"a click or a purchase among {listed(counts)}; say so in a TOML file and pass that with --mapping."
            )
        if unknown:
            told = ", ".join(f"{value} ({rows[value]:,} rows)" for value in unknown)
            self.doubts.append(f"what {told} means is not known: these rows are left out")
        self.options["responses"] = rules

    def _placed(self) -> bool:
        return self._best("position", is_place) is not None

    # ---- order, categories

    def _order(self) -> None:
        """A step in place of a time that stands still within sessions, or is not there."""
        if "session" not in self.chosen or self.chosen.get("slate") is self.chosen["session"]:
            return
        session, time = self.chosen["session"], self.chosen.get("time")
        if time is not None and self._constant(session, time) < MOST:
            self._unit(time)
            return
        if time is not None and "step" not in self.sample.frame.columns and self._largest(session) == 1:
            self._unit(time)
            return
        step = self._best("step", lambda one: one.kind == "integer" and self._constant(session, one) < MOST)
        if step is not None:
            self._choose("step", step, "it counts within sessions" + (f", while {time.name} stands" if time else ""))
            self.chosen.pop("time", None)
        elif time is not None:
            self._unit(time)
        elif (slate := self.chosen.get("slate")) is not None and slate.kind == "integer":
            self.chosen["step"] = self.chosen.pop("slate")
            self.reasons["step"] = "rows of a session that share it are a slate, and it counts"
        else:
            raise InputError(
                f"{self.sample.path}: no column tells what came first, as a time or a step does; the columns are "
                f"{self._names()}; name it in a TOML file and pass that with --mapping."
            )

    def _together(self) -> None:
        """Rows of a session with the same time are a slate where the log has skips or places, and no item twice."""
        time, session, item = (self.chosen.get(role) for role in ("time", "session", "item"))
        answers = set(self.options.get("responses", {}).values())
        if "slate" in self.chosen or time is None or session is None or item is None or time is session:
            return
        if not ("position" in self.chosen or "skip" in answers) or only_days(time):
            return
        rows = self._frame(session, time, item)
        groups = rows.group_by("c0", "c1").agg(pl.len(), pl.col("c2").n_unique().alias("own"))
        shared = groups.filter(pl.col("len") > 1)
        if shared["len"].sum() > 0.5 * self.rows and (shared["len"] == shared["own"]).mean() > MOST:  # type: ignore[operator]
            self._choose("slate", time, "rows of a session with the same time were shown together")

    def _unit(self, time: ColumnProfile) -> None:
        if time.time_unit not in ("", "s"):
            self.options["time_unit"] = time.time_unit
        if time.time_format:
            self.options["time_format"] = time.time_format

    def _facts_about_items(self) -> None:
        if "time" in self.chosen:
            self._unit(self.chosen["time"])
        item = self.chosen.get("item")
        if item is not None and self._pick(
            "category", lambda one: one.kind in ("integer", "text", "list") and self._of(item, one), "each item has one"
        ):
            given = self.sample.frame[self.chosen["category"].name]
            listed = given.dtype == pl.List
            if not listed and (found := tags.separator_in(given.cast(pl.String), CATEGORY_SEPARATORS, tags.MOSTLY)):
                self.options["category_separator"] = found
            if listed or "category_separator" in self.options:
                self.reasons["category"] = "by its name, and each item has the same several, the main one first"
        slate = [self.chosen[role] for role in ("session", "slate", "time") if role in self.chosen]

        def of_request(one: ColumnProfile) -> bool:
            return one.kind in ("text", "integer") and one.distinct > 1 and self._constant_in(slate, one) > MOST

        if slate:
            self._pick("request_category", of_request, "each request has one")

    def _of(self, item: ColumnProfile, one: ColumnProfile) -> bool:
        given = self.sample.frame[one.name]
        if given.dtype == pl.List:  # in any order, as where a log is read
            given = pl.DataFrame({"x": given}).select(tags.as_set(tags.cleaned(pl.col("x"))))["x"]
        return self._constant(item, replace(one, values=given)) >= 1.0 and one.filled > MOST

    def _ignore(self) -> None:
        """A canonical name that the contents do not bear out is not to be taken by its name."""
        used = {column.name for column in self.chosen.values()}
        canonical = {
            CANONICAL.get(role, role) for role in ROLES if role not in ("items", "clicked", "bought", "history")
        }
        others = [name for name in self.sample.frame.columns if name in canonical and name not in used]
        if others:
            self.options["ignore"] = others
            self.doubts.append(f"{', '.join(others)} is not read: its contents are not what its name says")

    def _mixed_ids(self) -> None:
        """Ids some of which look like numbers are read as text, all of them."""
        for role in ("session", "item"):
            column = self.chosen.get(role)
            if column is not None and column.kind == "text" and column.values.str.contains(r"^-?\d+$").any():
                self.options["string_ids"] = True
                self.doubts.append(f"some values of {column.name} are numbers and some are not: all are read as texts")

    # ---- helpers

    @property
    def rows(self) -> int:
        return self.sample.frame.height

    def _names(self) -> str:
        return ", ".join(self.sample.frame.columns)

    def _frame(self, *columns: ColumnProfile) -> pl.DataFrame:
        return pl.DataFrame({f"c{place}": column.values for place, column in enumerate(columns)})

    def _largest(self, key: ColumnProfile) -> int:
        return int(key.values.value_counts()["count"].max())  # type: ignore[arg-type]

    def _constant(self, key: ColumnProfile, one: ColumnProfile) -> float:
        return self._constant_in([key], one)

    def _constant_in(self, keys: Sequence[ColumnProfile], one: ColumnProfile) -> float:
        """The share of the groups of several rows in which a column has one value; 1 where there are none."""
        frame = self._frame(one, *keys).filter(pl.col("c0").is_not_null())
        groups = frame.group_by(pl.exclude("c0")).agg(pl.len(), pl.col("c0").n_unique().alias("own"))
        several = groups.filter(pl.col("len") > 1)
        return float((several["own"] == 1).mean()) if several.height else 1.0  # type: ignore[arg-type]

    def _whole(self) -> Proposal:
        names = {role: self.chosen[role].name for role in ORDER if role in self.chosen}
        responses = self.options.pop("responses", None)
        options = self.options | {"map": names} | ({"responses": responses} if responses else {})
        reasons = [Choice(role, name, self.reasons[role]) for role, name in names.items()]
        values = [
            Choice(f"responses.{value}", rule, self.reasons.get(f"responses.{value}", "by its word"))
            for value, rule in (responses or {}).items()
        ]
        return Proposal(options, (*reasons, *values), tuple(self.doubts))


def _chosen_among(lists: Sequence[ColumnProfile]) -> tuple[ColumnProfile | None, ColumnProfile | None]:
    """Lists of items in view and of those that were chosen among them, whatever they are called."""
    for shown in sorted(lists, key=_length, reverse=True):
        inside = [one for one in lists if one is not shown and share_inside(one, shown) > MOST]
        inside = [one for one in inside if 0 < _length(one) < _length(shown)]
        if inside:
            by_name = max(inside, key=lambda one: name_score("clicked", one.name))
            return shown, by_name if name_score("clicked", by_name.name) > 0 else min(inside, key=_length)
    return None, None


def _past(one: ColumnProfile) -> bool:
    return name_score("history", one.name) > name_score("items", one.name)


def _length(one: ColumnProfile) -> float:
    return float(one.values.list.len().mean() or 0)  # type: ignore[arg-type]
