"""The parts of the server by themselves: exact propensities, shares, limits, a database that is away."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import bcd4rec
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.bundle import Bundle
from bcd4rec.policies.policy import Memory
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.seeding import generator
from bcd4rec.serving import batching
from bcd4rec.serving.app import make_app
from bcd4rec.serving.arms import Arm, Arms, load_arm
from bcd4rec.serving.catalogue import Names
from bcd4rec.serving.loading import Served, load
from bcd4rec.serving.messages import FeedbackRequest, RecommendRequest
from bcd4rec.serving.metrics import Metrics
from bcd4rec.serving.middleware import Middleware
from bcd4rec.serving.rate_limit import RateLimit
from bcd4rec.serving.recommending import Recommender
from bcd4rec.serving.response_rates import arm_rates, clustered, wilson
from bcd4rec.serving.security import Keys, Limits, read_keys
from bcd4rec.serving.service import Service
from bcd4rec.serving.session_cache import SessionCache
from bcd4rec.serving.storage.records import ArmCounts, Feedback, Impression, StoreStatus
from bcd4rec.serving.storage.store import BufferFull, StoredSession, open_store
from serving_help import ITEMS, quantile_policy, saved, states_of, whole


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return load(saved(quantile_policy("meanpool", "implicit"), tmp_path_factory.mktemp("p") / "p"))


# ---- exploration


def exact(scores: list[float], slate: tuple[int, ...], exploration: Exploration) -> float:
    """The probability of a slate by its definition: place by place among the items that are left."""
    left, product = dict(enumerate(scores)), 1.0
    for item in slate:
        if exploration.kind == "softmax":
            weights = {one: np.exp(score / exploration.temperature) for one, score in left.items()}
            product *= weights[item] / sum(weights.values())
        else:
            best = max(left, key=lambda one: (left[one], -one))
            product *= exploration.epsilon / len(left) + (1 - exploration.epsilon) * (item == best)
        del left[item]
    return product


@pytest.mark.parametrize(
    "exploration", [Exploration(kind="epsilon", epsilon=0.4), Exploration(kind="softmax", temperature=0.7)], ids=str
)
def test_propensities_are_the_probabilities_of_what_is_shown(served: Served, exploration: Exploration) -> None:
    policy, draws = served.policy.with_rule(exploration=exploration), 3000
    sessions, recommender = policy.read([], [2]).sessions, Recommender(replace(served, policy=policy))
    pool = [5, 9, 11, 20, 2]  # of which 2 was liked
    scores = policy.scorer.scores(sessions.states, np.array([pool[:4]], np.int32))[0].tolist()
    seen: Counter[tuple[int, ...]] = Counter()
    for number in range(draws):
        rng = generator(0, "explore", f"request {number}")
        slate = recommender.slate(sessions, 2, rng, pool)
        places = tuple(pool.index(item) for item in slate.items[0])
        expected = exact(scores, places, exploration)
        assert float(np.prod(slate.propensities.astype(np.float64))) == pytest.approx(expected, rel=1e-4)
        seen[places] += 1
    for places in itertools.permutations(range(4), 2):
        chance = exact(scores, places, exploration)
        assert abs(seen[places] - draws * chance) < 4.5 * np.sqrt(draws * chance * (1 - chance)) + 1


def test_the_same_request_explores_alike(served: Served) -> None:
    policy = served.policy.with_rule(exploration={"kind": "softmax", "temperature": 5.0})
    recommender = Recommender(replace(served, policy=policy))
    slates = [
        recommender.slate(policy.begin(1), 4, generator(1, "x", n)).items[0].tolist() for n in ("one", "one", "two")
    ]
    assert slates[0] == slates[1] != slates[2]


@pytest.mark.parametrize("kind", ["none", "epsilon", "softmax"])
@pytest.mark.parametrize("diversity", [0.0, 1.0])
def test_no_candidates_give_an_empty_slate(served: Served, kind: str, diversity: float) -> None:
    if kind == "softmax" and diversity:
        pytest.skip("refused together")
    policy = replace(served.policy, vectors=np.ones((ITEMS, 1), np.float32))
    policy = policy.with_rule(exploration={"kind": kind}, diversity=diversity)
    recommender, sessions = Recommender(replace(served, policy=policy)), policy.read([], [2]).sessions
    for pool in ([], [2]):  # 2 was liked
        slate = recommender.slate(sessions, 3, generator(0, "x"), pool)
        assert [part.shape for part in slate] == [(1, 0)] * 3
    nothing, asked = np.empty((1, 0), np.int32), np.array([[4, PAD]], np.int32)
    assert policy.propensities(sessions, asked, nothing).tolist() == [[0.0, 1.0]]


# ---- requests that arrive together


def test_requests_that_arrive_together_share_a_call(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST", 3)
    policy, sessions = served.policy.scorer, [[], [2], [5, 9, 2], [7, 7], [1, 2, 3, 4, 5, 6, 7]]
    rows: list[int] = []
    whole = policy.scores
    monkeypatch.setattr(policy, "scores", lambda states: rows.append(len(states)) or whole(states))
    one = batching.Batcher(policy)
    states = [states_of(served.policy, liked, [3, 3]) for liked in sessions]

    async def ask() -> list[Any]:
        alone = await one.scores(states[0])
        gone = asyncio.ensure_future(one.scores(states[1]))
        asyncio.get_running_loop().call_soon(gone.cancel)  # a client that does not wait for its answer
        found = await asyncio.gather(*map(one.scores, states), gone, return_exceptions=True)
        return [alone, *found]

    alone, *found, gone = asyncio.run(ask())
    assert rows == [1, 3, 3]
    assert isinstance(gone, asyncio.CancelledError)
    for state, scores in zip([states[0], *states], [alone, *found], strict=True):
        np.testing.assert_allclose(scores, whole(state), atol=1e-6)


def test_what_fails_fails_for_all_that_came_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.policy.scorer, "scores", lambda states: 1 // 0)
    one, states = batching.Batcher(served.policy.scorer), served.policy.begin(1).states

    async def ask() -> list[Any]:
        return await asyncio.gather(one.scores(states), one.scores(states), return_exceptions=True)

    assert [type(error) for error in asyncio.run(ask())] == [ZeroDivisionError] * 2


# ---- arms


def arms_of(served: Served, share: float, seed: int = 0) -> Arms:
    recommender = Recommender(served)
    both = [Arm("a", served.folder, 1 - share, recommender), Arm("b", served.folder, share, recommender)]
    return Arms(both, seed)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_shares_of_sessions(served: Served, share: float) -> None:
    arms, sessions = arms_of(served, share), [f"session {n}" for n in range(8000)]
    found = [arms.of(session).name for session in sessions]
    assert abs(found.count("b") - share * 8000) <= 4.5 * np.sqrt(8000 * share * (1 - share))
    assert found == [arms_of(served, share).of(session).name for session in sessions]
    if 0 < share < 1:
        assert found != [arms_of(served, share, seed=1).of(session).name for session in sessions]


# ---- a database that is away


class Away:
    """A store whose database does not answer and whose buffer holds `room` more records."""

    def __init__(self, room: int = 0):
        self.room, self.taken = room, []  # type: ignore[var-annotated]

    def submit(self, records: Any) -> Future[None]:
        if len(records) > self.room:
            raise BufferFull("full")
        self.room -= len(records)
        self.taken += list(records)
        return Future()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def in_thread(self, read: Any, *values: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(read(*values))
        return done

    def slates(self, requests: list[str], in_memory: bool = False) -> tuple[dict[str, tuple[str, ...]], bool]:
        return {}, False

    def session(self, session_id: str, in_memory: bool = False) -> StoredSession:
        return StoredSession([], [])

    def look_up(self, session_id: str) -> tuple[StoredSession, bool]:
        return StoredSession([], []), False

    def status(self) -> StoreStatus:
        return StoreStatus(False, len(self.taken), 0, "OperationalError: secret.internal:5432 refused", None)

    def arms(self) -> list[ArmCounts]:
        return []

    def close(self) -> None:
        pass


def ask(service: Service, *requests: tuple[str, str, Any], limits: Limits | None = None) -> list[httpx.Response]:
    """Answers of the application in this process."""

    async def talk() -> list[httpx.Response]:
        app = make_app(service, Keys([]), Keys([]), limits or Limits())
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, json=body) for method, path, body in requests]

    return asyncio.run(talk())


def test_recommendations_go_on_without_a_database(served: Served) -> None:
    store = Away(room=2)
    service = Service(Arms([Arm("a", served.folder, 1.0, Recommender(served))]), store)  # type: ignore[arg-type]
    told = {"request_id": "r", "responses": [{"item": 1, "response": "click"}]}
    recommend = ("POST", "/v1/recommend", {"session_id": "s"})
    answers = ask(service, recommend, ("POST", "/v1/feedback", told), recommend, ("POST", "/v1/feedback", told))
    assert [answer.status_code for answer in answers] == [200, 202, 200, 503]
    assert answers[1].json() == {"accepted": 1, "stored": False, "unmatched": []}
    assert isinstance(store.taken[0], Impression)
    (health,) = ask(service, ("GET", "/v1/health", None))
    assert health.status_code == 200
    assert health.json()["status"] == "degraded"
    assert "secret" not in health.text
    assert "bcd4rec_unlogged_impressions_total 1.0" in service.metrics.text().decode()


def test_a_session_that_is_told_twice_at_once_opens_once(served: Served) -> None:
    """Both requests begin before one of them ends, as with a database that is asked in a thread."""
    store = Away(room=9)
    arms = Arms([Arm("a", served.folder, 1.0, Recommender(served))])
    service = Service(arms, store, local=False)  # type: ignore[arg-type]
    asked = RecommendRequest(session_id="s", session=[3, 5], k=2)

    async def both() -> None:
        await asyncio.gather(service.recommend(asked), service.recommend(asked))

    asyncio.run(both())
    slates = [one for one in store.taken if isinstance(one, Impression)]
    assert [(one.arm, one.step, len(one.items)) for one in slates] == [("organic", 0, 2), ("a", 1, 2), ("a", 2, 2)]


def test_a_defect_tells_nothing_of_the_inside(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(Arms([Arm("a", served.folder, 1.0, Recommender(served))]), Away(9))  # type: ignore[arg-type]

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("the secret reason")

    monkeypatch.setattr(service, "_answer", broken)
    app = make_app(service, Keys([]), Keys([]), Limits())

    async def talk() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/recommend", json={})

    answer = asyncio.run(talk())
    assert (answer.status_code, answer.json()) == (500, {"error": "The server failed; its log says why."})


# ---- sessions in memory


def test_memory_is_trusted_only_with_sessions_that_are_whole_in_it() -> None:
    cache = SessionCache(reach=4)
    assert not cache.covers("a")
    cache.begin("a")
    cache.add_slate("r1", 1)
    cache.add_feedback(["r1"], 2)
    assert cache.covers("a")
    cache.begin("b")
    cache.add_slate("r2", 1)
    assert not cache.covers("a")  # four records later it may be forgotten in part
    assert cache.covers("b")
    cache.add_feedback(["from before the restart"], 1)
    assert not cache.covers("b")


def test_a_session_from_before_is_not_forgotten_because_the_database_was_away(served: Served, tmp_path: Path) -> None:
    url, arms = str(tmp_path / "store.sqlite"), Arms([Arm("a", served.folder, 1.0, Recommender(served))])
    store = open_store(url)
    store.submit([Impression("r", "anna", 0, "v", "a", 1, ("7",), (1.0,), (0.0,)), Feedback("r", "7", "click", 2)])
    store.close()
    store = open_store(url)
    service = Service(arms, store)
    store._drop_reader()  # as when the database does not answer
    assert asyncio.run(service._known("anna")) == StoredSession([], [])
    store._refresh_reader()
    assert asyncio.run(service._known("anna")) == StoredSession([], [[("7", "click")]], steps=1)
    assert asyncio.run(service._known("bert")) == StoredSession([], [])
    assert service._cache.covers("bert")
    assert not service._cache.covers("anna")
    store.close()


def test_a_reloaded_policy_says_anew_which_response_is_the_strongest(tmp_path: Path) -> None:
    policy, folder = quantile_policy("meanpool", "implicit"), tmp_path / "policy"
    folder.mkdir()
    service, store = None, open_store(str(tmp_path / "store.sqlite"))
    for rewards, strongest in (
        ({"skip": 0, "click": 1, "buy": 5}, "buy"),
        ({"skip": 0, "click": 9, "buy": 5}, "click"),
    ):
        saved(policy, folder, responses=Responses(rewards=rewards))
        service = service or Service(Arms([load_arm("a", folder, 1.0)]), store)
        service.reload(None)
        told = [Feedback("r", "7", "click", 2), Feedback("r", "7", "buy", 3)]
        store.submit([Impression("r", "anna", 0, "v", "a", 1, ("7",), (1.0,), (0.0,)), *told])
        assert store.session("anna").slates == [[("7", strongest)]]
    store.close()


# ---- sessions that the server remembers


class Remembering:
    """A service over one policy, whose scorer notes down the states it is asked about."""

    def __init__(self, database: Path, **changes: Any):
        self.asked: list[tuple[list[int], list[int]]] = []
        self.database, self.changes = database, changes
        self.begin()

    def begin(self) -> None:
        policy = whole(self, **self.changes)  # type: ignore[arg-type]
        served = Served(policy, Bundle(self.database.parent, {}, {}, "v", "v"))
        arm = Arm("a", self.database.parent, 1.0, Recommender(served))
        self.store = open_store(str(self.database))
        self.service = Service(Arms([arm]), self.store)

    n_items = ITEMS

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        for liked, skipped in zip(states.positives.tolist(), states.skips.tolist(), strict=True):
            self.asked.append(([one for one in liked if one != PAD], [one for one in skipped if one != PAD]))
        return Flat().scores(states, candidates)

    def slate(self, session_id: str, **more: Any) -> tuple[str, list[int]]:
        found = asyncio.run(self.service.recommend(RecommendRequest(session_id=session_id, k=3, **more)))
        return found["request_id"], [one["item"] for one in found["items"]]

    def told(self, request: str, **responses: str) -> None:
        """Responses by item, as `i4="click"`."""
        given = [{"item": int(item[1:]), "response": name} for item, name in responses.items()]
        body = FeedbackRequest.model_validate({"request_id": request, "responses": given})
        asyncio.run(self.service.feedback(body))

    def restart(self) -> None:
        self.store.close()
        self.begin()


@pytest.fixture
def remembering(tmp_path: Path) -> Iterator[Remembering]:
    found = Remembering(tmp_path / "store.sqlite")
    yield found
    found.store.close()


def test_what_was_shown_and_not_answered_counts_as_skipped_once_the_session_goes_on(remembering: Remembering) -> None:
    first, shown = remembering.slate("anna")
    assert (remembering.asked[-1], shown) == (([], []), [22, 21, 20])
    remembering.told(first, i21="click")
    second, shown = remembering.slate("anna")
    assert (remembering.asked[-1], shown) == (([21], [22, 20]), [22, 20, 19])
    _, shown = remembering.slate("anna")  # nobody said anything about the second
    assert (remembering.asked[-1], shown) == (([21], [22, 20, 22, 20, 19]), [22, 20, 19])
    remembering.told(second, i19="buy")  # late
    remembering.slate("anna")
    assert remembering.asked[-1] == ([21, 19], [22, 20, 22, 20, 22, 20, 19])
    remembering.slate("bert")
    assert remembering.asked[-1] == ([], [])


def test_what_was_not_answered_may_count_as_unknown(tmp_path: Path) -> None:
    memory = Memory(length=5, skips=8, unanswered="unknown")
    remembering = Remembering(tmp_path / "store.sqlite", memory=memory)
    first, _ = remembering.slate("anna")
    remembering.told(first, i21="click", i20="skip")
    remembering.slate("anna")
    assert remembering.asked[-1] == ([21], [20])
    remembering.slate("anna")
    assert remembering.asked[-1] == ([21], [20])
    remembering.store.close()


def test_a_slate_that_nobody_answered_is_left_out_of_the_next(tmp_path: Path) -> None:
    for unanswered, expected in (("skip", [19, 18, 17]), ("unknown", [22, 21, 20])):
        remembering = Remembering(
            tmp_path / f"{unanswered}.sqlite",
            memory=Memory(length=5, skips=8, unanswered=unanswered),  # type: ignore[arg-type]
            rule=SlateRule(after_skip="exclude"),
        )
        assert remembering.slate("anna")[1] == [22, 21, 20]
        assert remembering.slate("anna")[1] == expected
        remembering.store.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_remembered_session_opens_as_it_was_told(remembering: Remembering, restarts: bool) -> None:
    """Likes and skips in their order, and before every slate."""
    opening = [9, {"item": 4, "response": "skip"}, 2, {"item": 7, "response": "buy"}, {"item": 1, "response": "skip"}]
    remembering.slate("anna", session=opening)
    assert remembering.asked[-1] == ([9, 2, 7], [4, 1])
    if restarts:
        remembering.restart()
    session = remembering.store.session("anna")
    assert session.opening == [("9", "click"), ("4", "skip"), ("2", "click"), ("7", "buy"), ("1", "skip")]
    assert session.slates == [[("22", None), ("21", None), ("20", None)]]
    assert session.steps == 2
    remembering.slate("anna")
    assert remembering.asked[-1] == ([9, 2, 7], [4, 1, 22, 21, 20])


@pytest.mark.parametrize("restarts", [False, True])
def test_slates_are_remembered_in_their_order(remembering: Remembering, restarts: bool) -> None:
    """By their numbers, whatever is answered first."""
    requests = []
    for excluded in ([], [20, 21, 22], [17, 18, 19, 20, 21, 22]):
        requests.append(remembering.slate("anna", exclude=excluded)[0])
    for request, item in zip(reversed(requests), ("i14", "i18", "i22"), strict=True):
        remembering.told(request, **{item: "click"})
    if restarts:
        remembering.restart()
    assert [[item for item, _ in slate] for slate in remembering.store.session("anna").slates] == [
        ["22", "21", "20"],
        ["19", "18", "17"],
        ["16", "15", "14"],
    ]
    remembering.slate("anna")
    assert remembering.asked[-1] == ([22, 18, 14], [21, 20, 19, 17, 16, 15])
    assert remembering.store.session("anna").steps == 4


def test_a_slate_after_a_restart_comes_after_those_before_it(remembering: Remembering) -> None:
    for _ in range(2):
        remembering.slate("anna", exclude=[])
        remembering.restart()
        remembering.slate("anna", exclude=[22])
        remembering.restart()
    assert [slate[0][0] for slate in remembering.store.session("anna").slates] == ["22", "21", "22", "21"]


def test_responses_that_a_policy_does_not_know_are_passed_over(remembering: Remembering) -> None:
    """Another policy of the same server, or one before it, may have known them."""
    first, _ = remembering.slate("anna")
    told = [Feedback(first, "22", "like", 5), Feedback(first, "21", "click", 6)]
    remembering.store.submit(told).result()
    remembering.slate("anna")
    assert remembering.asked[-1] == ([21], [20])
    remembering.store.submit([Feedback(first, "22", "buy", 7)]).result()
    remembering.slate("anna")
    assert remembering.asked[-1][0] == [22, 21]  # the known one of two responses is the stronger


def test_a_session_that_the_client_tells_counts_in_place_of_what_is_remembered(remembering: Remembering) -> None:
    remembering.slate("anna")
    remembering.slate("anna", session=[3])
    assert remembering.asked[-1] == ([3], [])


# ---- threads

THREADS_OF_PRODUCTS = """
import ctypes, sys
from pathlib import Path
from bcd4rec.cli import main
sys.argv = ["bcd4rec", "serve", "no/such/policy"]
try:
    main()
except SystemExit:
    pass
paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "numpy" in line}
for library in [ctypes.CDLL(path) for path in paths if "openblas" in path]:
    for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads", "openblas_get_num_threads"):
        if hasattr(library, name):
            print(getattr(library, name)())
            raise SystemExit
"""


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")], ids=["alone", "given"]
)
def test_small_products_take_one_thread(given: dict[str, str], expected: str) -> None:
    if not Path("/proc/self/maps").exists() or (os.cpu_count() or 1) < 2:
        pytest.skip("threads cannot be counted here")
    environment = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}
    path = str(Path(bcd4rec.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", THREADS_OF_PRODUCTS],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": path} | given,
    )
    assert "no/such/policy is not a folder" in done.stderr
    if not done.stdout:
        pytest.skip("NumPy was not built with OpenBLAS")
    assert done.stdout.strip() == expected


# ---- limits


def test_requests_at_once_are_bounded() -> None:
    refused_one = asyncio.Event()

    async def slow(body: bytes) -> tuple[int, bytes]:
        await refused_one.wait()
        return 200, body

    metrics = Metrics(list, Away().status)
    middleware = Middleware(
        lambda *_: pytest.fail("went on"), {"/slow": slow}, Keys([]), Keys([]), Limits(concurrency=2), metrics
    )

    async def talk() -> list[tuple[int, bytes]]:
        transport = httpx.ASGITransport(middleware)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = [asyncio.create_task(client.post("/slow", json={})) for _ in range(3)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            refused_one.set()
            first = await asyncio.gather(*asked)
            return [(one.status_code, one.content) for one in [*first, await client.post("/slow", json={})]]

    refused = (503, b'{"error":"Too many requests at once; try again in a second."}')
    assert asyncio.run(talk()) == [(200, b"{}"), (200, b"{}"), refused, (200, b"{}")]


def test_a_rate_limit_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limit = RateLimit(2.0)
    assert [limit.allow("a") for _ in range(3)] == [True, True, False]
    assert limit.allow("b")
    now += 0.5
    assert [limit.allow("a") for _ in range(2)] == [True, False]
    now += 60
    assert [limit.allow("a") for _ in range(3)] == [True, True, False]
    assert all(RateLimit(0).allow("a") for _ in range(10))


def test_keys_from_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read_keys(None, "NO_SUCH_VARIABLE", "--api-keys")
    monkeypatch.setenv("SOME_KEYS", "sixteen-characters, another-one-of-them")
    keys = read_keys(None, "SOME_KEYS", "--api-keys")
    assert keys.match(b"sixteen-characters")
    assert keys.match(b"another-one-of-them")
    assert not any(keys.match(text) for text in (b"", b"sixteen-character", b"sixteen-characters ", b"\xff"))
    (tmp_path / "empty").write_text("\n")
    for path in (tmp_path / "empty", tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="--api-keys"):
            read_keys(path, "SOME_KEYS", "--api-keys")


# ---- rates of arms


def test_wilson_intervals_by_hand() -> None:
    found = wilson(0.2, 50)  # (0.2 + 0.0384) / 1.0768 ± 1.96 / 1.0768 · √(0.0032 + 0.000384)
    assert (found.value, round(found.low, 4), round(found.high, 4)) == (0.2, 0.1124, 0.3304)
    assert (wilson(0.0, 10).low, wilson(1.0, 10).high) == (0.0, 1.0)
    assert (wilson(0.0, 0).low, wilson(0.0, 0).high) == (0.0, 1.0)


def test_intervals_over_sessions_by_hand() -> None:
    # 0 of 3, 1 of 6 and 5 of 9 items: r = 1/3, Σ (y − r·n)² = 1 + 1 + 4, variance 3/2 · 6 / 18² = 1/36,
    # as sure as (1/3 · 2/3) · 36 = 8 independent items; three sessions: t = 4.3027 instead of 1.96
    expected = wilson(1 / 3, 8 * (1.959964 / 4.302653) ** 2)
    found = clustered(1 / 3, 3, 18, 6.0)
    assert (found.value, found.low, found.high) == pytest.approx((1 / 3, expected.low, expected.high), abs=1e-6)
    alike = clustered(0.5, 1000, 4000, 0.0)  # never surer than if all items were independent
    assert (alike.low, alike.high) == pytest.approx((wilson(0.5, 4000).low, wilson(0.5, 4000).high), abs=1e-4)
    assert clustered(0.0, 40, 400, 0.0) == wilson(0.0, 40)
    assert clustered(0.5, 1, 400, 0.0) == wilson(0.5, 1)


def test_intervals_over_sessions_hold_what_they_promise() -> None:
    """People differ: each session has its own rate, and its own length. Items alone would make everything too sure."""
    rng, truth, runs, sessions = np.random.default_rng(3), 0.2, 600, 40
    inside = too_sure = 0
    for _ in range(runs):
        shown = 3 * rng.geometric(0.2, sessions)
        answered = rng.binomial(shown, rng.beta(1, 4, sessions))
        share = answered.sum() / shown.sum()
        over_sessions = clustered(share, sessions, shown.sum(), float(((answered - share * shown) ** 2).sum()))
        over_items = wilson(share, shown.sum())
        inside += over_sessions.low <= truth <= over_sessions.high
        too_sure += over_items.low <= truth <= over_items.high
    assert 0.92 <= inside / runs <= 0.98
    assert too_sure / runs < 0.75


def test_rates_per_item_and_per_request() -> None:
    counts = ArmCounts("v", "a", 50, requests=40, impressions=100, responses={"click": 20}, residuals={"click": 16.0})
    found = arm_rates(counts, serving=True)
    assert found.rates["click"] == clustered(0.2, 50, 100, 16.0)
    assert found.per_request == {"click": 0.5}


# ---- names


def test_names_and_search(served: Served, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,name,picture\n3,Red Shoe,https://x/3.png\n22,blue hat,\n")
    names = Names.read(tmp_path / "items.csv")
    found = names.search(served, "", 2, 1)
    assert [one["item"] for one in found["items"]] == [21, 20]  # popularity is the item's number here
    assert found["total"] == ITEMS
    assert names.search(served, "SHOE", 5, 0) == {
        "items": [{"item": 3, "name": "Red Shoe", "picture": "https://x/3.png"}],
        "total": 1,
    }
    assert [one["item"] for one in names.search(served, "2", 3, 0)["items"]] == [22, 21, 20]
    assert names.of(22) == {"item": 22, "name": "blue hat", "picture": None}
    (tmp_path / "bad.csv").write_text("id,title\n1,x\n")
    with pytest.raises(InputError, match="has no column 'item_id' but id, title"):
        Names.read(tmp_path / "bad.csv")
    with pytest.raises(InputError, match="cannot be read"):
        Names.read(tmp_path / "none.parquet")


# ---- policies of other kinds


class Flat:
    """A policy without vectors: it prefers high numbers."""

    n_items = ITEMS

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        row = np.arange(ITEMS, dtype=np.float32)
        if candidates is None:
            return np.tile(row, (len(states), 1))
        return np.where(candidates == PAD, -np.inf, row[candidates]).astype(np.float32)


def test_a_policy_without_vectors_is_not_explained(served: Served) -> None:
    policy = whole(Flat(), popularity=None)
    recommender, sessions = Recommender(replace(served, policy=policy)), policy.read([], [22]).sessions
    slate = recommender.slate(sessions, 3, generator(0, "x"))
    assert slate.items.tolist() == [[21, 20, 19]]
    details, beside = recommender.explain(sessions, slate, 3)
    assert details == [{"quantiles": None, "likelihood": None}] * 3
    assert beside == {"behaviour": None, "popular": None}
