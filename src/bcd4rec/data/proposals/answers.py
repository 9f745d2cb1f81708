"""What people did: which column, flags, marks or files tell it, what each value means, and whether clicks are rows."""

from collections.abc import Sequence

import polars as pl

from bcd4rec.data.proposals.choosing import FILE, Choosing
from bcd4rec.data.proposals.hints import MOST_ANSWERS, speaks
from bcd4rec.data.proposals.profiles import MOST, ColumnProfile, is_place, is_time
from bcd4rec.data.proposals.rules import counted, listed, response_rules, word
from bcd4rec.data.proposals.words import (
    DWELL,
    HEAD,
    NUMBERS,
    ORGANIC,
    PART,
    RATING,
    SEEN,
    answer_of,
    name_score,
    speaks_against,
    tokens,
)
from bcd4rec.errors import InputError

BASKETS = {"order", "orderid", "cart", "basket", "transaction", "transactionid", "receipt", "invoice", "ticket"}
MOSTLY_ALIKE = 0.5  # of the sessions have one value, for a column to tell of sessions and not of items
UNKNOWN_SHARE = 0.5  # of the rows, from which on values without a meaning are no side issue
WELL_RATED = 0.75  # of the best rating, from which on a thing counts as liked
ANSWERING = 0.8  # of the liked items, from which on they are answers to rows above
CROWD, ALONE = 0.5, 0.1  # of what was shown, beside others of the moment; of the answers, beside something shown


def choose_responses(made: Choosing) -> None:
    if made.sample.files:
        made.options["files"] = dict(made.sample.files)
        made.choose("response", next(one for one in made.columns if one.name == FILE), "by the names of files")
        return
    if {"clicked", "bought"} & set(made.chosen):
        return
    if "mark" in made.options:
        items = made.chosen["items"]
        _rules(made, items.values.explode().drop_nulls().str.split(items.mark).list.last())
        return
    if "items" not in made.chosen and _yes_and_no(made):
        return
    answers = made.best("response", lambda one: _is_response(made, one)) or _by_values(made)
    if answers is not None:
        _by_column(made, answers)
    elif not (_rated(made) or _against(made) or _only_flag(made)):
        _nothing_told(made)


def _yes_and_no(made: Choosing) -> bool:
    """Whether two columns tell clicks and purchases apart."""
    found = {role: _when(made, role) or made.best(role, _is_flag) for role in ("clicked", "bought")}
    told = {role: one for role, one in found.items() if one is not None}
    if len({one.name for one in told.values()}) < 2 and not any(_is_moment(one) for one in told.values()):
        return False
    for role, one in told.items():
        made.choose(role, one, f"by its name, and it {'is empty or a time' if _is_moment(one) else 'says yes or no'}")
    return True


def _when(made: Choosing, role: str) -> ColumnProfile | None:
    """A column such as clicked_at, whose last word is a time."""
    moments = {one.name: one for one in made.free() if _is_moment(one)}
    scores = {name: name_score(role, "_".join(tokens(name)[:-1])) for name in moments}
    best = max(scores, key=lambda name: scores[name], default="")
    return moments[best] if scores.get(best, 0) > PART else None


def _is_moment(one: ColumnProfile) -> bool:
    """When something was done, which is empty where it was not."""
    return is_time(one) and one.filled <= MOST


def _by_column(made: Choosing, answers: ColumnProfile) -> None:
    texts = _texts(made, answers)
    made.choose("response", answers, f"its values are {listed(counted(texts))}")
    others = [one.name for one in made.free() if name_score("response", one.name) > HEAD and _is_response(made, one)]
    if others:
        made.doubts.append(f"{', '.join(others)} may tell of responses, too; one column is read")
    _rules(made, texts)


def _texts(made: Choosing, answers: ColumnProfile) -> pl.Series:
    """The values as the reader sees them; of a slate without items nothing is read."""
    if answers.kind == "list":
        return answers.values.explode()
    texts = made.sample.frame[answers.name].cast(pl.String)
    return texts.filter(made.chosen["items"].values.list.len() > 0) if "items" in made.chosen else texts


def _is_flag(one: ColumnProfile) -> bool:
    plain = one.kind in ("flag", "integer", "number", "text") and one.distinct <= 2
    values = {word(value) for value, _ in counted(one.values)} if plain else set()
    return len(values) == 2 and values <= {"0", "1", "true", "false", "yes", "no", "y", "n", "t", "f"}


def _is_response(made: Choosing, one: ColumnProfile) -> bool:
    if one.kind == "list" and "items" not in made.chosen:
        return False
    found = [value for value, _ in counted(one.values.explode() if one.kind == "list" else one.values)]
    if one.kind in ("integer", "number"):
        return set(found) <= set(NUMBERS) and len(found) > 1
    known = sum(answer_of(value) is not None or value in (*SEEN, *ORGANIC) for value in map(word, found))
    return one.kind in ("flag", "text", "list") and len(found) <= MOST_ANSWERS and 2 * known >= len(found) > 0


def _by_values(made: Choosing) -> ColumnProfile | None:
    """A column whose values are words for responses; of a yes and a no only where no column has a name."""
    found = [one for one in made.free() if speaks(one) and speaks_against(one.name) is None]
    return next((one for one in found if made.sample.names_given or not _is_flag(one)), None)


def _rated(made: Choosing) -> bool:
    """Whether a column of ratings tells what was liked."""
    rated = [one for one in made.free() if RATING & set(tokens(one.name)) and one.kind in ("integer", "number")]
    rated = [one for one in rated if 2 < one.distinct <= MOST_ANSWERS and float(one.values.min()) >= 0]  # type: ignore[arg-type]
    if not rated:
        return False
    column = rated[0]
    least = WELL_RATED * float(column.values.max())  # type: ignore[arg-type]
    texts = [value for value, _ in counted(made.sample.frame[column.name].cast(pl.String))]
    made.choose("response", column, f"ratings, such as {', '.join(sorted(texts)[-3:])}")
    made.options["responses"] = {text: "click" if float(text) >= least else "skip" for text in sorted(texts)}
    made.doubts.append(
        f"{column.name} of {least:g} or more counts as liked, less as skipped, and what nobody rated is not known"
    )
    return True


def _against(made: Choosing) -> bool:
    """Whether a column says what was skipped, or not skipped."""
    flags = [(speaks_against(one.name), one) for one in made.free() if _is_flag(one)]
    told = sorted(((against, one) for against, one in flags if against is not None), key=lambda pair: pair[0])
    if not told:
        return False
    against, column = told[0]
    made.choose("response", column, f"by its name a yes is {'a skip' if against else 'no skip'}")
    texts = [value for value, _ in counted(made.sample.frame[column.name].cast(pl.String))]
    made.options["responses"] = {text: "skip" if (answer_of(text) == "click") == against else "click" for text in texts}
    others = [one.name for _, one in told[1:]]
    if others:
        made.doubts.append(f"{', '.join(others)} may tell of responses, too; one column is read")
    return True


def _only_flag(made: Choosing) -> bool:
    """Whether one column alone says yes and no, and not the same of all rows of a session. What is in a basket was
    bought, whatever is said of it."""
    session = made.chosen.get("session")
    flags = [one for one in made.free() if _is_flag(one) and speaks_against(one.name) is None]
    flags = [one for one in flags if session is None or made.constant(session, one) < MOSTLY_ALIKE]
    baskets = session is not None and BASKETS & set(tokens(session.name))
    if "items" in made.chosen or len(flags) != 1 or baskets:
        return False
    _by_column(made, flags[0])
    made.doubts.append(f"{flags[0].name} is the only column of yes and no about items, so a yes counts as liked")
    return True


def _nothing_told(made: Choosing) -> None:
    if "items" in made.chosen:
        raise InputError(
            f"{made.sample.path}: {made.chosen['items'].name} are items that were shown, and no column tells which "
            f"of them were clicked, by their ids; the columns are {', '.join(made.sample.frame.columns)}; add one, or "
            "a list of responses such as skip and click beside the items."
        )
    made.options["every"] = "click"
    made.doubts.append("no column tells what people did, so every row counts as a click and nothing as a skip")
    lasted = [one.name for one in made.free() if DWELL & set(tokens(one.name)) and one.kind != "text"]
    if lasted:
        made.doubts.append(
            f"{lasted[0]} may tell what people liked: make a column of it that is click from some value on and "
            "skip below, and there is more to learn"
        )
    coded = made.best("response", lambda one: 1 < one.distinct < 10 and not name_score("item", one.name))
    if coded is not None and coded.name not in lasted:
        made.doubts.append(f"{coded.name} may tell what people did, but what its values mean is not known")


def _rules(made: Choosing, values: pl.Series) -> None:
    counts = counted(values)
    if {value for value, _ in counts} <= {"skip", "click", "buy"}:
        return
    slates = {"items", "slate", "propensity"} & set(made.chosen) or made.best("position", is_place) is not None
    rules, unknown = response_rules([value for value, _ in counts], bool(slates))
    for value in unknown:
        made.reasons[f"responses.{value}"] = "not a word that is known: its rows are left out"
    rows = dict(counts)
    lost = sum(rows[value] for value in unknown)
    liked = {"click", "buy"} & {rule.split(":")[-1] for rule in rules.values()}
    if lost > UNKNOWN_SHARE * len(values) or (unknown and not liked):
        column = made.chosen.get("response", made.chosen.get("items"))
        raise InputError(
            f"{made.sample.path}, column {column.name if column else ''}: it is not clear which values are a skip, "
            f"a click or a purchase among {listed(counts)}; say so in a TOML file and pass that with --mapping."
        )
    if unknown:
        told = ", ".join(f"{value} ({rows[value]:,} rows)" for value in unknown)
        made.doubts.append(f"what {told} means is not known: these rows are left out")
    made.options["responses"] = rules


# ---- clicks that are rows of their own


def choose_attribution(made: Choosing) -> None:
    """Whether a click is one more row about an item that a row above says was shown."""
    rules = made.options.get("responses") or {one: one for one in ("skip", "click", "buy")}
    if made.sample.files:
        stream = "skip" in made.sample.files.values()
    else:
        stream = _is_stream(made, {value: rule for value, rule in rules.items() if rule in ("skip", "click", "buy")})
    if stream:
        made.options["attribution"] = True
        made.doubts.append(
            "clicks and purchases are rows of their own: each counts for the last time that its session was shown the "
            "item, and where there is none, as found without a recommendation"
        )


def _is_stream(made: Choosing, rules: dict[str, str]) -> bool:
    answers, session = made.chosen.get("response"), made.chosen.get("session")
    item = made.chosen.get("item", made.chosen.get("items"))
    if answers is None or session is None or item is None or answers.kind == "list":
        return False
    moment = made.chosen.get("slate", made.chosen.get("time"))
    texts = made.sample.frame[answers.name].cast(pl.String)
    rows = pl.DataFrame(
        {
            "session": session.values,
            "item": item.values,
            "moment": moment.values if moment is not None else pl.Series(range(made.rows)),
            "liked": texts.replace_strict(rules, default=None, return_dtype=pl.String) != "skip",
        }
    ).drop_nulls("liked")
    rows = rows.explode("item") if item.kind == "list" else rows
    return any(_answers_rows_above(rows, keys) for keys in (["session", "moment", "item"], ["session", "item"]))


def _answers_rows_above(rows: pl.DataFrame, keys: Sequence[str]) -> bool:
    """Liked items nearly always have a row that says they were shown, which by chance they would not: items are seldom
    shown twice, or what is liked stands alone in its moment while what is shown stands beside others."""
    liked = pl.col("liked")
    pairs = rows.group_by(keys).agg(likes=liked.sum(), shown=(~liked).sum())
    touched, seen = pairs.filter(pl.col("likes") > 0), pairs.filter(pl.col("shown") > 0)
    if not touched.height or not seen.height:
        return False
    answering = float((touched["shown"] > 0).mean())  # type: ignore[arg-type]
    again = float((seen["shown"] > 1).mean())  # type: ignore[arg-type]
    moments = rows.with_columns(
        together=pl.len().over("session", "moment"), beside=(~liked).sum().over("session", "moment")
    )
    crowd = float((moments.filter(~liked)["together"] > 1).mean() or 0)  # type: ignore[arg-type]
    alone = float((moments.filter(liked)["beside"] > 0).mean() or 0)  # type: ignore[arg-type]
    return answering > ANSWERING and (2 * again < answering or (crowd > CROWD and alone < ALONE))
