"""Several values of one thing in one cell, such as the categories of an item: lists, or text with a separator."""

import polars as pl

SEPARATORS = "|;>,/"  # of text that is said to hold several values: the first of these that any value has
SURE = "|;"  # which seldom stand in a value for any other reason
MOSTLY = 0.5  # of the values, from which on text is taken for several values without being told
BETWEEN = "\x1f"  # the values of one cell as one text, which can be compared, hashed and sorted in streaming


def cleaned(lists: pl.Expr) -> pl.Expr:
    """Lists of texts in their order, each value once and none empty; nothing in place of an empty list."""
    texts = lists.cast(pl.List(pl.String)).list.eval(pl.element().str.strip_chars())
    once = texts.list.eval(pl.element().filter(pl.element().is_not_null() & (pl.element() != ""))).list.unique(
        maintain_order=True
    )
    return pl.when(once.list.len() > 0).then(once)


def parted(text: pl.Expr, separator: str) -> pl.Expr:
    """Text as such lists; without a separator each is a list of one."""
    whole = text.cast(pl.String)
    return cleaned(whole.str.split(separator) if separator else pl.concat_list(whole))


def separator_in(texts: pl.Series, among: str, share: float = 0.0) -> str:
    """The first of some separators that more than this share of the texts has; nothing where there is none."""
    there = texts.drop_nulls()
    return next((one for one in among if there.str.contains(one, literal=True).sum() > share * len(there)), "")


def written(lists: pl.Expr) -> pl.Expr:
    """Lists as texts, the other way round of `read`."""
    return lists.list.join(BETWEEN)


def as_set(lists: pl.Expr) -> pl.Expr:
    """The same text for the same values in any order."""
    return written(lists.list.sort())


def read(text: pl.Expr) -> pl.Expr:
    return text.str.split(BETWEEN)


def plain(values: list[str]) -> str | list[str]:
    """For messages: a single value without its list."""
    return values[0] if len(values) == 1 else values


def several(items: pl.DataFrame) -> int:
    """How many items have more than one category."""
    return items.filter(pl.col("categories").list.len() > 1).height if "categories" in items.columns else 0


def if_several(items: pl.DataFrame) -> pl.DataFrame:
    """Without the column `categories` where every item has one at most, which `category` tells already."""
    return items if several(items) else items.drop("categories", strict=False)
