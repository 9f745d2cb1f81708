"""The prepared data set: columns over a table of distinct states, in a folder of Parquet and NumPy files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.artifacts import MANIFEST, content_hash, read_json, write_json
from bcd4rec.data.content import Content
from bcd4rec.data.files import reason
from bcd4rec.data.places import local
from bcd4rec.data.responses import Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import FloatArray, IntArray, Mask, Rows, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from bcd4rec.data.features import ItemFeatures
    from bcd4rec.data.preparing import PrepareConfig

FORMAT = 2
FILES = ["items.parquet", "sessions.parquet", "transitions.parquet", "positives.npy", "skips.npy"]


@dataclass(frozen=True)
class Transitions:
    """n transitions as columns, in time order of the sessions; the two states are rows of `Dataset.states`."""

    session: NDArray[np.uint32]  # (n,) row of `Dataset.sessions`
    step: NDArray[np.uint32]  # (n,) which slate of its session, from 0
    state: IntArray
    action: IntArray  # item index
    response: NDArray[np.uint8]  # code in `Responses.names`
    reward: FloatArray
    next_state: IntArray
    discount: FloatArray  # γ, or 0 where no slate follows in the session
    propensity: FloatArray  # NaN where the log has none
    position: IntArray  # place in the slate from 0, −1 where the log has none

    def __len__(self) -> int:
        return len(self.action)


class Dataset:
    """One prepared log. `sessions`, `items` and the transitions are Polars frames; the states are memory-mapped."""

    def __init__(
        self,
        manifest: dict[str, Any],
        items: pl.DataFrame,
        sessions: pl.DataFrame,
        transitions: pl.DataFrame,
        states: States,
    ):
        self.manifest = manifest
        self.items = items  # item_id, category, impressions and positives of the train split, features
        self.sessions = sessions  # session_id, split, start, end, rows, organic
        self.frame = transitions  # with the organic events, which are marked
        self.states = states
        self.responses = Responses.parse(manifest["responses"], "data set manifest")
        self.vocabulary = Vocabulary(items["item_id"])

    @property
    def n_items(self) -> int:
        return len(self.items)

    @property
    def gamma(self) -> float:
        return float(self.manifest["config"]["gamma"])

    @property
    def content_hash(self) -> str:
        return str(self.manifest["content_hash"])

    @cached_property
    def categories(self) -> IntArray:
        """(A,) dense category codes, −1 for an item without category."""
        codes = self.items["category"].rank("dense").cast(pl.Int32) - 1
        return codes.fill_null(-1).to_numpy().astype(np.int32)

    @cached_property
    def owners(self) -> Rows:
        """(sessions,) whose sessions they are: a number for each user, and for each session of nobody known."""
        if "user_id" not in self.sessions.columns:
            return np.arange(len(self.sessions))
        alone = pl.when(pl.col("user_id").is_null()).then(pl.int_range(pl.len()))
        keyed = self.sessions.select(pl.struct("user_id", alone.alias("alone")).rank("dense").cast(pl.Int64) - 1)
        return keyed.to_series().to_numpy()

    @cached_property
    def content(self) -> Content | None:
        """The features of the items, encoded; None where no file about items was given and none has several categories.

        A file that tells no items apart may still name new ones.
        """
        told = self.manifest.get("features")
        several = {"categories": "tags"} if "categories" in self.items.columns else {}
        if told is None and not several:
            return None
        others = {} if told is None else told["columns"]
        return Content.encode(self.items, {name: others[name] for name in others if name != "categories"} | several)

    @cached_property
    def _split_of_row(self) -> pl.Series:
        return self.sessions["split"].gather(self.frame["session"])

    def split_or_train(self, split: str) -> str:
        """`split`, or `train` where no session is in it."""
        return split if (self.sessions["split"] == split).any() else "train"

    def events(self, split: str) -> pl.DataFrame:
        """All rows of the sessions of one split in time order, with the organic events, which `organic` marks."""
        return self._some(self.frame.filter(self._split_of_row == split), split)

    def transitions(self, split: str) -> Transitions:
        """The transitions of the sessions of one split, e.g. `train` or `validation`, without organic events."""
        frame = self._some(self.events(split).filter(~pl.col("organic")), split)

        def column(name: str, dtype: Any) -> Any:
            return frame[name].to_numpy().astype(dtype, copy=False)

        return Transitions(
            column("session", np.uint32),
            column("step", np.uint32),
            column("state", np.int32),
            column("action", np.int32),
            column("response", np.uint8),
            column("reward", np.float32),
            column("next_state", np.int32),
            column("discount", np.float32),
            frame["propensity"].cast(pl.Float32).fill_null(float("nan")).to_numpy(),
            column("position", np.int32),
        )

    def _some(self, rows: pl.DataFrame, split: str) -> pl.DataFrame:
        if rows.is_empty():
            known = ", ".join(sorted(self.sessions["split"].unique()))
            raise InputError(f"The data set has no transitions in split {split!r}; its splits are {known}.")
        return rows

    def sequences(self, split: str, chosen: Mask | None = None) -> Sequences:
        """The positive items of each session of one split, also organic ones; sessions without any are left out.

        `chosen` may mark some of `sessions`: then of these alone. Where sessions open with what their users liked
        before, all sessions of a user are one, and an item that she liked counts once: it stands in many openings.
        """
        positive = [self.responses.code(name) for name in self.responses.positive]
        liked = self.events(split).filter(pl.col("response").is_in(positive))
        session, items = liked["session"].to_numpy().astype(np.int64), liked["action"].to_numpy().astype(np.int32)
        if chosen is not None:
            session, items = session[chosen[session]], items[chosen[session]]
        if self.manifest["config"].get("earlier"):
            session, items = self._once_a_user(session, items)
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        return Sequences(items, np.append(starts, len(items)).astype(np.int64))

    def _once_a_user(self, session: Rows, items: IntArray) -> tuple[Rows, IntArray]:
        """Users and what they liked, each item where it was first; users in the order of their last sessions."""
        owner = self.owners[session]
        first = np.sort(np.unique(owner * self.n_items + items, return_index=True)[1])
        last = np.zeros(len(self.sessions), np.int64)
        last[owner] = session  # rows stand in the order of sessions, so the last one stays
        order = first[np.argsort(last[owner[first]], kind="stable")]
        return owner[order], items[order]

    @classmethod
    def from_frame(
        cls,
        frame: pl.DataFrame,
        rewards: Responses | Mapping[str, float] | None = None,
        config: "PrepareConfig | None" = None,
        seed: int = 0,
        items: "pl.DataFrame | ItemFeatures | None" = None,
    ) -> "Dataset":
        """The data set of an impression log in memory, as `prepare` makes it of a file with the same columns.

        `rewards` names the responses, e.g. {"skip": 0, "click": 1, "buy": 5}, the default for those that occur.
        `items` are features of items: a frame with a column item_id, as `prepare --items` reads of a file.
        """
        from bcd4rec.data.in_memory import dataset_of_frame  # which makes data sets, so it knows this class

        return dataset_of_frame(frame, rewards, config, seed, items)

    @classmethod
    def from_sequences(cls, sequences: Sequences, n_items: int) -> "Dataset":
        """Sessions without a log: every item is a click at a step of its own, and all sessions are `train`."""
        from bcd4rec.data.in_memory import dataset_of_sequences

        return dataset_of_sequences(sequences, n_items)

    @classmethod
    def load(cls, folder: Path) -> "Dataset":
        if not local(folder, "a data set").is_dir():
            raise InputError(f"{folder} is not a folder; expected a data set made by `bcd4rec prepare LOGS --out DIR`.")
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("kind") != "dataset" or manifest.get("format") != FORMAT:
            raise InputError(f"{folder} is not a data set of format {FORMAT}; make it anew with `bcd4rec prepare`.")
        try:
            items, sessions, transitions = (pl.read_parquet(folder / name, glob=False) for name in FILES[:3])
            states = States(*(np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in FILES[3:]))
            dataset = cls(manifest, items, sessions, transitions, states)
            organic = int(transitions["organic"].sum())
            lengths = {"items": len(items), "sessions": len(sessions), "states": len(states), "organic": organic}
            for name, length in (lengths | {"transitions": len(transitions) - organic}).items():
                if length != manifest["counts"][name]:
                    raise ValueError(f"{length} {name}, but the manifest says {manifest['counts'][name]}")
        except (OSError, EOFError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{folder} is damaged ({reason(error)}); make it anew with `bcd4rec prepare`.") from None
        return dataset


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Close a data set: its manifest with the hash of all its files."""
    manifest = manifest | {"content_hash": content_hash(folder, FILES)}
    write_json(folder / MANIFEST, manifest)
    return manifest
