"""Lists of items, where a row is a slate: which was shown, which of them were clicked, what was before."""

from collections.abc import Sequence

import polars as pl

from bcd4rec.data.proposals.choosing import Choosing
from bcd4rec.data.proposals.hints import tells_else
from bcd4rec.data.proposals.profiles import MOST, ColumnProfile, is_id, share_inside
from bcd4rec.data.proposals.words import name_score


def choose_lists(made: Choosing) -> None:
    """Items, clicks, purchases and a history."""
    lists = [one for one in made.columns if one.kind == "list" and not name_score("category", one.name)]
    marked = next((one for one in lists if one.mark), None)
    if marked is not None:
        made.choose("items", marked, f"a list of items with what was done, such as {marked.values.explode()[0]}")
        made.options["mark"] = marked.mark
    else:
        _shown(made, lists)
    shown = made.chosen.get("items")
    if shown is None:
        return
    if shown.separator:
        made.options["list_separator"] = shown.separator
    flags = {role: made.best(role, lambda one: _yes_or_no(made, one)) for role in ("clicked", "bought")}
    for role, flag in flags.items():
        if None not in flags.values() and flag is not None:  # one alone is a list of responses
            made.choose(role, flag, "by its name, and it says yes or no for each item")
        elif role not in made.chosen:
            _touched_of(made, role, shown)
    kinds = [one for one in _beside(made, shown) if name_score("category", one.name.rpartition(".")[2]) > 0]
    if kinds:
        made.choose("category", kinds[0], "it stands beside the items, and each item has one")
    past = made.best("history", lambda one: one in lists) or next(
        (one for one in made.free() if made.sample.names_given and one in lists), None
    )
    if past is not None:
        made.choose("history", past, "a list of items beside those in view, which was there before")


def _touched_of(made: Choosing, role: str, shown: ColumnProfile) -> None:
    """Items among those in view, or their places."""
    inside = made.best(role, lambda one: one.kind != "flag" and share_inside(one, shown) > 0.5)
    if inside is not None:
        made.choose(role, inside, "by its name, and its values are among the items in view")
        return
    places = [one for one in made.free() if name_score(role, one.name) > 0 and _is_place_in(one, shown)]
    if places:
        most = int(shown.values.list.len().max())  # type: ignore[arg-type]
        made.options["places_from"] = int(int(places[0].values.max()) >= most)  # type: ignore[arg-type]
        made.choose(role, places[0], "by its name, and it holds places in the list")


def _yes_or_no(made: Choosing, one: ColumnProfile) -> bool:
    return made.sample.frame[one.name].dtype == pl.List(pl.Boolean)


def _is_place_in(one: ColumnProfile, shown: ColumnProfile) -> bool:
    if one.kind != "integer":
        return False
    low, high, most = int(one.values.min()), int(one.values.max()), int(shown.values.list.len().max())  # type: ignore[arg-type]
    return low >= -1 and most - 1 <= high <= most and one.distinct > 2


def _beside(made: Choosing, shown: ColumnProfile) -> list[ColumnProfile]:
    """Lists that say one thing of each item, always the same, as `shown.category` does beside `shown.item`."""
    prefix = shown.name.rpartition(".")[0]
    beside = [one for one in made.free() if prefix and one.kind == "list" and one.name.startswith(f"{prefix}.")]
    beside = [one for one in beside if (one.values.list.len() == shown.values.list.len()).all()]
    pairs = {one.name: made.frame(shown, one).explode("c0", "c1").drop_nulls().unique() for one in beside}
    same = [name for name, rows in pairs.items() if rows.height == rows["c0"].n_unique() > rows["c1"].n_unique() > 1]
    return [one for one in beside if one.name in same]


def _shown(made: Choosing, lists: Sequence[ColumnProfile]) -> None:
    """By a name, by another list that holds some of the same row, or as the only list where no column is an item."""
    others = [one for one in lists if not (tells_else(one) or _past(one) or _touched(one))]
    shown = made.best("items", lambda one: one in others)
    if shown is not None:
        made.choose("items", shown, "by its name, and it holds lists: a row is a slate")
        return
    shown, chosen = _chosen_among(lists)
    if shown is not None and chosen is not None:
        made.choose("items", shown, f"lists that hold those of {chosen.name}: a row is a slate")
        made.choose("clicked", chosen, f"a list whose values are among those of {shown.name} in the same row")
    elif made.best("item", is_id) is None and (shown := made.best("item", lambda one: one in others)) is not None:
        made.choose("items", shown, "by its name, and it holds lists: a row is a slate")


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


def _touched(one: ColumnProfile) -> bool:
    return max(name_score(role, one.name) for role in ("clicked", "bought")) > 0


def _length(one: ColumnProfile) -> float:
    return float(one.values.list.len().mean() or 0)  # type: ignore[arg-type]
