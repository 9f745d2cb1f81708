"""Policies that come back from their folder as they went in, and folders that do not hold one."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.artifacts import MANIFEST
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.experiments.fitting import fit
from bcd4rec.policies import bundle
from bcd4rec.policies.bundle import KINDS, SavedPolicy
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.uniform import Uniform

TRAIN = Sequences.of([[0, 2, 4], [4, 1], [], [2, 4, 6, 0], [3], [1, 2, 1]])
N_ITEMS = 7
STATES = States.of([[], [4], [2, 0], [6, 1, 2, 3], [5, 5]], length=4)
CANDIDATES = np.array([[0, 6], [PAD, 3], [4, 4], [5, PAD], [1, 2]], np.int32)


def make(name: str) -> tuple[str, SavedPolicy]:
    """A policy by the name of its baseline, and its kind: the name of its module."""
    policy = Uniform(N_ITEMS) if name == "uniform" else BASELINES[name]().fit(Dataset.from_sequences(TRAIN, N_ITEMS), 0)
    return type(policy).__module__.rpartition(".")[2], policy


def vocabulary(size: int = N_ITEMS) -> Vocabulary:
    return Vocabulary(pl.Series("item_id", range(100, 100 + size), pl.Int64))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    kind, policy = make("popular")
    bundle.save(policy, kind, vocabulary(), tmp_path, {"method": "popular"})
    return tmp_path


def test_a_bundle_knows_how_often_each_item_was_liked_in_training(tmp_path):
    dataset = Dataset.from_sequences(TRAIN, N_ITEMS)
    fit("popular", dataset).save(dataset, tmp_path)
    found = bundle.load(tmp_path).popularity
    assert found is not None
    assert found.tolist() == [2, 3, 3, 1, 3, 0, 1]  # counted by hand in TRAIN


@pytest.mark.parametrize("name", ["uniform", "popular", "sknn", "vsknn", "stan"])
def test_saved_and_loaded_scores_are_the_same_bits(name, tmp_path):
    kind, policy = make(name)
    bundle.save(policy, kind, vocabulary(), tmp_path, {"method": name, "history": {"length": 4, "skips": 0}})
    loaded = bundle.load(tmp_path)
    assert type(loaded.policy) is type(policy)
    assert isinstance(loaded.policy, Policy)
    assert loaded.policy.n_items == policy.n_items == N_ITEMS
    for candidates in (None, CANDIDATES):
        expected, found = policy.scores(STATES, candidates), loaded.policy.scores(STATES, candidates)
        assert found.dtype == np.float32
        assert found.tobytes() == expected.tobytes()
    assert loaded.manifest["method"] == name
    assert loaded.manifest["policy"] == kind
    assert loaded.manifest["history"] == {"length": 4, "skips": 0}
    assert loaded.manifest["versions"]["numpy"] == np.__version__


@pytest.mark.parametrize("name", ["uniform", "popular", "sknn"])
def test_saving_twice_gives_the_same_bytes(name, tmp_path):
    kind, policy = make(name)
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        bundle.save(policy, kind, vocabulary(), folder, {"seed": 3})
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("ids", [[-5, 3, 2**40], ["", "7", "ärmel ☂"]], ids=["numbers", "strings"])
def test_the_vocabulary_comes_back(ids, tmp_path):
    bundle.save(Uniform(3), "uniform", Vocabulary(pl.Series("item_id", ids)), tmp_path, {})
    found = bundle.load(tmp_path).vocabulary
    assert found.ids.to_list() == ids
    assert [found.index(item) for item in ids] == [0, 1, 2]


def test_arrays_of_any_shape_and_layout_come_back(tmp_path, monkeypatch):
    arrays = {
        "scalar": np.array(3, np.int64),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "every second": np.arange(8, dtype=np.int32)[::2],
        "none": np.empty((0, 4), np.float32),
    }
    seen: dict[str, Any] = {}
    monkeypatch.setattr(Uniform, "arrays", lambda self: arrays)
    monkeypatch.setattr(Uniform, "restore", classmethod(lambda cls, settings, found: seen.update(found) or cls(7)))
    bundle.save(Uniform(7), "uniform", vocabulary(), tmp_path, {})
    bundle.load(tmp_path)
    assert seen.keys() == arrays.keys()
    for name, array in arrays.items():
        assert seen[name].dtype == array.dtype
        assert seen[name].shape == array.shape
        np.testing.assert_array_equal(seen[name], array)


def test_a_policy_under_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Uniform is not registered as kind 'popular'"):
        bundle.save(Uniform(3), "popular", vocabulary(3), tmp_path, {})
    assert not list(tmp_path.iterdir())


def test_every_kind_is_named_like_its_module():
    """So that loading a bundle imports one module, and a server does not need torch for a policy without it."""
    for kind in KINDS:
        assert KINDS[kind].__module__.rpartition(".")[2] == kind


def test_loading_imports_only_what_the_policy_needs(saved):
    code = (
        "import sys; from pathlib import Path; from bcd4rec.policies import bundle; "
        f"bundle.load(Path({str(saved)!r})); assert 'torch' not in sys.modules; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        bundle.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_no_folder(tmp_path):
    assert "is not a folder" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("hello")
    assert "is not a folder" in refused(tmp_path / "file")


def test_a_foreign_folder(tmp_path):
    assert "manifest.json is missing" in refused(tmp_path)
    (tmp_path / MANIFEST).write_text('{"kind": "dataset", "format": 1}')
    assert "is not a policy" in refused(tmp_path)
    (tmp_path / MANIFEST).write_text("[1, 2]")
    assert "is not a policy" in refused(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    assert "is not JSON" in refused(tmp_path)


def test_another_format(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps(manifest | {"format": bundle.FORMAT + 1}))
    assert f"is not a policy of format {bundle.FORMAT}" in refused(saved)


@pytest.mark.parametrize("name", ["arrays.safetensors", "vocabulary.parquet"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise", "pickle"])
def test_a_damaged_file(saved, name, damage):
    content = (saved / name).read_bytes()
    (saved / name).unlink()
    made = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "noise": bytes(reversed(content)),
        "pickle": pickle.dumps({"counts": np.ones(N_ITEMS, np.float32)}),
    }
    if damage in made:
        (saved / name).write_bytes(made[damage])
    assert "is damaged" in refused(saved)


@pytest.mark.parametrize(
    "change",
    [{"settings": None}, {"settings": []}, {"settings": {"method": "sknn"}}, {"policy": None}, {"policy": ["sknn"]}],
    ids=str,
)
def test_a_manifest_that_was_changed(tmp_path, change):
    kind, policy = make("sknn")
    bundle.save(policy, kind, vocabulary(), tmp_path, {})
    manifest = json.loads((tmp_path / MANIFEST).read_text()) | change
    (tmp_path / MANIFEST).write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))
    assert "is damaged" in refused(tmp_path)


def test_an_unknown_kind(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps(manifest | {"policy": "oracle"}))
    with pytest.raises(InputError, match=r"Unknown kind of policy 'oracle'; known are .*popular"):
        bundle.load(saved)


def test_a_vocabulary_of_another_policy(saved):
    pl.DataFrame({"item_id": [1, 2]}).write_parquet(saved / "vocabulary.parquet")
    assert "the policy has 7 items, its vocabulary 2" in refused(saved)
    pl.DataFrame({"item": [1, 2]}).write_parquet(saved / "vocabulary.parquet")
    assert "is damaged" in refused(saved)
