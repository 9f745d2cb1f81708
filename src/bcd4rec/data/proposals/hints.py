"""What a column hints at by its name and its values together, for `data.proposing`."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from bcd4rec.data.nesting import inside, numbered, unnested, with_lists
from bcd4rec.data.proposals.profiles import ColumnProfile, is_time, profile
from bcd4rec.data.proposals.proposal import LogSample
from bcd4rec.data.proposals.rules import counted, word
from bcd4rec.data.proposals.words import SEEN, answer_of, name_score, tokens

MOST_ANSWERS = 40  # values of a response column
FEW_ANSWERS = 5  # values that may be codes for responses
MOSTLY_KNOWN = 0.8  # of the rows have a word for a response
SAME_ITEMS = 0.2  # share of the items of the first place that the second place shows, too


def spread_lists(sample: LogSample) -> LogSample:
    """The sample with lists in place of columns such as item_1, item_2, where these are items that were shown."""
    groups = numbered(sample.frame.columns)
    named = [name for name in groups if max(name_score(role, name) for role in ("item", "items")) > 0]
    shown = [name for name in named if _same_ids(sample.frame, groups[name])]
    if len(shown) != 1:
        return sample
    wanted = [name for name, own in groups.items() if len(own) == len(groups[shown[0]])]
    frame, _ = with_lists(sample.frame.lazy(), sample.frame.columns, wanted)
    return replace(sample, frame=frame.collect().drop(one for name in wanted for one in groups[name]))


def spread_events(sample: LogSample) -> LogSample:
    """The sample with a row for each event where the file has one for each session, and the events have times."""
    dtypes = sample.frame.schema
    lists = [name for name, dtype in dtypes.items() if dtype == pl.List]
    for nested in dict.fromkeys(name.partition(".")[0] for name in lists if "." in name):
        own = inside(dtypes, nested)
        if not any(name_score("time", name.rpartition(".")[2]) > 0 for name in own) or not set(own) <= set(lists):
            continue
        rows = unnested(sample.frame.lazy(), sample.frame.columns, nested).head(sample.frame.height * 10).collect()
        if rows.height > sample.frame.height and any(is_time(profile(rows[name])) for name in own):
            return replace(sample, frame=rows, nested=nested)
    return sample


def _same_ids(frame: pl.DataFrame, columns: Sequence[str]) -> bool:
    first, second = (frame[name].cast(pl.String).drop_nulls().unique() for name in columns[:2])
    several = len(first) > 2 and len(second) > 2
    return several and float(first.is_in(second.implode()).mean() or 0) > SAME_ITEMS  # type: ignore[arg-type]


def speaks(one: ColumnProfile) -> bool:
    """Whether nearly all values of a column are words for responses, whatever its name."""
    if one.kind not in ("flag", "text") or one.distinct > MOST_ANSWERS:
        return False
    counts = [(word(value), count) for value, count in counted(one.values)]
    known = {value: count for value, count in counts if answer_of(value) or set(tokens(value)) & set(SEEN)}
    rows = sum(count for _, count in counts)
    return len(known) > 1 and sum(known.values()) > MOSTLY_KNOWN * rows and 2 * len(known) > len(counts)


def only_days(time: ColumnProfile) -> bool:
    return time.values.dtype == pl.Date or (
        time.values.dtype == pl.String and bool((time.values.drop_nulls().str.len_chars() <= 10).all())
    )


def tells_else(one: ColumnProfile) -> bool:
    """Whether a list stands beside one of items and says something about each, as `shown.clicked` does."""
    last = one.name.rpartition(".")[2]
    others = ("response", "position", "category", "propensity", "time", "clicked", "bought")
    return last != one.name and name_score("item", last) < max(name_score(role, last) for role in others)


def own_names(one: ColumnProfile) -> float:
    """How well a name says that a column is something else than an id of sessions or items: a label of many values is
    no response."""
    answers = ("response",) if speaks(one) or one.distinct <= FEW_ANSWERS else ()
    return max(name_score(role, one.name) for role in ("position", "category", "request_category", "step", *answers))
