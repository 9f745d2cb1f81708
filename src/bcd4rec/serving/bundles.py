"""What a server needs beside a bundle's own files, written once by `bcd4rec export`."""

from pathlib import Path

from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.policies import bundle
from bcd4rec.serving.exporting import write_models
from bcd4rec.serving.loading import load
from bcd4rec.serving.retrieval import InvertedFile, retrieval_for


def export_bundle(folder: Path, tick: Tick = no_tick) -> tuple[str, list[Path]]:
    """The bundle's version, and the files written: ONNX models and, for large catalogues, the index of the items."""
    manifest = bundle.read_manifest(folder)
    with bundle.worded(folder):
        version = bundle.version_of(folder)
        written = write_models(folder, manifest["scorer"], manifest["settings"], version)
    retrieval = retrieval_for(load(folder), tick=tick)
    return version, written + (retrieval.save(folder, version) if isinstance(retrieval, InvertedFile) else [])
