"""What the values of a response column mean: a rule for each, by its words and by what stands beside it."""

from collections.abc import Iterable, Sequence

import polars as pl

from bcd4rec.data.proposals.words import NUMBERS, ORGANIC, SEEN, answer_of, tokens

CLICK = {"click", "clicked", "clk", "klick", "geklickt", "clic"}


def response_rules(values: Iterable[str], slates: bool) -> tuple[dict[str, str], list[str]]:
    """What each value of a response column is, and those that no word tells, which are dropped.

    `slates`: whether the log tells what was shown, so that `view` is more likely a skip than a look; so it is where
    clicks go by that very word.
    """
    found = list(values)
    words = {value: word(value) for value in found}
    clicks = any(answer_of(said) == "click" and said not in ORGANIC for said in words.values())
    looks_apart = slates or any(CLICK & set(tokens(said)) for said in words.values())
    skips = any(answer_of(said) == "skip" for said in words.values())
    rules: dict[str, str] = {}
    unknown = []
    for value, said in words.items():
        if answer_of(said) == "skip":
            rules[value] = "skip"
        elif said in ORGANIC and clicks:
            rules[value] = "organic:click"
        elif said in SEEN or (set(tokens(said)) & set(SEEN) and answer_of(said) is None):
            rules[value] = "click" if skips or not looks_apart else "skip"
        elif (answer := NUMBERS.get(value.removesuffix(".0")) or answer_of(said)) is not None:
            rules[value] = answer
        else:
            rules[value] = "drop"
            unknown.append(value)
    return rules, unknown


def word(value: str) -> str:
    return value.strip().lower()


def counted(values: pl.Series) -> list[tuple[str, int]]:
    """Values as the reader will see them, the most frequent first."""
    if values.dtype == pl.Float64 and (values.drop_nulls() == values.drop_nulls().round()).all():
        return [(value, count) for value, count in counted(values.cast(pl.Int64))]
    texts = values.drop_nulls().cast(pl.String)
    counts = texts.value_counts().sort("count", texts.name, descending=[True, False])
    return [(str(value), int(count)) for value, count in counts.iter_rows()]


def listed(counts: Sequence[tuple[str, int]]) -> str:
    more = f" and {len(counts) - 6} more" if len(counts) > 6 else ""
    return ", ".join(value for value, _ in counts[:6]) + more
