"""What the columns of an unknown log may mean: a proposal with a reason for each choice, by names and by contents."""

from dataclasses import replace

import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.proposals.answers import choose_attribution, choose_responses
from bcd4rec.data.proposals.choosing import Choosing
from bcd4rec.data.proposals.groups import choose_groups, choose_moments, choose_order, choose_time
from bcd4rec.data.proposals.hints import spread_events, spread_lists
from bcd4rec.data.proposals.profiles import MOST, ColumnProfile, is_place, is_propensity, profile
from bcd4rec.data.proposals.proposal import Choice, LogSample, Proposal
from bcd4rec.data.proposals.sampling import DIGINETICA
from bcd4rec.data.proposals.slates import choose_lists
from bcd4rec.data.proposals.words import CANONICAL, ROLES
from bcd4rec.errors import InputError

TRIVAGO = {"session_id", "timestamp", "step", "action_type", "reference", "impressions"}
CATEGORY_SEPARATORS = "|;/>"
WITH_IDS = ("session", "item", "user", "position", "step")  # which may have become fractions


def propose(sample: LogSample) -> Proposal:
    """Which column is what; `InputError` where no log can be seen in the file."""
    if (sample.path / DIGINETICA).is_file():
        why = f"the folder has {DIGINETICA}, as the CIKM Cup 2016 had"
        return Proposal({"format": "diginetica"}, (Choice("format", "diginetica", why),))
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
    made = Choosing(sample, columns)
    _file(made)
    choose_lists(made)
    made.pick("propensity", is_propensity, "its values are between 0 and 1")
    choose_time(made)
    choose_groups(made)
    choose_responses(made)
    choose_attribution(made)
    if "items" not in made.chosen:
        made.pick("position", is_place, "whole numbers from 0 or 1")
    choose_order(made)
    choose_moments(made)
    _time_unit(made)
    _facts_about_items(made)
    _clicks_only(made)
    _ignore(made)
    _ids(made)
    return made.whole()


def _file(made: Choosing) -> None:
    made.options["repeats"] = "merge"  # which most logs of events have, few of them in the first rows
    if made.sample.names_given:
        made.options["columns"] = [column.name for column in made.columns]
        made.doubts.append("the file has no header, so the columns have numbers; rename them as you like")
    if made.sample.nested:
        made.options["nested"] = made.sample.nested
    if made.sample.delimiter not in ("", ",", "\t"):
        made.options["delimiter"] = made.sample.delimiter


def _time_unit(made: Choosing) -> None:
    time = made.chosen.get("time")
    if time is not None and time.time_unit not in ("", "s"):
        made.options["time_unit"] = time.time_unit
    if time is not None and time.time_format:
        made.options["time_format"] = time.time_format


def _facts_about_items(made: Choosing) -> None:
    item = made.chosen.get("item")
    if item is not None and made.pick("category", lambda one: _of(made, item, one), "each item has one"):
        given = made.sample.frame[made.chosen["category"].name]
        listed = given.dtype == pl.List
        if not listed and (found := tags.separator_in(given.cast(pl.String), CATEGORY_SEPARATORS, tags.MOSTLY)):
            made.options["category_separator"] = found
        if listed or "category_separator" in made.options:
            made.reasons["category"] = "by its name, and each item has the same several, the main one first"
    slate = [made.chosen[role] for role in ("session", "slate", "time") if role in made.chosen]

    def of_request(one: ColumnProfile) -> bool:
        return one.kind in ("text", "integer") and one.distinct > 1 and made.constant_in(slate, one) > MOST

    if slate:
        made.pick("request_category", of_request, "each request has one")


def _of(made: Choosing, item: ColumnProfile, one: ColumnProfile) -> bool:
    if one.kind not in ("integer", "text", "list") or (one.kind != "list" and set(one.values.drop_nulls()) <= {0, 1}):
        return False
    given = made.sample.frame[one.name]
    if given.dtype == pl.List:  # in any order, as where a log is read
        given = pl.DataFrame({"x": given}).select(tags.as_set(tags.cleaned(pl.col("x"))))["x"]
    one_of = replace(one, values=given)
    told = made.frame(item, one_of).filter(pl.col("c0").is_not_null())["c1"]
    return told.null_count() < (1 - MOST) * len(told) and told.n_unique() > 1 and made.constant(item, one_of) >= 1.0


def _clicks_only(made: Choosing) -> None:
    """Where nothing says what was shown beside what was chosen, nothing was shown together."""
    answers = set(made.options.get("responses", {}).values()) or {made.options.get("every", "skip")}
    if "skip" in answers or {"items", "propensity", "clicked", "bought"} & set(made.chosen) or made.sample.files:
        return
    if made.chosen.get("slate") not in (None, made.chosen.get("session")):
        del made.chosen["slate"]


def _ignore(made: Choosing) -> None:
    """A canonical name that the contents do not bear out is not to be taken by its name."""
    used = {column.name for column in made.chosen.values()}
    canonical = {CANONICAL.get(role, role) for role in ROLES if role not in ("items", "clicked", "bought", "history")}
    others = [name for name in made.sample.frame.columns if name in canonical and name not in used]
    if others:
        made.options["ignore"] = others
        made.doubts.append(f"{', '.join(others)} is not read: its contents are not what its name says")


def _ids(made: Choosing) -> None:
    """Ids some of which look like numbers are read as text, all of them; those that became fractions as numbers."""
    for role in ("session", "item"):
        column = made.chosen.get(role)
        if column is not None and column.kind == "text" and column.values.str.contains(r"^-?\d+$").any():
            made.options["string_ids"] = True
            made.doubts.append(f"some values of {column.name} are numbers and some are not: all are read as texts")
    fractions = [made.chosen[role].name for role in WITH_IDS if role in made.chosen and made.chosen[role].fractions]
    if fractions:
        made.options["whole_ids"] = True
        made.doubts.append(f"whole numbers that are written as 17.0 are read as 17 ({', '.join(fractions)})")
