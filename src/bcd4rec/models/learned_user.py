"""A learned user in a folder: the response model with all that is needed to play sessions, as safetensors and JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bcd4rec.artifacts import MANIFEST, library_versions, read_json, write_json
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import IntArray, Rows
from bcd4rec.data.support import Support
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.models.response import ResponseNetwork, ResponseShape

FORMAT = 2
KIND = "user"
COUNTED = ("groups", "shown", "pairs", "counts", "totals")  # the arrays of a support
SHAPES = ("items", "shown", "first", "later")
UNREADABLE = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError, pl.exceptions.PolarsError)


class Sequels(NamedTuple):
    """What n sessions were shown, each item once in the order of its first place."""

    sessions: Rows  # (n,) which sessions these are
    items: IntArray  # (total,) session after session
    offsets: Rows  # (n + 1,) those of session j are items[offsets[j]:offsets[j + 1]]


@dataclass(frozen=True)
class SessionShapes:
    """How m real sessions went: what was shown and what was liked first."""

    items: IntArray  # (total,) what was shown, session after session
    shown: IntArray  # (m,) how many of them each session was shown
    first: IntArray  # (m,) the first liked item, `PAD` where nothing was liked
    later: IntArray  # (m,) how many were shown in requests after that of the first liked item

    def sequels(self, liked: bool, again: bool) -> Sequels:
        """What was shown in requests after that of the first `liked` item, where there are any; or all that was shown.

        The first liked item itself counts only if it may come `again`.
        """
        session = np.repeat(np.arange(len(self.shown)), self.shown)
        left = self.shown.cumsum()[session] - np.arange(len(session))  # this item and those behind it
        kept = left <= (self.later if liked else self.shown)[session]
        if liked and not again:
            kept &= self.items != self.first[session]
        once = pl.DataFrame({"session": session[kept], "item": self.items[kept]}).unique(maintain_order=True)
        sessions, counts = np.unique(once["session"].to_numpy(), return_counts=True)
        return Sequels(sessions, once["item"].to_numpy(), np.append(0, counts.cumsum()))


@dataclass(frozen=True)
class LearnedUser:
    """The model, the catalogue it speaks of, what it has seen enough of, and the sessions to play."""

    model: ResponseNetwork
    vocabulary: Vocabulary
    responses: Responses
    support: Support
    shapes: SessionShapes
    length: int  # L: how many liked items the model looks at

    @property
    def categories(self) -> IntArray | None:
        """(A,) codes, −1 for none; None where no item has one."""
        codes = self.model.categories.numpy().astype(np.int32)
        return codes if (codes >= 0).any() else None

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """Write into an existing folder; `about` is kept in the manifest."""
        arrays = {f"model.{name}": tensor.numpy() for name, tensor in self.model.state_dict().items()}
        arrays |= {f"support.{name}": getattr(self.support, name) for name in COUNTED}
        arrays |= {f"shapes.{name}": getattr(self.shapes, name) for name in SHAPES}
        save_file({name: np.asarray(one, order="C") for name, one in arrays.items()}, folder / "arrays.safetensors")
        pl.DataFrame({"item_id": self.vocabulary.ids}).write_parquet(folder / "vocabulary.parquet")
        said = {
            "kind": KIND,
            "format": FORMAT,
            "settings": self.model.shape.model_dump(mode="json") | {"length": self.length},
            "support": {"least": self.support.least, "threshold": self.support.threshold},
            "responses": self.responses.model_dump(mode="json"),
            "versions": library_versions(),
        }
        write_json(folder / MANIFEST, said | about)

    @classmethod
    def load(cls, folder: Path) -> "LearnedUser":
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; expected a user made by `bcd4rec train user`.")
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("kind") != KIND or manifest.get("format") != FORMAT:
            kind = manifest.get("kind", "something else") if isinstance(manifest, dict) else "something else"
            raise InputError(
                f"{folder} is not a learned user of format {FORMAT} (it says {kind!r}); make one with "
                "`bcd4rec train user DATASET --out DIR`."
            )
        try:
            return cls._restore(folder, manifest)
        except UNREADABLE as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{folder} is damaged ({reason}); train it anew with `bcd4rec train user`.") from None

    @classmethod
    def _restore(cls, folder: Path, manifest: dict[str, Any]) -> "LearnedUser":
        arrays = load_file(folder / "arrays.safetensors")
        settings = dict(manifest["settings"])
        length = int(settings.pop("length"))
        responses = Responses.parse(manifest["responses"], "manifest of the user")
        state = {name.removeprefix("model."): torch.from_numpy(one) for name, one in arrays.items() if "model." in name}
        categories = state["categories"].numpy().astype(np.int32)
        model = ResponseNetwork(state["similar"].numpy(), categories, len(responses.names), ResponseShape(**settings))
        model.load_state_dict(state)
        vocabulary = Vocabulary(pl.read_parquet(folder / "vocabulary.parquet")["item_id"])
        if len(vocabulary) != len(model.items):
            raise ValueError(f"the model has {len(model.items)} items, its vocabulary {len(vocabulary)}")
        counted: dict[str, Any] = {name: arrays[f"support.{name}"] for name in COUNTED}
        support = Support(**counted, **manifest["support"])
        shapes = SessionShapes(*(arrays[f"shapes.{name}"] for name in SHAPES))
        return cls(model.eval(), vocabulary, responses, support, shapes, length)
