"""Which column has which role so far: the state of a proposal in the making, and what can be asked about columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from bcd4rec.data.proposals.profiles import MOST, ColumnProfile, is_time
from bcd4rec.data.proposals.proposal import Choice, LogSample, Proposal
from bcd4rec.data.proposals.words import HEAD, PART, ROLES, WHOLE, name_score
from bcd4rec.errors import InputError

ORDER = (  # of the roles in a mapping
    *("session", "user", "time", "step", "slate", "request_category", "position", "item", "items", "category"),
    *("propensity", "response", "clicked", "bought", "history"),
)
KIN = (  # roles that share words, and do not contest each other's columns
    {"session", "user", "slate", "request_category", "step"},
    {"slate", "items", "history"},
    {"item", "items"},
    {"response", "clicked", "bought", "step"},
    {"clicked", "bought", "item", "items", "history"},
    {"category", "request_category", "response"},
)
FILE = "#file"  # a column of a sample that holds what the names of files say; no mapping has it

Fits = Callable[[ColumnProfile], bool]


@dataclass
class Choosing:
    """Roles are given one after the other, those first that are told most easily; a column has one role."""

    sample: LogSample
    columns: list[ColumnProfile]
    chosen: dict[str, ColumnProfile] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def free(self) -> list[ColumnProfile]:
        taken = {column.name for column in self.chosen.values()}
        return [column for column in self.columns if column.name not in taken]

    def best(self, role: str, fits: Fits, named: bool = True) -> ColumnProfile | None:
        scores = {one.name: name_score(role, one.name) for one in self.free() if fits(one) and not contested(role, one)}
        if not scores or (named and max(scores.values()) <= 0):
            return None
        best = max(scores, key=lambda name: scores[name])
        return next(one for one in self.columns if one.name == best)

    def pick(self, role: str, fits: Fits, what: str) -> bool:
        found = self.best(role, fits)
        if found is not None:
            self.choose(role, found, f"by its name, and {what}")
        return found is not None

    def choose(self, role: str, column: ColumnProfile, reason: str) -> None:
        self.chosen[role], self.reasons[role] = column, reason

    def refuse(self, sentence: str) -> InputError:
        return InputError(
            f"{self.sample.path}: {sentence}; the columns are {', '.join(self.sample.frame.columns)}; name it in a "
            "TOML file and pass that with --mapping."
        )

    # ---- what columns have to do with each other

    @property
    def rows(self) -> int:
        return self.sample.frame.height

    def frame(self, *columns: ColumnProfile) -> pl.DataFrame:
        return pl.DataFrame({f"c{place}": column.values for place, column in enumerate(columns)})

    def size(self, *keys: ColumnProfile) -> float:
        """Rows that share the values of these columns, on average."""
        return self.rows / max(self.frame(*keys).n_unique(), 1)

    def constant(self, key: ColumnProfile, one: ColumnProfile) -> float:
        return self.constant_in([key], one)

    def constant_in(self, keys: Sequence[ColumnProfile], one: ColumnProfile) -> float:
        """The share of the groups of several rows in which a column has one value; 1 where there are none."""
        frame = self.frame(one, *keys).filter(pl.col("c0").is_not_null())
        groups = frame.group_by(pl.exclude("c0")).agg(pl.len(), pl.col("c0").n_unique().alias("own"))
        several = groups.filter(pl.col("len") > 1)
        return float((several["own"] == 1).mean()) if several.height else 1.0  # type: ignore[arg-type]

    def share_with_several(self, key: ColumnProfile, one: ColumnProfile) -> float:
        """The share of a column's values that stand beside several of another."""
        groups = self.frame(key, one).drop_nulls().group_by("c0").agg(pl.col("c1").n_unique())
        return float((groups["c1"] > 1).mean() or 0)  # type: ignore[arg-type]

    def apart(self, key: ColumnProfile, one: ColumnProfile) -> bool:
        """Whether a column tells nearly all rows of a group from each other."""
        rows = self.frame(key, one).drop_nulls()
        return rows.height > MOST * self.rows and rows.n_unique() > MOST * rows.height

    # ---- the end

    def whole(self) -> Proposal:
        names = {role: self.chosen[role].name for role in ORDER if role in self.chosen}
        names = {role: name for role, name in names.items() if name != FILE}
        tables = {name: self.options.pop(name) for name in ("files", "responses") if self.options.get(name)}
        options = self.options | {"map": names} | tables
        reasons = [Choice(role, name, self.reasons[role]) for role, name in names.items()]
        values = [
            Choice(f"{table}.{value}", rule, self.reasons.get(f"{table}.{value}", WHY[table]))
            for table, rules in tables.items()
            for value, rule in rules.items()
        ]
        return Proposal(options, (*reasons, *values), tuple(self.doubts))


WHY = {"responses": "by its word", "files": "by the names of files"}


def contested(role: str, one: ColumnProfile) -> bool:
    """Whether a column's name says more clearly that it is something else: a `list_position` is no list."""
    others = set(ROLES) - {role} - set().union(*(kin for kin in KIN if role in kin))
    own = _tier(name_score(role, one.name))
    rivals = [other for other in others if other != "time" or is_time(one)]
    return 0 < own < max((_tier(name_score(other, one.name)) for other in rivals), default=0)


def _tier(score: float) -> int:
    return sum(score > bound for bound in (0.0, PART, HEAD, WHOLE))
