"""Items, sessions, slates, users, and what came first: the columns that group and order the rows of a log."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from bcd4rec.data.nesting import PLUS
from bcd4rec.data.proposals.choosing import Choosing, Fits
from bcd4rec.data.proposals.hints import only_days, own_names, speaks
from bcd4rec.data.proposals.profiles import (
    MOST,
    ColumnProfile,
    is_id,
    is_loose_id,
    is_one_id,
    is_place,
    is_repeating,
    is_time,
    runs,
)
from bcd4rec.data.proposals.words import PART, name_score

SPARSE = 0.05  # of the rows have an item, at least, where others are views of other pages
FEW = 3  # items; a column of more that is called an item, too, is more likely one
LARGEST_SLATE, ONE_OR_TWO = 100, 0.9
LEAST_USERS = 10
MOST_RUNS = 1.3  # of the rows of a slate, in the order of time
SEVERAL = 0.5  # of the numbers of visits, for them to begin anew with each user
ROLE_IDS = ("session", "user", "item", "slate", "category")  # a number that is called so is no time
SEPARATE = ("session", "user", "slate", "time")  # what is called so is no item


def choose_time(made: Choosing) -> None:
    if made.pick("time", lambda one: is_time(one) and one.filled > MOST, "it holds times"):
        return
    clocks = [one for one in made.free() if one.kind == "time" and one.filled > MOST]
    others = [
        one for one in made.free() if one.clock_like and max(name_score(role, one.name) for role in ROLE_IDS) <= 0
    ]
    found = next(iter([*clocks, *others]), None)
    if found is not None:
        made.choose("time", found, "it holds times")


def choose_groups(made: Choosing) -> None:
    if "items" not in made.chosen:
        _item(made)
    _session(made)
    _slate(made)
    _user(made)


def _item(made: Choosing) -> None:
    named = made.best("item", lambda one: one.an_id and not speaks(one))
    named = named or made.best("item", lambda one: is_one_id(one) and not speaks(one))
    if named is None or name_score("item", named.name) <= PART:
        named = made.best("item", _is_sparse) or named
    if named is not None and named.distinct <= FEW:
        more = made.best("item", lambda one: one.an_id and one.distinct > 10 * FEW and not speaks(one))
        named = more or named
    if named is not None:
        made.choose("item", named, "by its name, and it holds ids")
        if named.filled <= MOST:
            made.options["drop_without_item"] = True
            empty = named.values.null_count()
            made.doubts.append(
                f"{100 * empty / made.rows:.0f} % of the rows have no {named.name}, as views of other pages have "
                "none: they are left out"
            )
        return
    ids = [one for one in made.free() if one.an_id and not one.fractions and own_names(one) <= 0 and one.distinct > 2]
    ids = [one for one in ids if not _named(one, SEPARATE)]
    ids = [one for one in ids if one.distinct < 0.9 * made.rows and runs(one) > 1.5 * one.distinct]
    if not ids:
        raise made.refuse("no column looks like items that were shown more than once")
    made.choose("item", max(ids, key=lambda one: one.distinct), "ids that return in other places of the file")


def _named(one: ColumnProfile, roles: Sequence[str]) -> bool:
    return any(name_score(role, one.name) > PART for role in roles)


def _is_sparse(one: ColumnProfile) -> bool:
    return is_loose_id(one) and one.filled > SPARSE and not speaks(one) and name_score("item", one.name) > PART


def _session(made: Choosing) -> None:
    for role, why in (
        ("session", "by its name"),
        ("user", "whose rows they are; no column tells visits apart, so all of a user's rows are one session"),
        ("slate", "a request; nothing tells which requests belong together, so each is a session of its own"),
    ):
        fits = {"user": _is_user, "slate": is_id if "items" in made.chosen else is_repeating}.get(role, is_id)
        found = made.best(role, fits) or (made.best(role, is_one_id) if role == "session" else None)
        if found is not None:
            made.choose("session", found, why)
            if role == "user" and "time" in made.chosen and not only_days(made.chosen["time"]):
                made.doubts.append(
                    f"all rows of a {found.name} are one session; session_gap = 30 in the mapping would end it at "
                    "pauses of 30 minutes"
                )
            if role == "slate":
                made.choose("slate", found, "the same column: a request is a session here")
            return
    found = _contiguous(made)
    if found is not None:
        made.choose("session", found, "ids that return, most of them in neighbouring rows")
    elif "propensity" in made.chosen or "items" in made.chosen:
        made.options["row_sessions"] = True
        made.doubts.append("no column tells sessions apart, so each row is a session of its own")
    else:
        raise made.refuse("no column looks like a session, a visit or a user")


def _is_user(one: ColumnProfile) -> bool:
    """A column of few values is a kind of user or device."""
    return is_id(one) and one.distinct >= min(LEAST_USERS, len(one.values) // 10)


def _contiguous(made: Choosing) -> ColumnProfile | None:
    ids = [one for one in made.free() if one.an_id and not one.fractions and own_names(one) <= 0 and one.distinct >= 5]
    ids = [one for one in ids if one.distinct < 0.9 * made.rows]
    if "items" not in made.chosen:
        ids = [one for one in ids if runs(one) <= 1.2 * one.distinct]
    return max(ids, key=lambda one: one.distinct, default=None)


def _slate(made: Choosing) -> None:
    if "slate" in made.chosen or "session" not in made.chosen:
        return
    if "items" in made.chosen:
        differs: Fits = lambda one: is_id(one) and one.distinct == made.rows  # noqa: E731
        found = made.best("slate", differs, named=not made.sample.names_given)
        if found is not None:
            made.choose("slate", found, "it differs in each row, and a row is a slate")
        return
    session = made.chosen["session"]

    def fits(one: ColumnProfile) -> bool:
        return is_loose_id(one) and made.size(session, one) > 1.05 and _in_one_go(made, session, one)

    made.pick("slate", fits, "several rows share it")


def _in_one_go(made: Choosing, session: ColumnProfile, slate: ColumnProfile) -> bool:
    """Whether the rows of a slate follow each other: numbers that begin anew later in a session tell no slates."""
    time = made.chosen.get("time")
    keys = [session, *([time] if time is not None else []), slate]
    rows = made.frame(*keys).with_row_index("n").sort("c0", *(["c1"] if time is not None else []), "n")
    pairs = rows.select("c0", f"c{len(keys) - 1}").drop_nulls()
    runs_of_pairs = int(pairs.select(pl.struct(pl.all()).rle_id().max()).item() or 0) + 1
    return runs_of_pairs <= MOST_RUNS * pairs.n_unique()


def _user(made: Choosing) -> None:
    if "session" not in made.chosen:
        return
    session = made.chosen["session"]

    def fits(one: ColumnProfile) -> bool:
        crowd = one.values.value_counts(sort=True)["count"][0] / made.rows  # one value for all who are not known
        return is_id(one) and crowd < 0.3 and made.constant(session, one) > MOST

    if not made.pick("user", fits, "each session has one"):
        _visits_of_users(made, session)


def _visits_of_users(made: Choosing, session: ColumnProfile) -> None:
    """Numbers of visits that begin anew with each user are sessions only together with the user."""
    user = made.best("user", is_id)
    if user is None or session.kind != "integer" or made.share_with_several(session, user) < SEVERAL:
        return
    both = pl.concat_str([user.values.cast(pl.String), session.values.cast(pl.String)], separator="-")
    joined = replace(session, name=f"{user.name}{PLUS}{session.name}", kind="text", values=pl.select(both).to_series())
    made.columns.append(joined)
    made.choose("session", joined, "several users have the same number, so a user's are told apart")
    made.choose("user", user, "by its name")


# ---- order


def choose_order(made: Choosing) -> None:
    """A time that moves within sessions, a step, a place that counts in them, or the order of the rows."""
    if "session" not in made.chosen or made.chosen.get("slate") is made.chosen["session"]:
        return
    session, time = made.chosen["session"], made.chosen.get("time")
    largest = int(session.values.value_counts()["count"].max())  # type: ignore[arg-type]
    if time is not None and (made.constant(session, time) < MOST or largest == 1):
        return
    step = made.best("step", lambda one: one.kind == "integer" and made.constant(session, one) < MOST)
    stands = f", while {time.name} stands" if time is not None else ""
    if step is not None:
        made.choose("step", step, f"it counts within sessions{stands}")
    elif "slate" not in made.chosen and (place := _counting(made, session)) is not None:
        made.chosen.pop("position", None)
        made.choose("step", place, f"it counts the rows of a session{stands}")
    elif time is None:
        _no_time(made, session)
        return
    if "step" in made.chosen:
        made.chosen.pop("time", None)


def _counting(made: Choosing, session: ColumnProfile) -> ColumnProfile | None:
    places = [made.chosen["position"]] if "position" in made.chosen else []
    places += [one for one in made.free() if is_place(one) and name_score("position", one.name) >= PART]
    return next((one for one in places if made.apart(session, one)), None)


def _no_time(made: Choosing, session: ColumnProfile) -> None:
    slate = made.chosen.get("slate")
    if slate is not None and slate.kind == "integer":
        made.chosen["step"] = made.chosen.pop("slate")
        made.reasons["step"] = "rows of a session that share it are a slate, and it counts"
    elif slate is None and _is_slate(made, session):
        made.choose("slate", session, "the same column: no time is told, and its few rows look like one slate")
    elif "items" not in made.chosen or not made.options.get("row_sessions"):
        made.options["row_order"] = True
        made.doubts.append("no column tells what came first, so the rows are taken to stand in the order of time")


def _is_slate(made: Choosing, session: ColumnProfile) -> bool:
    """Whether the rows of a session are one slate: different items, of which one or two are liked."""
    answers, item = made.chosen.get("response"), made.chosen.get("item")
    rules = made.options.get("responses", {})
    if answers is None or item is None or "skip" not in rules.values():
        return False
    liked = made.sample.frame[answers.name].cast(pl.String).replace_strict(rules, default="skip") != "skip"
    groups = pl.DataFrame({"s": session.values, "liked": liked}).group_by("s").agg(pl.len(), pl.col("liked").sum())
    chosen = float(groups["liked"].is_between(1, 2).mean() or 0)  # type: ignore[arg-type]
    sizes = groups["len"]
    return made.apart(session, item) and 1 < float(sizes.mean()) <= LARGEST_SLATE and chosen > ONE_OR_TWO  # type: ignore[arg-type]


def choose_moments(made: Choosing) -> None:
    """Rows of a session with the same time are a slate where the log has skips or places, and no item twice."""
    time, session, item = (made.chosen.get(role) for role in ("time", "session", "item"))
    answers = made.options.get("responses", {})
    if "slate" in made.chosen or time is None or session is None or item is None or time is session:
        return
    flags = {"clicked", "bought"} & set(made.chosen)
    if not ("position" in made.chosen or "skip" in answers.values() or flags) or only_days(time):
        return
    rows = made.frame(session, time, item)
    if made.options.get("attribution"):
        rows = rows.filter(_shown(made, answers))
    if _are_slates(rows):
        made.choose("slate", time, "rows of a session with the same time were shown together")
        return
    position = made.chosen.get("position")
    if position is None or made.options.get("attribution"):
        return
    places = made.frame(session, position, item)
    again = (pl.col("c1") <= pl.col("c1").shift().over("c0")).fill_null(False)
    if _are_slates(places.with_columns(again.cast(pl.Int64).cum_sum().over("c0").alias("c1"))):
        made.options["slates_by_position"] = True
        made.doubts.append(f"no column tells slates apart: one ends where {position.name} begins anew")


def _are_slates(rows: pl.DataFrame) -> bool:
    """Whether most rows share session (c0) and slate (c1) with others, and no item (c2) stands in a slate twice."""
    groups = rows.group_by("c0", "c1").agg(pl.len(), pl.col("c2").n_unique().alias("own"))
    shared = groups.filter(pl.col("len") > 1)
    return bool(shared["len"].sum() > 0.5 * rows.height and (shared["len"] == shared["own"]).mean() > MOST)  # type: ignore[operator]


def _shown(made: Choosing, answers: dict[str, str]) -> pl.Series:
    """The rows of a stream of events that say what was shown."""
    told = made.sample.frame[made.chosen["response"].name].cast(pl.String)
    rules = answers or {one: one for one in ("skip", "click", "buy")}
    return told.replace_strict(rules, default="", return_dtype=pl.String) == "skip"
