"""Policies without torch score as they do with it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.neural import NeuralPolicy
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.models.encoder import ENCODERS
from bcd4rec.models.next_item import NextItem
from bcd4rec.policies.policy import Memory
from bcd4rec.policies.slates import SlateRule
from bcd4rec.serving import exporting, heads
from bcd4rec.serving.bundles import export_bundle
from bcd4rec.serving.loading import load
from bcd4rec.serving.model import OnnxPolicy
from serving_help import ITEMS, LENGTH, SKIPS, WIDTH, quantile_policy, saved, shaken, states_of

BATCH = 9


def random_states(rng: np.random.Generator, length: int, skips: int) -> States:
    """Sessions of every length, the first of them empty, items repeating now and then."""

    def histories(width: int) -> IntArray:
        found = np.full((BATCH, width), PAD, np.int32)
        for row in range(1, BATCH):
            count = rng.integers(width + 1)
            found[row, :count] = rng.integers(ITEMS, size=count)
        return found

    return States(histories(length), histories(skips))


def assert_same_scores(policy: Any, served: Any, states: States, rng: np.random.Generator) -> None:
    candidates = rng.integers(PAD, ITEMS, (len(states), 4)).astype(np.int32)
    for wanted in (None, candidates):
        np.testing.assert_allclose(served.scores(states, wanted), policy.scores(states, wanted), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
@pytest.mark.parametrize("head", ["expected", "fixed", "implicit"])
@pytest.mark.parametrize("more", [{}, {"pooling": True, "state_value": False}], ids=["plain", "pooling"])
def test_quantile_policies_score_as_with_torch(encoder: str, head: str, more: dict[str, Any], tmp_path: Path) -> None:
    policy = quantile_policy(encoder, head, **more)
    served = load(saved(policy, tmp_path)).policy.scorer
    assert isinstance(served, OnnxPolicy)
    rng = np.random.default_rng(1)
    for length, skips in ((LENGTH, SKIPS), (3, 0), (1, 1)):
        states = random_states(rng, length, skips)
        assert_same_scores(policy, served, states, rng)
        for row in range(2):  # alone as in a batch; the first session is empty
            assert_same_scores(policy, served, states[row : row + 1], rng)
        items = rng.integers(ITEMS, size=BATCH).astype(np.int32)
        np.testing.assert_allclose(served.quantiles(states, items, 11), policy.quantiles(states, items, 11), atol=5e-5)


@pytest.mark.parametrize("encoder", ["gru", "srgnn"])
def test_next_item_networks_score_as_with_torch(encoder: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = NextItem(np.random.default_rng(2).normal(size=(ITEMS, WIDTH)).astype(np.float32), encoder)
    shaken(model)
    policy = NeuralPolicy(model, encoder, LENGTH)
    served = load(saved(policy, tmp_path)).policy.scorer
    rng = np.random.default_rng(3)
    assert_same_scores(policy, served, random_states(rng, LENGTH, SKIPS), rng)


@pytest.mark.parametrize(("beta", "form"), [(0.3, "relative"), (0.2, "literal"), (0.999, "literal"), (1.0, "relative")])
def test_the_constraint_allows_the_same_items(beta: float, form: str, tmp_path: Path) -> None:
    policy = quantile_policy("meanpool", "implicit", beta, form)
    served = load(saved(policy, tmp_path)).policy.scorer
    rng = np.random.default_rng(4)
    states = random_states(rng, LENGTH, SKIPS)
    expected = policy.scores(states)
    assert 0 < np.isfinite(expected).sum() < expected.size
    assert_same_scores(policy, served, states, rng)


def test_the_behaviour_model_explains(tmp_path: Path) -> None:
    policy = quantile_policy("bigru", "implicit")
    served = load(saved(policy, tmp_path)).policy.scorer
    assert isinstance(served, OnnxPolicy)
    assert not served.constrained
    states = random_states(np.random.default_rng(6), LENGTH, SKIPS)
    assert policy.behaviour is not None
    with torch.no_grad():
        expected = policy.behaviour.log_probabilities(torch.from_numpy(states.positives)).numpy()
    np.testing.assert_allclose(served.log_likelihood(states), expected, atol=2e-5)
    assert np.isfinite(served.scores(states)).all()


@pytest.mark.parametrize("name", ["popular", "item2vec", "stan"])
def test_other_policies_are_served_as_they_are(name: str, tmp_path: Path) -> None:
    options = {"width": 4, "epochs": 1} if name == "item2vec" else {}
    dataset = Dataset.from_sequences(Sequences.of([[0, 2, 4], [4, 1], [2, 4, 6, 0]]), ITEMS)
    policy = BASELINES[name].parse(options, "test").fit(dataset, 0)
    served = load(saved(policy, tmp_path))
    states = random_states(np.random.default_rng(7), LENGTH, SKIPS)
    assert served.policy.scorer.scores(states).tobytes() == policy.scores(states).tobytes()
    with pytest.raises(InputError, match="has no network; `bcd4rec serve` takes it as it is"):
        export_bundle(tmp_path)


def test_what_is_known_of_a_policy(tmp_path: Path) -> None:
    served = load(saved(quantile_policy("bigru", "implicit"), tmp_path))
    assert (served.policy.memory.length, served.policy.memory.skips, served.method) == (LENGTH, SKIPS, "iqn")
    assert served.responses.positive == ("click", "buy")
    assert served.policy.popularity is not None
    assert served.policy.popularity.tolist() == list(range(ITEMS))
    states = states_of(served.policy, [1, 2, 3, 4, 5, 6], [7])
    assert states.positives.tolist() == [[2, 3, 4, 5, 6]]
    assert states.skips.tolist() == [[7] + [PAD] * (SKIPS - 1)]
    assert states_of(served.policy, [], list(range(SKIPS + 2))).skips.tolist() == [list(range(2, SKIPS + 2))]
    empty = states_of(replace(served.policy, memory=Memory(length=LENGTH)), [], [1, 2])
    assert (empty.positives.tolist(), empty.skips.shape) == ([[PAD] * LENGTH], (1, 0))
    other = load(saved(quantile_policy("bigru", "expected"), tmp_path))
    assert len(served.version) == 12
    assert other.version != served.version


def test_what_the_command_line_says_counts_in_place_of_the_policys_rule(tmp_path: Path) -> None:
    folder = saved(quantile_policy("bigru", "implicit"), tmp_path, rule=SlateRule(unavailable="shown"))
    kept, changed = load(folder), load(folder, {"after_skip": "exclude"})
    assert kept.policy.rule == SlateRule(unavailable="shown")
    assert changed.policy.rule == SlateRule(unavailable="shown", after_skip="exclude")
    assert kept.version == changed.version


def test_exported_models_run_on_their_own(tmp_path: Path) -> None:
    """The file alone, as somebody else would use it: embeddings come from the bundle's arrays."""
    policy = quantile_policy("bigru", "implicit")
    folder = saved(policy, tmp_path)
    trained = load(folder).version
    version, written = export_bundle(folder)
    assert [path.name for path in written] == ["model.onnx", "quantiles.onnx", "behaviour.onnx"]
    size = (folder / "model.onnx").stat().st_size
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {exporting.VERSION: trained}
    assert load(folder).version == version != trained
    states = random_states(np.random.default_rng(8), LENGTH, SKIPS)
    given = {"positives": states.positives.astype(np.int64), "skips": states.skips.astype(np.int64)}
    preference, bias = session.run(["preference", "bias"], given)
    values = preference @ policy.network.embeddings.detach().numpy().T + bias + policy.offset
    np.testing.assert_allclose(values, policy.scores(states), atol=2e-5)
    assert size < 20_000
    first = (folder / "model.onnx").read_bytes()
    export_bundle(folder)
    assert (folder / "model.onnx").read_bytes() == first


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
def test_no_sessions_have_no_scores(encoder: str, tmp_path: Path) -> None:
    """onnxruntime's GRU does not survive a batch of none."""
    served = load(saved(quantile_policy(encoder, "implicit", beta=0.3), tmp_path)).policy.scorer
    nobody = States.empty(0, LENGTH, SKIPS)
    assert served.scores(nobody).shape == (0, ITEMS)
    assert isinstance(served, OnnxPolicy)
    assert served.quantiles(nobody, np.zeros(0, np.int32), 7).shape == (0, 7)


def test_constants_that_stand_twice_are_the_same() -> None:
    """A server cannot import modules of torch, so it has its own copies."""
    from bcd4rec.models.heads import midpoints

    assert heads.midpoints(7).tolist() == midpoints(7).tolist()


def test_serving_imports_no_torch(tmp_path: Path) -> None:
    folder = saved(quantile_policy("bigru", "implicit"), tmp_path)
    code = (
        "import sys; from pathlib import Path; from bcd4rec.serving.loading import load; "
        f"s = load(Path({str(folder)!r})); s.warm_up(); assert len(s.policy.recommend([1])) == 3; "
        "assert 'torch' not in sys.modules; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_damaged_bundles_are_refused(tmp_path: Path) -> None:
    folder = saved(quantile_policy("bigru", "implicit"), tmp_path)
    content = (folder / "arrays.safetensors").read_bytes()
    for damaged in (b"", content[:100], content[: len(content) // 2], bytes(reversed(content))):
        (folder / "arrays.safetensors").write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            load(folder)
    (folder / "arrays.safetensors").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["settings"]["network"]["encoder"] = "mystery"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="'mystery' has no ONNX graph"):
        load(folder)
