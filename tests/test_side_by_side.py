"""Commands whose work is made side by side: the same as one after the other."""

import json
from pathlib import Path

import pytest

from bcd4rec.commands import _tasks
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.runner.running import Crew
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Given
from bcd4rec.workflows import judging_study as study
from bcd4rec.workflows.judging_tasks import study_side_by_side
from bcd4rec.workflows.tuning import SideBySide, knobs, propose, tune
from test_cli import run_here
from test_tuning import NARROW, SET, dataset, found, invoke  # noqa: F401 (a fixture)

FEW = study.Settings(logs=2, sessions=20, truth=50, learn=120)


def test_the_study_of_verdicts_is_the_same_as_tasks(tmp_path: Path) -> None:
    names = ["null single", "single"]
    expected = []
    for case in study.cases(names, FEW):
        *_, last = study.run(case, FEW)
        expected += last
    with Crew(TaskStore(tmp_path)) as crew:
        made = study_side_by_side(names, FEW, crew, lambda step: None)
    assert [repr(one.to_json()) for one in made] == [repr(one.to_json()) for one in expected]
    with pytest.raises(InputError, match="Unknown case 'nul'"), Crew(TaskStore(tmp_path)) as crew:
        study_side_by_side(["nul"], FEW, crew, lambda step: None)


class Three(Crew):
    """Three at once by name, one after the other in truth: quick, and with the same proposals."""

    @property
    def size(self) -> int:
        return 3


def test_trials_of_a_round_are_proposed_together_and_a_search_goes_on(dataset: Path, tmp_path: Path) -> None:  # noqa: F811
    data, given = Dataset.load(dataset), Given.of("dataset", dataset)

    def search(name: str, trials: int, at: str) -> list[tuple[object, ...]]:
        with Three(TaskStore(tmp_path / at)) as crew:
            side = SideBySide(crew, given)
            return found(tune("bcd4rec", data, "q_bar", trials, 0, tmp_path / name, NARROW, side_by_side=side))

    whole = search("whole", 6, "store")
    assert len({str(settings) for _, settings, *_ in whole}) == 6
    assert search("parts", 3, "other") == whole[:3]
    assert search("parts", 6, "other") == whole
    alone = found(tune("bcd4rec", data, "q_bar", 6, 0, tmp_path / "alone", NARROW))
    assert alone[0] == whole[0]
    results = {str(settings): rest for _, settings, *rest in alone}
    for _, settings, *rest in whole:  # wherever it is made, a trial is the same
        assert results.get(str(settings), rest) == rest


def test_what_is_under_way_is_not_proposed_again() -> None:
    grid = knobs("bcd4rec", NARROW)
    chosen: list[dict[str, float]] = []
    while len(chosen) < 7:
        chosen.append(propose(grid, [], "q_bar", 5, under_way=chosen))
    assert len({str(one) for one in chosen}) == 7


def test_tuning_side_by_side_from_the_command_line(
    dataset: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_tasks, "crew", lambda store, jobs, ray: Three(store))
    asked = ["tune", "bcd4rec", dataset, "--trials", 2, *SET, "--out", tmp_path / "tuned", "--jobs", 3, "--json"]
    told = json.loads(invoke(*asked).stdout)
    assert len(told["tried"]) == 2
    assert {one.name for one in tmp_path.iterdir()} == {"tuned"}  # what was needed meanwhile is gone


def test_two_processes_train_from_the_command_line(dataset: Path, tmp_path: Path) -> None:  # noqa: F811
    asked = ["train", "popular", dataset, "--seeds", 3, "--out", tmp_path / "policies", "--jobs", 2, "--json"]
    told = json.loads(invoke(*asked).stdout)
    assert told["seeds"] == [0, 1, 2]
    assert told["standard_deviation"] == 0.0  # it knows no luck
    assert {one.name for one in (tmp_path / "policies").iterdir()} == {"manifest.json", "seed-0", "seed-1", "seed-2"}


def test_policies_of_several_seeds_are_those_of_each_alone(dataset: Path, tmp_path: Path) -> None:  # noqa: F811
    both, alone = tmp_path / "both", tmp_path / "alone"
    asked = ["train", "bcq", dataset, "--set", "updates=3", "--set", "batch_size=8", "--search", "none"]
    told = json.loads(invoke(*asked, "--seed", 4, "--seeds", 2, "--out", both, "--json").stdout)
    invoke(*asked, "--seed", 5, "--out", alone)
    names = {str(one.relative_to(alone)) for one in alone.rglob("*")}
    assert names == {str(one.relative_to(both / "seed-5")) for one in (both / "seed-5").rglob("*")}
    assert all((alone / name).read_bytes() == (both / "seed-5" / name).read_bytes() for name in names)
    scores = {name: one["value"] for name, one in told["scores"].items()}
    assert list(scores) == ["seed-4", "seed-5"]
    assert scores[told["best"]] == told["highest"] == max(scores.values())
    assert told["standard_deviation"] == pytest.approx(abs(scores["seed-4"] - scores["seed-5"]) / 2**0.5)
    assert not (tmp_path / "both.tasks").exists()
    shown = invoke(*asked, "--seed", 4, "--seeds", 2, "--out", both, "--force")
    assert "Spread over 2 seeds" in shown.stdout
    assert f"recommend {both / told['best']}" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["judge", "a", "--log", "b", "--jobs", "2"], "--jobs, --ray and --store are for --calibrate"),
        (["judge", "--calibrate", "--ray", "1.2.3.4:6379"], "--ray ADDRESS needs --store"),
        (["train", "bcq", "d", "--out", "o", "--jobs", "2"], "give --seeds or --workers"),
        (["train", "user", "d", "--out", "o", "--seeds", "2"], "train user takes no --resume, --from, --seeds"),
        (["judge", "--calibrate", "--store", "s4://x/y"], "the scheme s4:// is not known"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    refused = run_here(*arguments)
    assert refused.returncode == 2
    assert sentence in refused.stderr
