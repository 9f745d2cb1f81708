"""Canaries against simulated users who know the server only by HTTP: the better policy ends up with all of them."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from bcd4rec.data.states import PAD
from bcd4rec.sim.environment import ENVIRONMENTS, EnvironmentOptions
from serving_help import Running, serving
from test_cli import run, works

WAVE, STEPS, WAVES = 40, 5, 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """On these users STAN has some 70 % of slates with a click within five steps, MostPop some 57 %."""
    scratch = tmp_path_factory.mktemp("policies")
    works("simulate", "--users", 300, "--logs", scratch / "log.parquet")
    works("prepare", scratch / "log.parquet", "--out", scratch / "data", "--rewards", "skip=0,click=4")
    for name in ("stan", "popular"):
        works("train", name, scratch / "data", "--out", scratch / name)
    return {name: scratch / name for name in ("stan", "popular")}


def visit(server: Running, wave: int) -> None:
    """Some users at once, each a session of a few slates."""
    environment = ENVIRONMENTS["recsim"](EnvironmentOptions())
    environment.reset(WAVE, wave)
    for _ in range(STEPS):
        shown = [server.recommend(session_id=f"{wave}-{user}", k=environment.slate_size) for user in range(WAVE)]
        slates = np.full((WAVE, environment.slate_size), PAD, np.int32)
        for user, one in enumerate(shown):
            slates[user, : len(one["items"])] = [item["item"] for item in one["items"]]
        outcome = environment.step(slates).responses
        told = [
            {"request_id": shown[user]["request_id"], "item": int(slates[user, place]), "response": "click"}
            for user, place in np.argwhere(outcome > 0)
        ]
        assert server.post("/v1/feedback", {"responses": told}).status_code in (200, 202)


@pytest.mark.parametrize(("old", "new", "decision"), [("popular", "stan", "promote"), ("stan", "popular", "roll back")])
def test_simulated_users_decide(folders: dict[str, Path], tmp_path: Path, old: str, new: str, decision: str) -> None:
    given = ("--canary", folders[new], "--share", "0.5", "--session-minutes", "0.05", "--rate", "0")
    with serving(tmp_path, folders[old], *given) as server:

        def canary() -> dict[str, object]:
            return server.client.get("/v1/experiments").json()["canary"]  # type: ignore[no-any-return]

        for wave in range(WAVES):
            visit(server, wave)
            if canary()["decision"] is not None:
                break
        end = time.monotonic() + 120
        while (found := canary())["decision"] is None and time.monotonic() < end:
            time.sleep(0.1)
        assert found["decision"] == decision, found
        winner = "new" if decision == "promote" else "old"
        assert {server.recommend()["arm"] for _ in range(20)} == {winner}
    log = tmp_path / "log.parquet"
    works("logs", "export", "--database", tmp_path / "store.sqlite", "--out", log, "--rewards", "skip=0,click=4")
    options = ("--share", 0.5, "--session-minutes", 0.05, "--rewards", "skip=0,click=4")
    offline = run("canary", "--log", log, *options, "--json")
    assert offline.returncode == {"promote": 0, "roll back": 4}[decision], offline.stderr
    assert json.loads(offline.stdout)["decision"] == decision
