"""Bundles that were damaged or forged: one sentence and exit code 2 at the start, 409 on a reload, never a hang.

Whoever forges a bundle can also write its checksums anew, so most of these do.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from bcd4rec.artifacts import EXPORT, MANIFEST
from bcd4rec.data.states import PAD, FloatArray
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.mixture import mix
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.slates import Slates
from bcd4rec.serving.arms import load_arm
from bcd4rec.serving.bundles import export_bundle
from bcd4rec.serving.loading import load
from bcd4rec.serving.model import OnnxPolicy
from bcd4rec.serving.retrieval import INDEX, MEASURED, InvertedFile, Measured, inverted_file_for
from serving_help import ITEMS, Running, quantile_policy, saved, serving, whole
from test_cli import fails

ADMIN = "an-admin-key-for-tests"
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(quantile_policy("bigru", "implicit", beta=0.5), tmp_path_factory.mktemp("policy") / "policy")
    export_bundle(folder)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "policy"))


# ---- how to forge a bundle


def manifest(folder: Path, **changes: Any) -> None:
    found = json.loads((folder / MANIFEST).read_text()) | changes
    (folder / MANIFEST).write_text(json.dumps(found))
    (folder / EXPORT).unlink(missing_ok=True)


def settings(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        manifest(folder, settings=json.loads((folder / MANIFEST).read_text())["settings"] | changes)

    return damage


def arrays(change: Callable[[str, FloatArray], FloatArray]) -> Damage:
    def damage(folder: Path) -> None:
        found = {name: change(name, array.copy()) for name, array in load_file(folder / bundle.ARRAYS).items()}
        save_file({name: np.ascontiguousarray(array) for name, array in found.items()}, folder / bundle.ARRAYS)
        checksums = json.loads((folder / MANIFEST).read_text())["checksums"]
        manifest(folder, checksums=checksums | {bundle.ARRAYS: bundle.checksum(folder / bundle.ARRAYS)})

    return damage


def some(word: str, change: Callable[[FloatArray], FloatArray]) -> Damage:
    return arrays(lambda name, array: change(array) if word in name else array)


def spoiled(value: float) -> Callable[[FloatArray], FloatArray]:
    def change(array: FloatArray) -> FloatArray:
        array.flat[0] = value
        return array

    return change


def written(name: str, content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def swapped(folder: Path) -> None:
    """The model of another policy, which is a good one."""
    other = saved(quantile_policy("bigru", "implicit", beta=0.5, seed=9), folder.parent / "other")
    export_bundle(other)
    shutil.copy(other / "model.onnx", folder / "model.onnx")


def listed(forge: Callable[[onnx.ModelProto], None] | Damage, name: str = "model.onnx") -> Damage:
    """A changed model whose checksum is right."""

    def damage(folder: Path) -> None:
        model = onnx.load_model_from_string((folder / name).read_bytes())
        forge(model)  # type: ignore[arg-type]
        (folder / name).write_bytes(model.SerializeToString())
        files = json.loads((folder / EXPORT).read_text())["files"]
        bundle.list_exported(folder, [folder / one for one in files])

    return damage


def from_elsewhere(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def endless(model: onnx.ModelProto) -> None:
    """A loop without an end before everything else."""
    body = onnx.parser.parse_graph("b (int64 i, bool c) => (bool d) { d = Identity(c) }")
    node = onnx.helper.make_node("Loop", ["", "forever"], [], body=body)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "forever"))
    model.graph.node.insert(0, node)


def another_version(model: onnx.ModelProto) -> None:
    model.metadata_props[0].value = "000000000000"


def pipe(folder: Path) -> None:
    """Reading it would wait for ever."""
    (folder / bundle.ITEMS).unlink()
    os.mkfifo(folder / bundle.ITEMS)


def unlike(folder: Path) -> None:
    pl.DataFrame({"item_id": ["\x1b[31mred"] * ITEMS}).write_parquet(folder / bundle.ITEMS)


def listed_by_a_pipe(folder: Path) -> None:
    (folder / EXPORT).unlink()
    os.mkfifo(folder / EXPORT)


def header(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Another description of where each array is, and of what."""

    def damage(folder: Path) -> None:
        content = (folder / bundle.ARRAYS).read_bytes()
        size = int.from_bytes(content[:8], "little")
        found = json.loads(content[8 : 8 + size])
        change(found["network.embeddings"])
        told = json.dumps(found).encode()
        (folder / bundle.ARRAYS).write_bytes(len(told).to_bytes(8, "little") + told + content[8 + size :])
        checksums = json.loads((folder / MANIFEST).read_text())["checksums"]
        manifest(folder, checksums=checksums | {bundle.ARRAYS: bundle.checksum(folder / bundle.ARRAYS)})

    return damage


def moved(first: int, last: int) -> Damage:
    """An array that begins and ends so many bytes later than it does."""

    def change(entry: dict[str, Any]) -> None:
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [begin + first, end + last]

    return header(change)


def misplaced(first: int) -> Damage:
    """An array of the right size that begins here."""

    def change(entry: dict[str, Any]) -> None:
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [first, first + end - begin]

    return header(change)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "NaN in the embeddings": (some("embeddings", spoiled(np.nan)), "not numbers"),
    "NaN in the encoder": (some("encoder", spoiled(np.nan)), "not numbers"),
    "infinite weights": (some("network.embeddings", spoiled(np.inf)), "not numbers"),
    "an infinite offset": (settings(offset=1e300), "its values are not numbers"),
    "an offset below everything": (settings(offset=-1e300), "recommends nothing"),
    "an offset that is a word": (settings(offset="much"), "is damaged"),
    "a constraint that is not one": (settings(beta=float("nan")), "found NaN"),
    "wrong widths of the encoder": (some("network.encoder", lambda array: array[..., :-1]), "is damaged"),
    "wrong widths of the embeddings": (some("network.embeddings", lambda array: array[:, :-1]), "is damaged"),
    "fewer items": (some("network.embeddings", lambda array: array[:-1]), "is damaged"),
    "no items": (some("embeddings", lambda array: array[:0]), "is damaged"),
    "fewer items of the behaviour model": (some("behaviour.embeddings", lambda array: array[:-3]), "is damaged"),
    "a memory of a billion": (lambda folder: manifest(folder, memory={"length": 10**9}), "length"),
    "skips of a billion": (lambda folder: manifest(folder, memory={"skips": 10**9}), "skips"),
    "a memory of nothing": (lambda folder: manifest(folder, memory={"length": 0}), "is damaged"),
    "nested lists": (written(MANIFEST, b"[" * 200_000), "not JSON"),
    "nested objects": (written(MANIFEST, b'{"kind":' * 200_000), "not JSON"),
    "a number without an end": (written(MANIFEST, b'{"format":' + b"9" * 100_000 + b"}"), "not JSON"),
    "not a text": (written(MANIFEST, b"\xff\xfe\x00"), "not JSON"),
    "nested settings": (written(bundle.ARRAYS, (10**6).to_bytes(8, "little") + b"[" * 10**6), "not the file"),
    "embeddings that are integers": (header(lambda entry: entry.update(dtype="I32")), "is of type I32, expected F32"),
    "embeddings in the header": (misplaced(-8), "is not where the file says"),
    "embeddings behind the end": (misplaced(10**9), "is not where the file says"),
    "embeddings of odd bytes": (moved(0, 3), "is not where the file says"),
    "embeddings that end before they begin": (
        header(lambda entry: entry.update(shape=[-ITEMS, 6], data_offsets=[24 * ITEMS, 0])),
        "is not where the file says",
    ),
    "a pipe": (pipe, "missing"),
    "other items": (unlike, "not the file"),
    "no behaviour model": (removed("behaviour.onnx"), "behaviour.onnx is missing"),
    "no model": (removed("model.onnx"), "model.onnx is missing"),
    "another model": (swapped, "model.onnx is not the file that was saved"),
    "half a model": (written("model.onnx", b"\x08\x0a\x3a"), "model.onnx is not the file that was saved"),
    "data from elsewhere": (listed(from_elsewhere), "is not the model of this policy"),
    "a loop": (listed(endless), "is not the model of this policy"),
    "a model of another version": (listed(another_version, "behaviour.onnx"), "is not the model of this policy"),
    "a list of another policy": (written(EXPORT, b'{"manifest": "0", "files": {}}'), "of another policy"),
    "a list of strangers": (
        lambda folder: bundle.list_exported(folder, [folder / bundle.ITEMS]),
        "export.json lists vocabulary.parquet",
    ),
    "a nested list of files": (written(EXPORT, b"[" * 200_000), "not JSON"),
    "a pipe in place of the list": (listed_by_a_pipe, "export.json is no file"),
    "no list": (written(EXPORT, b"[]"), "is damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_refused_in_one_sentence(folder: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    assert load_arm("a", folder, 1.0).version
    damage(folder)
    with pytest.raises(InputError) as caught:
        load_arm("a", folder, 1.0)
    text = str(caught.value)
    assert expected in text
    assert str(folder) in text or "memory" in text
    assert text.endswith(".")
    assert text.isprintable()
    assert len(text) < 500


@pytest.fixture(scope="module")
def server(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    scratch = tmp_path_factory.mktemp("server")
    folder = Path(shutil.copytree(exported, scratch / "policy"))
    with serving(scratch, folder, environment={"BCD4REC_ADMIN_KEYS": ADMIN}) as running:
        yield running, folder


def test_a_reload_keeps_the_old_policy(server: tuple[Running, Path], exported: Path) -> None:
    running, folder = server
    before = running.recommend(session=[3], k=5)
    for name, (damage, _) in DAMAGES.items():
        shutil.rmtree(folder)
        shutil.copytree(exported, folder)
        damage(folder)
        answer = running.post("/v1/policy/reload", {}, x_api_key=ADMIN)
        assert (answer.status_code, answer.json()["error"][:22]) == (409, "The old policy goes on"), name
    after = running.recommend(session=[3], k=5)
    assert (after["items"], after["policy"]) == (before["items"], before["policy"])
    shutil.rmtree(folder)
    shutil.copytree(exported, folder)
    assert running.post("/v1/policy/reload", {}, x_api_key=ADMIN).status_code == 200


@pytest.mark.parametrize("name", ["NaN in the encoder", "nested objects", "no behaviour model"])
def test_a_server_does_not_start(folder: Path, tmp_path: Path, name: str) -> None:
    DAMAGES[name][0](folder)
    assert DAMAGES[name][1] in fails("serve", folder, "--port", 0, "--database", tmp_path / "x.sqlite")
    assert not (tmp_path / "x.sqlite").exists()


def test_files_that_change_under_a_server_change_nothing(server: tuple[Running, Path]) -> None:
    """Weights that were mapped into memory would follow, or end the process where the file was cut."""
    running, folder = server
    before = running.recommend(session=[3], k=5, explain=True)
    path = folder / bundle.ARRAYS
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(len(content)))
    assert running.recommend(session=[3], k=5, explain=True)["items"] == before["items"]
    os.truncate(path, 10)
    assert running.recommend(session=[3], k=5, explain=True)["items"] == before["items"]
    assert running.process.poll() is None
    path.write_bytes(content)


def test_the_version_covers_what_was_exported(tmp_path: Path) -> None:
    folder = saved(quantile_policy("meanpool", "implicit"), tmp_path / "policy")
    trained = load(folder).version
    version, files = export_bundle(folder)
    assert load(folder).version == version != trained
    assert export_bundle(folder)[0] == version
    bundle.list_exported(folder, files[:1])
    assert load(folder).version not in (version, trained)
    (folder / EXPORT).unlink()  # what nobody lists is not used
    (folder / "model.onnx").write_bytes(b"nonsense")
    assert load(folder).version == trained
    assert export_bundle(folder)[0] == version


def test_a_damaged_export_is_mended_by_another(folder: Path) -> None:
    version = load(folder).version
    (folder / "behaviour.onnx").unlink()
    (folder / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="bcd4rec export"):
        load(folder)
    assert export_bundle(folder)[0] == version == load(folder).version


def test_every_command_refuses_a_bundle_that_lacks_something(folder: Path) -> None:
    """Also those that do not use what was exported: it is one bundle with one version."""
    assert bundle.load(folder).n_items == ITEMS
    content = (folder / "behaviour.onnx").read_bytes()
    (folder / "behaviour.onnx").write_bytes(content + b" ")
    with pytest.raises(InputError, match=r"behaviour\.onnx is not the file that was saved"):
        bundle.load(folder)
    (folder / "behaviour.onnx").unlink()
    with pytest.raises(InputError, match=r"behaviour\.onnx is missing"):
        bundle.load(folder)


def test_the_constraint_stays(folder: Path) -> None:
    """Whatever is exported or not: the behaviour model is made of the bundle's arrays."""
    (folder / EXPORT).unlink()
    for name in ("model.onnx", "quantiles.onnx", "behaviour.onnx"):
        (folder / name).unlink()
    scorer = load(folder).policy.scorer
    assert isinstance(scorer, OnnxPolicy)
    assert scorer.constrained


def test_a_policy_that_does_not_answer_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load(folder)
    monkeypatch.setattr(OnnxPolicy, "scores", lambda *_: time.sleep(3))
    with pytest.raises(InputError, match=r"did not answer within 0\.1 seconds"):
        served.warm_up(0.1)


class Short:
    """Scores of one item less than there are."""

    kind, n_items = "short", ITEMS

    def scores(self, states: Any, candidates: Any = None) -> FloatArray:
        width = self.n_items if candidates is None else candidates.shape[1]
        return np.zeros((len(states), width - 1), np.float32)


def test_shapes_are_as_the_manifest_says(folder: Path) -> None:
    served = load(folder)
    with pytest.raises(InputError, match=rf"shape \(1, {ITEMS - 1}\), expected \(1, {ITEMS}\)"):
        replace(served, policy=whole(Short())).warm_up()


class Odd:
    """Good scores of all items, and something wrong besides."""

    kind, n_items = "odd", ITEMS

    def __init__(self, some: float = 0.0, narrow: int = 0):
        self._some, self._narrow = some, narrow

    def scores(self, states: Any, candidates: Any = None) -> FloatArray:
        if candidates is None:
            return np.zeros((len(states), ITEMS), np.float32)
        return np.full((len(states), candidates.shape[1] - self._narrow), self._some, np.float32)


@pytest.mark.parametrize(
    ("scorer", "words"),
    [(Odd(some=np.nan), "not numbers"), (Odd(narrow=1), r"shape \(1, 2\), expected \(1, 3\)"), (Odd(), None)],
)
def test_some_items_are_asked_for_too(folder: Path, scorer: Odd, words: str | None) -> None:
    served = replace(load(folder), policy=whole(scorer))
    if words is None:
        served.warm_up()
        return
    with pytest.raises(InputError, match=words):
        served.warm_up()


@pytest.mark.parametrize(
    ("slates", "words"),
    [
        (Slates(np.array([[3, 4, PAD]]), np.ones((1, 3)), np.array([[1.0, np.nan, 0.0]])), "slates are not numbers"),
        (Slates(np.array([[3, 4, PAD]]), np.array([[1.0, 0.0, 0.0]]), np.ones((1, 3))), "slates are not numbers"),
        (Slates(np.array([[PAD, PAD, PAD]]), np.ones((1, 3)), np.ones((1, 3))), "recommends nothing"),
    ],
)
def test_slates_that_cannot_be_stored(folder: Path, monkeypatch: Any, slates: Slates, words: str) -> None:
    served = load(folder)
    monkeypatch.setattr(Policy, "slates", lambda *_: slates)
    with pytest.raises(InputError, match=words):
        served.warm_up()


def test_quantiles_that_cannot_be_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load(folder)
    monkeypatch.setattr(Policy, "quantiles", lambda *_: [{"0.5": 1.0}, {"0.5": float("inf")}])
    with pytest.raises(InputError, match="quantiles are not numbers"):
        served.warm_up()


# ---- mixtures


def mixture_of(folder: Path, part: Path) -> Path:
    """A mixture of a policy with itself, by links."""
    folder.mkdir()
    for name in bundle.PARTS:
        (folder / name).symlink_to(part)
    parts = {name: bundle.checksum(part / MANIFEST) for name in bundle.PARTS}
    more = {"settings": {}, "share": 0.5, "parts": parts, "about": {}}
    found = {"kind": "policy", "format": bundle.FORMAT, "scorer": "mixture"} | more
    (folder / MANIFEST).write_text(json.dumps(found))
    return folder


def test_mixtures_within_mixtures_have_an_end(folder: Path, tmp_path: Path) -> None:
    """A few folders and links would otherwise make a server load policies for years."""
    part = folder
    for depth in range(1, 40):
        part = mixture_of(tmp_path / f"m{depth}", part)
        if depth == 2:
            assert load(part).policy.n_items == ITEMS
    with pytest.raises(InputError, match="mixtures within mixtures"):
        load(part)
    policy = bundle.load(folder)
    for _ in range(bundle.DEEPEST):
        policy = mix(policy, policy, 0.5)
    bundle.save(policy, tmp_path / "deep")
    with pytest.raises(InputError, match="cannot be mixed more than 4 times"):
        bundle.save(mix(policy, policy, 0.5), tmp_path / "deeper")
    assert not (tmp_path / "deeper").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: manifest(folder, share=7), "expected 0 to 1"),
        (lambda folder: manifest(folder, share="much"), "is damaged"),
        (lambda folder: manifest(folder, parts={}), "is damaged"),
        (lambda folder: (folder / "new").unlink(), "new is not the policy that was saved"),
        (
            lambda folder: ((folder / "old").unlink(), (folder / "old").mkdir(), os.mkfifo(folder / "old" / MANIFEST)),
            "old",
        ),
        (lambda folder: os.truncate(folder / "old" / bundle.ARRAYS, 100), "not the file that was saved"),
    ],
)
def test_a_damaged_mixture(folder: Path, tmp_path: Path, damage: Damage, words: str) -> None:
    mixture = mixture_of(tmp_path / "mixture", folder)
    damage(mixture)
    with pytest.raises(InputError, match=words):
        load_arm("a", mixture, 1.0)


# ---- the index of a large catalogue


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(quantile_policy("meanpool", "implicit"), tmp_path_factory.mktemp("large") / "policy")
    policy = load(folder).policy.scorer
    assert isinstance(policy, OnnxPolicy)
    bundle.list_exported(folder, InvertedFile(policy, index_of(policy.tower.table)).save(folder))
    return folder


def index_of(table: FloatArray) -> Any:
    import faiss

    index = faiss.index_factory(table.shape[1], "IVF3,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(table))
    index.add(np.ascontiguousarray(table))
    return index


def stored(table: Callable[[FloatArray], FloatArray], probes: int = 1) -> Damage:
    def damage(folder: Path) -> None:
        policy = load(folder).policy.scorer
        assert isinstance(policy, OnnxPolicy)
        made = InvertedFile(policy, index_of(table(policy.tower.table)), Measured(1.0, 1.0, probes))
        bundle.list_exported(folder, made.save(folder))

    return damage


def raw(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        bundle.list_exported(folder, [folder / INDEX, folder / MEASURED])

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (written(INDEX, b"nothing"), "not the file that was saved"),
        (removed(INDEX), "retrieval.faiss is missing"),
        (raw(INDEX, lambda content: content[: len(content) // 2]), "is damaged"),
        (raw(INDEX, lambda content: b"none" + content[4:]), "is damaged"),
        (raw(INDEX, lambda content: b""), "is damaged"),
        (raw(MEASURED, lambda content: b"{}"), "is damaged"),
        (raw(MEASURED, lambda content: b"[" * 200_000), "not JSON"),
        (stored(lambda table: table[:-1]), "not of these items"),
        (stored(lambda table: table[:, :-1]), "not of these items"),
        (stored(lambda table: table, probes=10**9), "not of these items"),
    ],
)
def test_a_damaged_index_is_refused(indexed: Path, tmp_path: Path, damage: Damage, expected: str) -> None:
    folder = Path(shutil.copytree(indexed, tmp_path / "policy"))

    def read() -> InvertedFile | None:
        served = load(folder)
        assert isinstance(served.policy.scorer, OnnxPolicy)
        return inverted_file_for(served, served.policy.scorer)

    assert read() is not None
    damage(folder)
    with pytest.raises(InputError, match=expected) as caught:
        read()
    assert "bcd4rec export" in str(caught.value) or "anew" in str(caught.value)


def test_an_index_that_finds_nothing(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load(indexed)
    assert isinstance(served.policy.scorer, OnnxPolicy)
    monkeypatch.setattr(InvertedFile, "pool", lambda *_: np.empty(0, np.int32))
    with pytest.raises(InputError, match=r"retrieval\.faiss finds nothing"):
        inverted_file_for(served, served.policy.scorer)


def test_an_index_with_items_that_are_not_there(indexed: Path) -> None:
    served = load(indexed)
    policy = served.policy.scorer
    assert isinstance(policy, OnnxPolicy)
    found = InvertedFile.read(policy, served.bundle)
    assert found is not None
    found._index.add(np.ascontiguousarray(policy.tower.table))  # numbers from ITEMS on
    assert found.pool(np.ones((1, policy.tower.table.shape[1]), np.float32), ITEMS).max() < ITEMS
