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
from safetensors.numpy import save_file

from bcd4rec.artifacts import MANIFEST
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.responses import Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.scorer import SCORERS, SavedScorer, Scorer
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.workflows.fitting import fit

TRAIN = Sequences.of([[0, 2, 4], [4, 1], [], [2, 4, 6, 0], [3], [1, 2, 1]])
N_ITEMS = 7
STATES = States.of([[], [4], [2, 0], [6, 1, 2, 3], [5, 5]], length=4)
CANDIDATES = np.array([[0, 6], [PAD, 3], [4, 4], [5, PAD], [1, 2]], np.int32)


def make(name: str) -> SavedScorer:
    """A scorer by the name of its baseline."""
    return Uniform(N_ITEMS) if name == "uniform" else BASELINES[name]().fit(Dataset.from_sequences(TRAIN, N_ITEMS), 0)


def vocabulary(size: int = N_ITEMS) -> Vocabulary:
    return Vocabulary(pl.Series("item_id", range(100, 100 + size), pl.Int64))


def whole(scorer: Scorer, **more: Any) -> Policy:
    return Policy(scorer, vocabulary(scorer.n_items), **more)


VECTORS = np.random.default_rng(2).normal(size=(N_ITEMS, 3)).astype(np.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    bundle.write(whole(make("popular"), vectors=VECTORS, about={"method": "popular"}), tmp_path)
    return tmp_path


def test_a_bundle_knows_how_often_each_item_was_liked_in_training(tmp_path):
    dataset = Dataset.from_sequences(TRAIN, N_ITEMS)
    fit("popular", dataset).save(dataset, tmp_path)
    found = bundle.load(tmp_path).popularity
    assert found is not None
    assert found.tolist() == [2, 3, 3, 1, 3, 0, 1]  # counted by hand in TRAIN


@pytest.mark.parametrize("name", ["uniform", "popular", "sknn", "vsknn", "stan"])
def test_saved_and_loaded_scores_are_the_same_bits(name, tmp_path):
    scorer = make(name)
    bundle.write(whole(scorer, memory=Memory(length=4), about={"method": name}), tmp_path)
    loaded = bundle.load(tmp_path)
    assert type(loaded.scorer) is type(scorer)
    assert isinstance(loaded.scorer, Scorer)
    assert loaded.n_items == scorer.n_items == N_ITEMS
    for candidates in (None, CANDIDATES):
        expected, found = scorer.scores(STATES, candidates), loaded.scorer.scores(STATES, candidates)
        assert found.dtype == np.float32
        assert found.tobytes() == expected.tobytes()
    manifest = bundle.read_manifest(tmp_path)
    assert loaded.name == manifest["about"]["method"] == name
    assert manifest["scorer"] == scorer.kind
    assert manifest["memory"] == {"length": 4, "skips": 0, "unanswered": "skip"}
    assert manifest["versions"]["numpy"] == np.__version__


EXPLORING = Exploration(kind="epsilon", epsilon=0.2)


def test_every_part_of_a_policy_comes_back(tmp_path):
    policy = whole(
        make("popular"),
        memory=Memory(length=3, skips=5, unanswered="unknown"),
        rule=SlateRule(diversity=0.7, after_skip="exclude", unavailable="shown", exploration=EXPLORING),
        responses=Responses(rewards={"no": 0.0, "yes": 2.0}),
        vectors=VECTORS,
        popularity=np.arange(N_ITEMS, dtype=np.int32),
        about={"method": "mine", "seed": 3},
    )
    policy.save(tmp_path / "policy")
    loaded = bundle.load(tmp_path / "policy")
    for part in ("memory", "rule", "responses", "about"):
        assert getattr(loaded, part) == getattr(policy, part), part
    assert loaded.vocabulary.ids.equals(policy.vocabulary.ids)
    assert loaded.vectors.tobytes() == VECTORS.tobytes()
    assert (loaded.popularity.dtype, loaded.popularity.tolist()) == (np.int32, list(range(N_ITEMS)))
    for session in ([], [104], [104, (102, "no")], [(101, "no"), (106, "no")]):
        assert loaded.recommend(session) == policy.recommend(session)
    sessions = policy.begin(9)
    drawn, again = (each.slates(sessions, 3, np.random.default_rng(5)) for each in (policy, loaded))
    for one, other in zip(drawn, again, strict=True):
        assert one.tobytes() == other.tobytes()


def test_what_a_policy_does_not_know_is_not_there_afterwards(tmp_path):
    bundle.save(whole(make("popular")), tmp_path / "policy")
    loaded = bundle.load(tmp_path / "policy")
    assert loaded.vectors is None
    assert loaded.popularity is None
    assert sorted(file.name for file in (tmp_path / "policy").iterdir()) == [
        "arrays.safetensors",
        MANIFEST,
        "vocabulary.parquet",
    ]


@pytest.mark.parametrize("name", ["uniform", "popular", "sknn"])
def test_saving_twice_gives_the_same_bytes(name, tmp_path):
    scorer = make(name)
    for folder in (tmp_path / "one", tmp_path / "two"):
        bundle.save(whole(scorer, vectors=VECTORS, about={"seed": 3}), folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert bundle.version_of(tmp_path / "one") == bundle.version_of(tmp_path / "two")


def test_another_rule_is_another_version(tmp_path):
    policy = whole(make("popular"), vectors=VECTORS)
    policy.save(tmp_path / "one")
    policy.with_rule(diversity=1.0).save(tmp_path / "two")
    assert bundle.version_of(tmp_path / "one") != bundle.version_of(tmp_path / "two")


@pytest.mark.parametrize("ids", [[-5, 3, 2**40], ["", "7", "ärmel ☂"]], ids=["numbers", "strings"])
def test_the_vocabulary_comes_back(ids, tmp_path):
    bundle.write(Policy(Uniform(3), Vocabulary(pl.Series("item_id", ids))), tmp_path)
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
    bundle.write(whole(Uniform(7)), tmp_path)
    bundle.load(tmp_path)
    assert seen.keys() == arrays.keys()
    for name, array in arrays.items():
        assert seen[name].dtype == array.dtype
        assert seen[name].shape == array.shape
        np.testing.assert_array_equal(seen[name], array)


class Stranger(Uniform):
    """Has a kind that is another class's."""


class Nameless:
    n_items = 3

    def scores(self, states: States, candidates: Any = None) -> Any:
        return np.zeros((len(states), 3), np.float32)


@pytest.mark.parametrize("scorer", [Stranger(3), Nameless()], ids=["stranger", "nameless"])
def test_a_scorer_that_is_not_registered_is_refused(scorer, tmp_path):
    with pytest.raises(ValueError, match=f"{type(scorer).__name__} is not registered, so it cannot be saved"):
        bundle.save(whole(scorer), tmp_path / "policy")
    assert not list(tmp_path.iterdir())


def test_every_scorer_is_registered_by_its_kind():
    assert set(SCORERS) == {
        "category_popular",
        "evidence",
        "item2vec",
        "markov",
        "neural",
        "popular",
        "quantile_network",
        "session_knn",
        "uniform",
    }
    for kind in SCORERS:
        assert SCORERS[kind].kind == kind


def test_looking_up_a_scorer_imports_no_network():
    """So that a server does not need torch for a policy without it."""
    kinds = ["category_popular", "evidence", "item2vec", "markov", "popular", "session_knn", "uniform"]
    code = (
        "import sys; from bcd4rec.policies.scorer import SCORERS; "
        f"print([kind for kind in {kinds} if SCORERS[kind] and 'torch' in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


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


FILES = ["arrays.safetensors", "vocabulary.parquet", "vectors.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise", "pickle", "one bit"])
def test_a_damaged_file(saved, name, damage):
    content = (saved / name).read_bytes()
    (saved / name).unlink()
    made = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "noise": bytes(reversed(content)),
        "pickle": pickle.dumps({"counts": np.ones(N_ITEMS, np.float32)}),
        "one bit": content[:-1] + bytes([content[-1] ^ 1]),
    }
    if damage in made:
        (saved / name).write_bytes(made[damage])
    message = refused(saved)
    assert "is damaged" in message
    assert name in message


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_bundle_is_refused(saved, tmp_path_factory, name):
    """Readable and of the right shape, and still not what was saved."""
    other = tmp_path_factory.mktemp("other") / "policy"
    counts = np.arange(N_ITEMS, dtype=np.int32)
    bundle.save(whole(make("sknn"), vectors=-VECTORS, popularity=counts), other)
    (saved / name).write_bytes((other / name).read_bytes())
    assert f"{name} is not the file that was saved" in refused(saved)


def test_a_file_that_was_added_is_refused(tmp_path):
    for name, vectors in (("with", VECTORS), ("without", None)):
        bundle.save(whole(make("popular"), vectors=vectors), tmp_path / name)
    (tmp_path / "without" / "vectors.safetensors").write_bytes((tmp_path / "with" / "vectors.safetensors").read_bytes())
    message = refused(tmp_path / "without")
    assert "is damaged" in message
    assert "vectors.safetensors" in message


def changed(folder: Path, **values: Any) -> None:
    """The manifest with these values; None takes a key away."""
    manifest = json.loads((folder / MANIFEST).read_text()) | values
    (folder / MANIFEST).write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname", "not there"])
def test_a_manifest_that_names_other_files_is_refused(saved, name):
    outside = saved.parent / "outside.txt"
    outside.write_text("hello")
    files = json.loads((saved / MANIFEST).read_text())["checksums"]
    changed(saved, checksums=files | {name: bundle.checksum(outside)})
    assert "is damaged" in refused(saved)
    outside.unlink()


@pytest.mark.parametrize("name", FILES[:2])
def test_a_manifest_without_a_checksum_is_refused(saved, name):
    files = json.loads((saved / MANIFEST).read_text())["checksums"]
    del files[name]
    changed(saved, checksums=files)
    assert f"has no checksum of {name}" in refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        *({"settings": None}, {"settings": []}, {"settings": {"method": "sknn"}}),
        *({"scorer": None}, {"scorer": ["sknn"]}),
        *(
            {"checksums": None},
            {"checksums": []},
            {"memory": None},
            {"rule": None},
            {"responses": None},
            {"about": None},
        ),
    ],
    ids=str,
)
def test_a_manifest_that_was_changed(tmp_path, change):
    bundle.write(whole(make("sknn")), tmp_path)
    changed(tmp_path, **change)
    assert "is damaged" in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"memory": {"length": -1}}, "length"),
        ({"rule": {"diversity": -1}}, "diversity"),
        ({"rule": {"after_skip": "sulk"}}, "after_skip"),
        ({"rule": {"exploration": {"kind": "madly"}}}, "exploration"),
        ({"responses": {"rewards": {}}}, "responses"),
    ],
    ids=str,
)
def test_parts_that_make_no_sense_are_told_by_name(saved, change, expected):
    changed(saved, **change)
    with pytest.raises(InputError, match=expected) as caught:
        bundle.load(saved)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind(saved):
    changed(saved, scorer="oracle")
    with pytest.raises(InputError, match=r"Unknown kind of scorer 'oracle'; known are .*popular"):
        bundle.load(saved)


def signed(folder: Path, name: str) -> None:
    """As if a file had been saved as it is now."""
    files = json.loads((folder / MANIFEST).read_text())["checksums"]
    changed(folder, checksums=files | {name: bundle.checksum(folder / name)})


def test_a_vocabulary_of_another_policy(saved):
    pl.DataFrame({"item_id": [1, 2]}).write_parquet(saved / "vocabulary.parquet")
    signed(saved, "vocabulary.parquet")
    assert "the scorer has 7 items, the vocabulary 2" in refused(saved)
    pl.DataFrame({"item": [1, 2]}).write_parquet(saved / "vocabulary.parquet")
    signed(saved, "vocabulary.parquet")
    assert "is damaged" in refused(saved)


def test_vectors_of_another_catalogue(saved):
    save_file({"vectors": VECTORS[:-1]}, saved / "vectors.safetensors")
    signed(saved, "vectors.safetensors")
    assert "vectors.safetensors is of 6 items, the policy of 7" in refused(saved)
