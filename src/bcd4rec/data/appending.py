"""`prepare --append`: the sessions of new days join a data set, whose own logs are not read again.

The data set is written anew beside the old one and takes its place when it is whole. Items keep the order of their
ids, so that old rows get new numbers on the way; states and sessions keep theirs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.artifacts import MANIFEST, atomic_directory, read_json
from bcd4rec.data import tags
from bcd4rec.data.dataset import FORMAT
from bcd4rec.data.features import ItemFeatures
from bcd4rec.data.log_counts import Warned
from bcd4rec.data.origin import origin_of_log
from bcd4rec.data.places import local
from bcd4rec.data.preparing import Draft, index_of, own_categories, session_columns
from bcd4rec.data.responses import Responses
from bcd4rec.data.row_counts import RowCounts, Splits
from bcd4rec.data.schema import Log
from bcd4rec.data.sessions import ONE, SessionIndex, Tick, no_tick, with_categories
from bcd4rec.data.splits import SplitConfig, assign_splits, refuse_no_train, refuse_unstable
from bcd4rec.data.state_table import StateTable, state_files
from bcd4rec.data.states import PAD, IntArray
from bcd4rec.data.tables import shown
from bcd4rec.data.transition_file import TransitionFile, row_groups
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.runner.mapping import ALONE, Helpers

STATES_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Grown:
    """A data set that something can be added to, as far as it has to be known for that."""

    folder: Path
    manifest: dict[str, Any]
    items: pl.DataFrame
    sessions: pl.DataFrame

    @classmethod
    def open(cls, folder: Path) -> "Grown":
        """Refuses one whose days depend on each other, before anything is read."""
        manifest = read_json(folder / MANIFEST) if local(folder, "a data set").is_dir() else None
        if not isinstance(manifest, dict) or manifest.get("kind") != "dataset" or manifest.get("format") != FORMAT:
            raise InputError(f"--append {folder} is no data set of format {FORMAT}; make it with `bcd4rec prepare`.")
        config, reading = manifest["config"], manifest.get("reading") or {}
        refuse_unstable(SplitConfig.model_validate(config["split"]))
        if config.get("earlier"):
            raise InputError("Nothing can be added to a data set made with --earlier: it needs each user's whole past.")
        if config["convention"] == "chosen":
            raise InputError("Nothing can be added to a data set made with --convention chosen; prepare all at once.")
        if reading.get("options", {}).get("min_support", 1) > 1:
            raise InputError(
                "Nothing can be added to a data set made with min_support: which items are rare depends on all days; "
                "prepare all at once, or without it."
            )
        frames = (pl.read_parquet(folder / name, glob=False) for name in ("items.parquet", "sessions.parquet"))
        return cls(folder, manifest, *frames)

    @property
    def responses(self) -> Responses:
        return Responses.parse(self.manifest["responses"], "data set manifest")

    @property
    def string_ids(self) -> bool:
        return self.items["item_id"].dtype == self.sessions["session_id"].dtype == pl.String

    def refuse_other(self, log: Log, reading: dict[str, Any] | None, features: ItemFeatures | None) -> None:
        """A log that tells other things than the data set, or tells them in another way."""
        types = {"item_id": self.items["item_id"].dtype, "session_id": self.sessions["session_id"].dtype}
        for name, dtype in types.items():
            if log.id_types[name] != dtype:
                kinds = {pl.Int64: "integers", pl.String: "strings"}
                here, there = kinds[log.id_types[name]], kinds[type(dtype)]
                raise InputError(
                    f"{log.path}: column {log.tables[0].name(name)} holds {here}, but the data set {self.folder} has "
                    f"{there}; write {there}{', or pass --string-ids' if there == 'strings' else ''}."
                )
        if log.clock != self.manifest["clock"]:
            here, there = ("timestamp", "step") if log.clock else ("step", "timestamp")
            here = log.tables[0].name(here)
            raise InputError(f"{log.path} orders rows by {here}, but the data set {self.folder} by {there}.")
        known = {"user_id": "user_id" in self.sessions, "request_category": "request_categories" in self._counts}
        for name, has in known.items():
            if log.has(name) != has:
                which = f"has no column {name}, as" if has else f"has a column {log.tables[0].name(name)}, unlike"
                raise InputError(f"{log.path} {which} the data set {self.folder}{' has' * has}; give all days alike.")
        if (features is not None) != ("features" in self.manifest):
            which = "was made with --items; give the file" if features is None else "was made without --items; leave it"
            raise InputError(f"{self.folder} {which} {'again' if features is None else 'out'}.")
        if features is not None and {"category", "categories"} & set(features.kinds):
            raise InputError(
                f"{features.path} tells categories, and {self.folder} does not know which of its own are from it; "
                "prepare all at once."
            )
        if features is not None and self.manifest["features"]["items_new"]:
            raise InputError(
                f"{self.folder} has items that only {features.path} tells of, and a new log may show them; prepare all "
                "at once, or with --no-new-items."
            )
        old = self.manifest.get("reading")
        if _how(old) != _how(reading):
            raise InputError(
                f"The data set {self.folder} was read {_how_told(old)}, but the new log {_how_told(reading)}; read it "
                "in the same way."
            )

    @property
    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.manifest["counts"]
        return counts

    def refuse_known_sessions(self, log: Log, index: SessionIndex) -> None:
        known = index.sessions.join(self.sessions, on="session_id", how="semi", maintain_order="left")
        if not known.is_empty():
            many = f" ({len(known):,} such sessions)" if len(known) > 1 else ""
            raise InputError(
                f"{log.path}: session {shown(known['session_id'][0])} is in the data set {self.folder} already{many}; "
                "give each session whole, with the day on which it ends, and each day once."
            )

    def all_items(self, log: Log, index: SessionIndex) -> pl.DataFrame:
        """item_id, category (and categories) of the old and the new items, in ascending order of ids."""
        old, new = (items.select("item_id", _listed(items).alias("all")) for items in (self.items, index.items))
        both = old.join(new, on="item_id", how="full", coalesce=True).sort("item_id")
        mine, theirs = pl.col("all"), pl.col("all_right")
        torn = both.filter(tags.as_set(mine) != tags.as_set(theirs))
        if not torn.is_empty():
            item, before, other = torn.row(0)
            many = f" ({len(torn):,} such items)" if len(torn) > 1 else ""
            raise InputError(
                f"{log.path}, column {log.tables[0].name('category')}: found {shown(tags.plain(other))} for item "
                f"{shown(item)}, which has {shown(tags.plain(before))} in the data set {self.folder}, {ONE}{many}."
            )
        lists = tags.read(pl.min_horizontal(tags.written(mine), tags.written(theirs)))
        return tags.if_several(with_categories(both, lists)).select(pl.exclude("all", "all_right"))

    def states(self, renumber: IntArray) -> Iterator[IntArray]:
        """Blocks (n, L + S) of its states, in the new numbers of items."""
        files = [np.load(self.folder / name, mmap_mode="r", allow_pickle=False) for name in _STATES]
        renumbered = np.append(renumber, np.int32(PAD))  # whose last entry stands for `PAD`, which is −1
        for first in range(0, len(files[0]), STATES_AT_ONCE):
            yield renumbered[np.concatenate([one[first : first + STATES_AT_ONCE] for one in files], axis=1)]

    def copy(self, made: Draft, renumber: IntArray, tick: Tick) -> None:
        """Its transitions into the new data set."""
        total = max(self._counts["transitions"], 1)
        for rows in row_groups(self.folder / "transitions.parquet"):
            tick("copying the data set", min(made.transitions.total / total, 1.0))
            action = pl.Series("action", renumber[rows["action"].to_numpy()])
            rows = rows.with_columns(action)
            shown_rows = rows.filter(~pl.col("organic"))
            made.tally.add_held_out(shown_rows, shown_rows["action"], made.splits)
            made.transitions.write(rows)


_STATES = ("positives.npy", "skips.npy")


def _listed(items: pl.DataFrame) -> pl.Expr:
    """All categories of each item, also where it has one at most."""
    return pl.col("categories") if "categories" in items.columns else tags.parted(pl.col("category"), "")


def append(
    folder: Path,
    log: Log,
    tick: Tick = no_tick,
    reading: dict[str, Any] | None = None,
    features: ItemFeatures | None = None,
    side_by_side: Helpers = ALONE,
) -> dict[str, Any]:
    """Add the sessions of `log` to the data set in `folder`, with its own settings, and return its new manifest.

    Days that are added one after the other give the bytes of all of them prepared at once, where sizes of states were
    given and not taken from the log, and where no session begins before those of the days before.
    """
    old = Grown.open(folder)
    old.refuse_other(log, reading, features)
    responses, config = old.responses, old.manifest["config"]
    index = index_of(log, responses, tick)
    old.refuse_known_sessions(log, index)
    index = replace(index, items=old.all_items(log, index))
    items = index.items if features is None else features.of(index.items)
    split = SplitConfig.model_validate(config["split"])
    added, dropped = assign_splits(index.sessions, split, config["seed"], log.clock, config.get("begin"))
    sessions = pl.concat([old.sessions, added.select(session_columns(log))])
    refuse_no_train(sessions)
    renumber = index.items["item_id"].search_sorted(old.items["item_id"]).to_numpy().astype(np.int32)
    kept = {name: config[name] for name in TransitionConfig.model_fields}
    with atomic_directory(folder, force=True) as made_in:
        tally = RowCounts(len(items), responses, log.has("request_category"))
        tally.restore(old.items, renumber, old.manifest)
        with (
            state_files(made_in, config["length"], config["skips"]) as write,
            TransitionFile(made_in / "transitions.parquet") as transitions,
        ):
            tick("copying the data set", 0.0)
            table = StateTable(config["length"], config["skips"], write, old.states(renumber))
            made = Draft(made_in, table, transitions, tally, Splits(sessions), own_categories(log, features))
            old.copy(made, renumber, tick)
            how = TransitionConfig.parse(kept, "data set manifest")
            made.add(index, added, how, config["seed"], tick, side_by_side)
        tick("writing", 0.0)
        about = old.manifest | {"dropped": _added(old.manifest["dropped"], dropped)}
        origin = origin_of_log(log)
        told = {
            "reading": _both_readings(old.manifest.get("reading"), reading, len(items)),
            "origin": origin if origin == old.manifest.get("origin") else None,
            "features": features.told(items, items) if features is not None else None,
        }
        found = made.finish(sessions, items, about, told, features, _late(sessions))
        if read_json(folder / MANIFEST) != old.manifest:
            raise InputError(f"{folder} was changed by somebody else meanwhile; run the command again.")
        return found


def _late(sessions: pl.DataFrame) -> list[Warned]:
    late = int((sessions["start"] < sessions["start"].cum_max()).sum())
    sentence = (
        f"{late:,} of {len(sessions):,} sessions begin before others that were there when they were added and stand "
        "behind these; add days in their order, or prepare all at once, where the order of time matters."
    )
    return [Warned("late sessions", late / len(sessions), sentence)] if late else []


def _added(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    return {name: old.get(name, 0) + new.get(name, 0) for name in dict.fromkeys([*old, *new])}


def _how(reading: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if reading is None else {name: reading[name] for name in ("format", "options")}


def _how_told(reading: dict[str, Any] | None) -> str:
    if reading is None:
        return "as a canonical log"
    options = ", ".join(f"{name}={value}" for name, value in reading["options"].items() if value)
    return f"with --format {reading['format']} ({options})"


def _both_readings(old: dict[str, Any] | None, new: dict[str, Any] | None, items: int) -> dict[str, Any] | None:
    """What the reader did with all days."""
    if old is None or new is None:
        return None
    both = {name: _added(old[name], new[name]) for name in ("read", "kept", "dropped")}
    both["kept"] |= {"items": items} if "items" in both["kept"] else {}
    return old | both | {"remarks": list(dict.fromkeys([*old["remarks"], *new["remarks"]]))}
