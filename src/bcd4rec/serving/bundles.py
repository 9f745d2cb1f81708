"""What others need beside a bundle's own files, and what lets a server start sooner, written by `bcd4rec export`."""

from pathlib import Path

from bcd4rec.artifacts import EXPORT, remove
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.policies import bundle
from bcd4rec.serving.arrays import ARRAYS, StoredArrays
from bcd4rec.serving.exporting import serialized, write_models
from bcd4rec.serving.loading import load
from bcd4rec.serving.retrieval import InvertedFile, retrieval_for


def export_bundle(folder: Path, tick: Tick = no_tick) -> tuple[str, list[Path]]:
    """The version from now on, and the files written: ONNX models and, for large catalogues, the index of the items.

    They count once they are listed. Until then, and if this is killed, the bundle is as if nothing had been added.
    """
    with bundle.worded(folder):
        saved = bundle.opened(folder, exported=False)
        models = serialized(saved, StoredArrays(saved.read(ARRAYS)))
    remove(folder / EXPORT)
    written = write_models(folder, models)
    retrieval = retrieval_for(load(folder), tick=tick)
    written += retrieval.save(folder) if isinstance(retrieval, InvertedFile) else []
    bundle.list_exported(folder, written)
    return bundle.version_of(folder), written
