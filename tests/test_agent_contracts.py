"""What every registered agent keeps in its default form, on logs of all kinds. Nothing here names an agent."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bcd4rec.agents.agent import AGENTS, AgentConfig, Material
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, States
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.training import Trainer
from bcd4rec.workflows.fitting import fit
from test_evidence_agent import dataset_of, frame_of

ITEMS = 9  # fewer than the next actions that agents look at
CHANCE = np.array([0.1, 0.2, 0.9, 0.3, 0.15, 0.05, 0.25, 0.1, 0.2])
QUICK = {"updates": 6, "batch_size": 16}
every_agent = pytest.mark.parametrize("name", AGENTS.names())


@cache
def log(slates: int = 3, skips: bool = True) -> Dataset:
    """Some items are better than others; with one slate in a session, and without skips, there is less to learn."""
    rng = np.random.default_rng(0)
    rows = []
    for session in range(60):
        for step in range(slates):
            for place, item in enumerate(rng.choice(ITEMS, 2, replace=False)):
                liked = rng.random() < CHANCE[item] or not skips
                rows.append((session, step, place, int(item), "click" if liked else "skip"))
    return dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0})


@cache
def material(name: str) -> Material:
    return AGENTS[name]().material(log(), 0)


def trained(config: AgentConfig, name: str, seed: int = 0, checkpoint: Path | None = None) -> Trainer:
    trainer = Trainer(config, log(), seed, checkpoint, material=material(name))
    for _ in trainer.run(100):
        pass
    return trainer


def tensors(trainer: Trainer) -> list[torch.Tensor]:
    modules = [part for part in trainer.agent.parts().values() if isinstance(part, torch.nn.Module)]
    return [one for module in modules for one in module.state_dict().values()]


def some_states() -> States:
    return log().states[np.arange(0, len(log().states), 5)]


@every_agent
def test_it_finds_what_is_liked_and_never_holds_all_items_alike(name):
    scores = trained(AGENTS[name].parse({"updates": 30}, "test"), name).agent.policy().scores(some_states())
    assert scores.shape[1] == ITEMS
    best = log().vocabulary.ids.to_list().index(2)
    unseen = (some_states().positives != best).all(axis=1)
    assert (scores[unseen].argmax(axis=1) == best).mean() > 0.9
    assert (scores.max(axis=1) - scores.min(axis=1) > 1e-3).all()


@every_agent
def test_same_seed_same_bits_and_checkpoints_resume_to_them(name, tmp_path):
    config = AGENTS[name].parse({"updates": 8, "batch_size": 16, "target_every": 3}, "test")
    whole = trained(config, name)
    assert all(map(torch.equal, tensors(whole), tensors(trained(config, name))))
    first = Trainer(config, log(), 0, material=material(name))
    next(iter(first.run(report_every=5)))
    first.save(tmp_path / "checkpoint")
    assert all(map(torch.equal, tensors(whole), tensors(trained(config, name, 0, tmp_path / "checkpoint"))))
    with pytest.raises(InputError, match="its seed differs"):
        Trainer(config, log(), 4, tmp_path / "checkpoint", material=material(name))


@every_agent
def test_saved_and_loaded_it_scores_the_same(name, tmp_path):
    fitted = fit(name, log(), QUICK, search="none")
    fitted.save(log(), tmp_path)
    loaded = bundle.load(tmp_path).scorer
    candidates = np.array([[3, PAD, 0]] * len(some_states()), np.int32)
    for wanted in (None, candidates):
        assert np.array_equal(fitted.scorer.scores(some_states(), wanted), loaded.scores(some_states(), wanted))


@every_agent
def test_settings_that_nobody_knows_are_refused(name):
    with pytest.raises(InputError, match="unknown key 'colour'"):
        AGENTS[name].parse({"colour": "blue"}, f"{name} --set")


@every_agent
@pytest.mark.parametrize(("slates", "skips"), [(1, True), (3, False), (1, False)])
def test_logs_that_teach_little_are_no_error(name, slates, skips):
    """Every session one slate, or clicks alone."""
    dataset = log(slates, skips)
    scores = fit(name, dataset, QUICK, search="none").scorer.scores(dataset.states)
    assert np.isfinite(scores).all()
    assert (scores.max(axis=1) > scores.min(axis=1)).any()


@every_agent
def test_the_search_chooses_its_strength(name):
    about = fit(name, log(), QUICK).about
    strength = AGENTS[name]().strength
    if strength is None:
        assert "search" not in about
        return
    assert len(about["search"]["tried"]) == 3
    assert about["search"]["setting"] == strength
    assert about["search"]["chosen"] == about["config"][strength]


@every_agent
def test_the_paper_s_form(name):
    if "paper" not in AGENTS[name].presets:
        pytest.skip("it has none")
    small = {"updates": 2, "dimension": 6, "pretraining_epochs": 1, "batch_size": 8}
    config = AGENTS[name].parse(dict(AGENTS[name].presets["paper"]) | small, "test")
    fitted = fit(name, log(), dict(AGENTS[name].presets["paper"]) | small)
    assert (config.encoder, config.pretraining, config.evidence) == ("bigru", "srgnn", False)
    assert np.isfinite(fitted.scorer.scores(some_states())).all()
    assert "search" not in fitted.about


def test_tables_and_help_texts_know_every_agent():
    """Names are read from the files, so that a help text imports nothing."""
    assert list(AGENTS.declared()) == AGENTS.names()
    from bcd4rec.commands import train, tune

    for command in (train.train, tune.tune):
        said = command.__annotations__["method"].__metadata__[0].help
        assert all(name in said for name in AGENTS.names())
    assert all(AGENTS[name].__doc__ for name in AGENTS.names())
    page = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in AGENTS.names())


EMBEDDINGS = {"evidence": False, "dimension": 6, "pretraining": "none", "encoder": "meanpool"}


@pytest.mark.parametrize("form", [{}, EMBEDDINGS], ids=["evidence", "embeddings"])
def test_the_example_of_the_documentation_is_an_agent(form, monkeypatch):
    """One file more, and nothing else: it trains under the command's own function and is searched like the others."""
    page = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    AGENTS.names()
    monkeypatch.setattr(AGENTS, "_parts", dict(AGENTS._parts))
    exec(compile(code, "boltzmann.py", "exec"), {"__name__": "boltzmann"})  # noqa: S102 (our own page)
    assert code.count("\n") <= 50
    fitted = fit("boltzmann", log(), QUICK | form)
    assert fitted.about["config"]["warmth"] == 0.1
    assert ("search" in fitted.about) == (not form)
    assert (np.ptp(fitted.scorer.scores(some_states()), axis=1) > 0).all()
