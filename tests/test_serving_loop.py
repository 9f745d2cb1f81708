"""The loop: what a server showed and heard becomes the log from which the next policy learns."""

import http.client
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data.states import PAD
from bcd4rec.sim.environment import ENVIRONMENTS, EnvironmentOptions
from serving_help import PATIENT, Running, serving
from test_cli import result, works

USERS, SEED, ADMIN = 120, 11, "an-admin-key-of-the-loop"


class Visitors:
    """Simulated users who know the server only by HTTP."""

    def __init__(self, server: Running):
        self._connection = http.client.HTTPConnection(*server.address.removeprefix("http://").split(":"), timeout=120)

    def _post(self, path: str, body: Any) -> Any:
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = self._connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        return found

    def visit(self, name: str) -> tuple[float, set[str]]:
        """The share of slates with a click, over the same users at every call, and who recommended."""
        environment = ENVIRONMENTS["recsim"](EnvironmentOptions())
        environment.reset(USERS, SEED)
        responses, clicks, versions = environment.responses.names, 0, set()
        for _ in range(environment.horizon):
            asked = [{"session_id": f"{name}-{user}", "k": environment.slate_size} for user in range(USERS)]
            shown = [self._post("/v1/recommend", one) for one in asked]
            versions |= {one["policy"] for one in shown}
            slates = np.full((USERS, environment.slate_size), PAD, np.int32)
            for user, one in enumerate(shown):
                slates[user, : len(one["items"])] = [item["item"] for item in one["items"]]
            outcome = environment.step(slates).responses
            clicks += int((outcome > 0).any(axis=1).sum())
            told = [
                {"request_id": shown[user]["request_id"], "item": int(slates[user, place]), "response": responses[code]}
                for (user, place), code in np.ndenumerate(outcome)
            ]
            for start in range(0, len(told), 1000):
                self._post("/v1/feedback", {"responses": told[start : start + 1000]})
        return clicks / USERS / environment.horizon, versions


def test_the_same_users_click_more_after_learning_from_the_servers_log(tmp_path: Path) -> None:
    policy, database = tmp_path / "policy", tmp_path / "store.sqlite"
    rewards = ["--rewards", "skip=0,click=4"]
    works("simulate", "--users", 30, "--logs", tmp_path / "first.parquet")
    works("prepare", tmp_path / "first.parquet", "--out", tmp_path / "first", *rewards)
    works("train", "popular", tmp_path / "first", "--out", policy)
    options = ["--explore", "epsilon", "--epsilon", 0.5, "--database", database, "--rate", 0]
    with serving(tmp_path, policy, *options, environment=PATIENT | {"BCD4REC_ADMIN_KEYS": ADMIN}) as server:
        before, old = Visitors(server).visit("monday")
        log = tmp_path / "logs.parquet"
        found = result("logs", "export", "--database", database, "--out", log, "--integer-items", *rewards)
        assert found["impressions"] == USERS * 20 * 7
        assert result("check", log, *rewards)["sessions"] == USERS
        propensities = pl.read_parquet(log)["propensity"]
        assert propensities.null_count() == 0
        assert 0 < propensities.min() < 0.01  # type: ignore[operator]
        works("prepare", log, "--out", tmp_path / "next", "--history", "all", *rewards)
        works("train", "bcd4rec", tmp_path / "next", "--out", policy, "--set", "updates=250", "--force")
        done = server.post("/v1/policy/reload", {}, x_api_key=ADMIN)
        assert done.status_code == 200, done.text
        after, new = Visitors(server).visit("tuesday")
        assert len(old) == len(new) == 1
        assert old != new
        arms = {one["policy"]: one for one in server.client.get("/v1/experiments").json()["arms"]}
    assert after > before, (before, after)
    assert sum(arms[version]["sessions"] for version in old | new) == 2 * USERS
    (version,) = new
    assert arms[version]["serving"]
