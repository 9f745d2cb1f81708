"""The loop from log to traffic in small: decisions are acted on, rounds are kept, and the same seed plays the same."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "study_loop.py"
SMALL = ["--methods", "popular,markov", "--sessions", "200", "--most", "250", "--truth", "200"]
SMALL += ["--items", "40", "--slate-size", "2", "--horizon", "4"]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study_loop", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["study_loop"] = module
    spec.loader.exec_module(module)
    return module


def test_a_repetition_is_kept_and_goes_on(study, tmp_path, capsys):
    keep = tmp_path / "loop.jsonl"
    first = study.main([*SMALL, "--repetitions", "1", "--keep", str(keep)])
    assert [one.number for one in first] == [0, 1]
    assert len(keep.read_text().splitlines()) == 2
    again = study.main([*SMALL, "--repetitions", "1", "--keep", str(keep)])
    assert again == first  # nothing was played
    assert "1 repetitions of 2 rounds" in capsys.readouterr().out
    assert all(one.canary in ("promote", "roll back", "stop", "none") for one in first)


def test_the_winner_serves(study, monkeypatch):
    """A canary that promotes everything, and one that promotes nothing: then what serves is the new or the old one."""
    settings = study.Settings(("popular", "ctr"), 200, 100, truth=300, items=40, slate_size=2, horizon=4)

    def deciding(decision):
        def canary(new, old, environment, settings, seed):
            found = study.Canary()
            found.decision = decision
            return found

        monkeypatch.setattr(study, "canary", canary)
        return study.repetition(settings, 0)

    promoted, stopped = deciding("promote"), deciding("stop")
    assert promoted[0].true_gain == stopped[0].true_gain  # the same luck
    gain = promoted[0].serving - stopped[0].serving
    assert gain == pytest.approx(promoted[0].true_gain)
    assert promoted[1].true_gain != stopped[1].true_gain


def test_only_what_is_surely_worse_and_shipped_is_wrong(study):
    def one(canary, gain):
        return study.Round(0, 0, "ctr", "cannot tell", canary, 10, gain, 1.0, 50.0)

    assert one("promote", -2.1).wrong
    assert not one("promote", -1.9).wrong
    assert not one("roll back", -9.0).wrong
