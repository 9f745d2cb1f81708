"""The store against a plain dictionary: same sessions, same counts, same log, whatever the order of arrival."""

import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.errors import InputError
from bcd4rec.serving.storage import queries, writer
from bcd4rec.serving.storage import store as store_module
from bcd4rec.serving.storage.counting import ArmCounter
from bcd4rec.serving.storage.export import export_log
from bcd4rec.serving.storage.queries import Selection
from bcd4rec.serving.storage.recent import Recent
from bcd4rec.serving.storage.records import ORGANIC, ArmCounts, Feedback, Impression, Record, strongest
from bcd4rec.serving.storage.sqlite import SqliteConnection
from bcd4rec.serving.storage.store import BufferFull, Store, StoreClosed, StoredSession, open_store
from bcd4rec.serving.storage.urls import database_of
from databases import PostgresServer, postgres_server

NOW = 1_760_000_000_000_000
ITEMS = ("a", "b", "ç", "d'\"?%s")
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # of examples


def slate(number: int, session: str = "s", **changes: Any) -> Impression:
    """Request `number`, with three items and a null among its propensities."""
    given = {"step": number, "policy": "v1", "arm": "A", "time_us": NOW + number, "items": ("a", "b", "c")}
    lists = {"propensities": (0.5, None, 1 / 3), "values": (0.1, -2.0, 3e-9)}
    return Impression(**{"request_id": f"r{number}", "session_id": session} | given | lists | changes)


def answer(number: int, item: str, response: str, time_us: int = NOW) -> Feedback:
    return Feedback(f"r{number}", item, response, time_us)


@pytest.fixture(autouse=True)
def _counts_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(store_module, "COUNT_SECONDS", 60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def empty(url: str) -> str:
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS bcd4rec_storage, bcd4rec_impressions, bcd4rec_feedback")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return empty(request.getfixturevalue("server").url)


def log_of(url: str, folder: Path, selection: Selection | None = None, **options: Any) -> tuple[dict[str, Any], Any]:
    out = folder / f"{time.monotonic_ns()}.parquet"
    found = export_log(database_of(url), out, selection or Selection(), options.pop("responses", DIGINETICA), **options)
    return found, pl.read_parquet(out)


# ---- round trips


def test_a_session_is_known_before_and_after_the_commit(url: str) -> None:
    store = open_store(url)
    try:
        store.submit([slate(0), slate(1)])
        store.submit(
            [answer(1, "b", "click", NOW + 30), answer(0, "a", "click", NOW + 20), answer(0, "c", "skip", NOW + 20)]
        )
        second = [("a", None), ("b", "click"), ("c", None)]
        assert store.session("s") == StoredSession([], [[("a", "click"), ("b", None), ("c", "skip")], second], 2)
        store.submit([answer(0, "a", "buy", NOW + 40)]).result(60)
        known = StoredSession([], [[("a", "buy"), ("b", None), ("c", "skip")], second], 2)
        assert store.session("s") == known
        assert store.session("nobody") == StoredSession([], [], 0)
        assert (known.known, store.session("nobody").known) == (True, False)
        status = store.status()
        assert (status.connected, status.pending, status.dropped, status.last_error) == (True, 0, 0, None)
        assert status.last_commit_us is not None
        assert abs(status.last_commit_us - time.time() * 1e6) < 60e6
        nothing = {"buy": 0.0, "click": 0.0, "skip": 0.0}  # one session does not differ from itself
        expected = ArmCounts("v1", "A", 1, 2, 6, {"buy": 1, "click": 2, "skip": 1}, nothing)
        assert store.arms() == [expected]
    finally:
        store.close()
    again = open_store(url)  # nothing in memory now
    try:
        assert again.session("s") == known
        assert again.arms() == [expected]
        again.submit([answer(1, "c", "click", NOW + 5)])  # pending feedback to a slate that only the database knows
        assert again.session("s").slates == [known.slates[0], [("a", None), ("b", "click"), ("c", "click")]]
    finally:
        again.close()


def test_two_servers_share_a_database(url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("a file is for one server")
    one, two = open_store(url), open_store(url)
    try:
        one.submit([slate(0)]).result(60)
        two.submit([answer(0, "a", "click")]).result(60)
        assert one.session("s").slates == two.session("s").slates == [[("a", "click"), ("b", None), ("c", None)]]
    finally:
        one.close()
        two.close()


def test_many_threads_and_every_future_is_kept(url: str) -> None:
    store = open_store(url)
    futures: list[Any] = []

    def work(thread: int) -> None:
        for number in range(thread * 100, thread * 100 + 100):
            futures.append(store.submit([slate(number, f"s{thread}"), answer(number, "a", "click", NOW + number)]))

    threads = [threading.Thread(target=work, args=[thread]) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(future.result(60) is None for future in futures)
    assert [len(store.session(f"s{thread}").slates) for thread in range(4)] == [100] * 4
    store.close()
    with pytest.raises(StoreClosed):
        store.submit([slate(1)])


def test_the_newest_slates_of_a_session_that_does_not_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(url)
    for number in range(20):
        store.submit([slate(number), answer(number, "a", "click", NOW + number), answer(number, "b", "skip", NOW)])
    store.close()
    monkeypatch.setattr(queries, "SESSION_SLATES", 7)
    store = open_store(url)
    assert store.session("s") == StoredSession([], [[("a", "click"), ("b", "skip"), ("c", None)]] * 7, steps=20)
    store.close()


def test_what_a_session_brought_along_keeps_its_order(url: str) -> None:
    """By the times of the responses, whatever the order of the items; what was not answered did not happen."""
    lists = {"propensities": (None,) * 4, "values": (0.0,) * 4}
    opening = slate(0, policy=ORGANIC, arm=ORGANIC, items=("c", "a", "b", "d"), **lists)
    told = [answer(0, item, "click", NOW + time) for item, time in (("a", 3), ("c", 5), ("d", 4))]
    likes, shown = [("a", "click"), ("d", "click"), ("c", "click")], [("a", None), ("b", None), ("c", None)]
    store = open_store(url)
    try:
        store.submit([slate(1), opening, *told]).result(60)
        assert store.session("s") == StoredSession(likes, [shown], 2)
    finally:
        store.close()
    again = open_store(url)
    try:
        assert again.session("s") == StoredSession(likes, [shown], 2)
    finally:
        again.close()


def test_slates_of_one_number_keep_the_order_of_their_times(url: str) -> None:
    """Two servers may number slates alike; memory and database then tell the same."""
    one_item = {"step": 4, "propensities": (1.0,), "values": (0.0,)}
    shown = [slate(n, time_us=NOW + time, items=(f"i{time}",), **one_item) for n, time in ((0, 2), (1, 3), (2, 1))]
    expected = [[("i1", None)], [("i2", None)], [("i3", None)]]
    for records, known in ((shown[:2], expected[1:]), (shown[2:], expected), ([], expected)):
        store = open_store(url)
        try:
            if records:
                store.submit(records).result(60)
            assert store.session("s") == StoredSession([], known, 5)
        finally:
            store.close()


def test_closing_drains(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    futures = [store.submit([slate(number)]) for number in range(3000)]
    store.close(60)
    assert all(future.done() for future in futures)
    assert log_of(url, tmp_path)[0]["requests"] == 3000


# ---- any order, any repetition: against plain dictionaries

records = st.one_of(
    st.builds(
        lambda number, items, time, policy: slate(
            number,
            f"s{number % 3}",
            items=items,
            time_us=NOW + time,
            policy=policy,
            propensities=(0.25,) * len(items),
            values=(1.0,) * len(items),
        ),
        st.integers(0, 7),
        st.tuples(st.permutations(ITEMS), st.integers(1, 4)).map(lambda drawn: tuple(drawn[0][: drawn[1]])),
        st.integers(0, 5),
        st.sampled_from(["v1", "v2"]),
    ),
    st.builds(
        lambda number, item, response, time: answer(number, item, response, NOW + time),
        st.integers(0, 9),
        st.sampled_from(ITEMS),
        st.sampled_from(["skip", "click", "buy"]),
        st.integers(0, 5),
    ),
)


class Model:
    """First come, first kept; everything else is a plain loop over what was kept."""

    def __init__(self, sequence: list[Record]):
        self.slates: dict[str, Impression] = {}
        self.answers: dict[tuple[str, str, str], int] = {}
        for record in sequence:
            if isinstance(record, Impression):
                if record.request_id not in self.slates:
                    self.slates[record.request_id] = record
            elif (record.request_id, record.item, record.response) not in self.answers:
                self.answers[record.request_id, record.item, record.response] = record.time_us

    def best(self, request: str, item: str) -> tuple[str, int] | None:
        for response in ("buy", "click", "skip"):
            if (request, item, response) in self.answers:
                return response, self.answers[request, item, response]
        return None

    def session(self, session: str) -> StoredSession:
        slates, last = [], -1
        for one in sorted(self.slates.values(), key=lambda one: one.step):  # no two have the same
            if one.session_id == session:
                best = [(item, self.best(one.request_id, item)) for item in one.items]
                slates.append([(item, None if found is None else found[0]) for item, found in best])
                last = one.step
        return StoredSession([], slates, last + 1)

    def log(self) -> list[tuple[Any, ...]]:
        rows = []
        for one in sorted(self.slates.values(), key=lambda one: (one.time_us, one.step, one.request_id)):
            for place, item in enumerate(one.items):
                found = self.best(one.request_id, item)
                response = "skip" if found is None else found[0]
                rows.append((one.session_id, one.request_id, one.step, one.time_us, place, item, response))
        return rows

    def arms(self) -> list[ArmCounts]:
        counts = []
        for policy in sorted({one.policy for one in self.slates.values()}):
            mine = {name: one for name, one in self.slates.items() if one.policy == policy}
            responses: dict[str, int] = {}
            for request, item, response in self.answers:
                if request in mine and item in mine[request].items:
                    responses[response] = responses.get(response, 0) + 1
            sessions = {one.session_id for one in mine.values()}
            shown = sum(len(one.items) for one in mine.values())
            spread = {
                name: self.spread(list(mine.values()), name, Fraction(responses[name], shown)) for name in responses
            }
            counts.append(ArmCounts(policy, "A", len(sessions), len(mine), shown, responses, spread))
        return counts

    def spread(self, slates: list[Impression], response: str, rate: Fraction) -> float:
        total = Fraction(0)
        for session in {one.session_id for one in slates}:
            mine = [one for one in slates if one.session_id == session]
            shown = sum(len(one.items) for one in mine)
            answered = sum((one.request_id, item, response) in self.answers for one in mine for item in one.items)
            total += (answered - rate * shown) ** 2
        return float(total)


def compare(url: str, folder: Path, groups: list[list[Record]], reopen: int) -> None:
    store = open_store(url)
    try:
        sent: list[Record] = []
        for number, group in enumerate(groups):
            if number == reopen:
                store.close()
                store = open_store(url)
            store.submit(group)
            sent += group
            model = Model(sent)
            assert {name: store.session(name) for name in ("s0", "s1", "s2")} == {
                name: model.session(name) for name in ("s0", "s1", "s2")
            }
    finally:
        store.close()
    if not model.slates:
        return
    found, log = log_of(url, folder)
    columns = ["session_id", "request_id", "step", "timestamp", "position", "item_id", "response"]
    assert log.with_columns(pl.col("timestamp").cast(pl.Int64)).select(columns).rows() == model.log()
    unknown = [key for key in model.answers if key[0] not in model.slates]
    not_shown = [key for key in model.answers if key[0] in model.slates and key[1] not in model.slates[key[0]].items]
    assert found["dropped"] == {
        "feedback_without_impression": len(unknown),
        "feedback_for_items_not_shown": len(not_shown),
    }
    assert found["sessions"] == len({one.session_id for one in model.slates.values()})
    store = open_store(url)
    try:
        assert store.arms() == model.arms()
    finally:
        store.close()


@given(st.lists(st.lists(records, max_size=6), min_size=1, max_size=5), st.integers(0, 5))
@example([[answer(0, "a", "click")], [slate(0, "s0")]], 1)
@example([[slate(0, "s0")], [slate(0, "s0", items=("b", "d", "e")), answer(0, "d", "click")]], 1)
@settings(max_examples=40, deadline=None, suppress_health_check=HEALTH)
def test_sqlite_is_a_dictionary(tmp_path: Path, groups: list[list[Record]], reopen: int) -> None:
    folder = tmp_path / str(time.monotonic_ns())
    folder.mkdir()
    compare(str(folder / "store.db"), folder, groups, reopen)
    shutil.rmtree(folder)


@given(st.lists(st.lists(records, max_size=6), min_size=1, max_size=5), st.integers(0, 5))
@example([[answer(0, "a", "click")], [slate(0, "s0")]], 1)
@example([[slate(0, "s0")], [slate(0, "s0", items=("b", "d", "e")), answer(0, "d", "click")]], 1)
@settings(
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=HEALTH,
)
def test_postgresql_is_a_dictionary(
    server: PostgresServer, tmp_path: Path, groups: list[list[Record]], reopen: int
) -> None:
    compare(empty(server.url), tmp_path, groups, reopen)


# ---- the buffer, and records that no database takes


def held(store: Store) -> threading.Lock:
    """The lock without which the writer's groups do not end; hold it to keep records pending."""
    lock = threading.Lock()
    commit = store._writer._commit
    store._writer._commit = lambda group: _locked(lock, commit, group)  # type: ignore[method-assign]
    return lock


def _locked(lock: threading.Lock, commit: Any, group: Any) -> None:
    with lock:
        commit(group)


@pytest.mark.parametrize(("awaited", "seconds"), [(False, 0.0005), (True, 0.0001)])
def test_groups_wait_less_where_answers_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool, seconds: float
) -> None:
    """In proportion to the group before, and never long."""
    waits: list[float] = []
    monkeypatch.setattr(writer, "time", SimpleNamespace(**vars(time) | {"sleep": waits.append}))
    store = open_store(str(tmp_path / "a.db"), awaited=awaited)
    for first, count in [(0, 7), (10, 3), (20, 60), (90, 1)]:
        store.submit([slate(number) for number in range(first, first + count)]).result(60)
    store.close()
    assert waits == pytest.approx([0.0, 7 * seconds, 3 * seconds, min(60 * seconds, 0.005)])


def test_the_buffer_has_a_bound(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a.db"), buffer=10)
    with held(store):
        futures = [store.submit([slate(number), slate(number + 100)]) for number in range(4)]
        with pytest.raises(BufferFull, match="8 of 10"):
            store.submit([slate(50), slate(51), slate(52)])
        assert (store.status().pending, store.status().dropped) == (8, 3)
        futures.append(store.submit([slate(60), slate(61)]))
        with pytest.raises(BufferFull):  # at once: whoever waited for room would wait here for ever
            store.submit([slate(70)])
        assert not any(future.done() for future in futures)
        assert not futures[0].cancel()  # a server that stops waiting does not take the record back
    for future in futures:
        future.result(60)
    store.submit([slate(70)]).result(60)
    assert (store.status().pending, store.status().dropped) == (0, 4)
    store.close()


def test_a_record_that_cannot_be_stored_fails_alone(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    with held(store):
        bad = replace(slate(1), values=(np.float32(1), 2.0, 3.0))  # no JSON
        futures = [store.submit([one]) for one in (slate(0), bad, slate(2))]
    with pytest.raises(TypeError):
        futures[1].result(60)
    assert futures[0].result(60) is futures[2].result(60) is None
    status = store.status()
    assert (status.connected, status.pending, status.dropped) == (True, 0, 1)
    assert "TypeError" in str(status.last_error)
    store.close()
    assert log_of(url, tmp_path)[0]["requests"] == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request_id": ""}, "empty text"),
        ({"session_id": "a\0b"}, "NUL"),
        ({"policy": "\ud800"}, "surrogate"),
        ({"items": ("a", "b", "a")}, "distinct"),
        ({"items": ("a", "b")}, "one entry"),
        ({"items": (), "propensities": (), "values": ()}, "one entry"),
        ({"propensities": (0.0, 1.0, 1.0)}, "above 0"),
        ({"propensities": (1.5, 1.0, 1.0)}, "at most 1"),
        ({"propensities": (float("nan"), 1.0, 1.0)}, "at most 1"),
        ({"values": (1.0, float("inf"), 1.0)}, "finite"),
        ({"time_us": -1}, "microseconds"),
        ({"time_us": 10**18}, "microseconds"),
        ({"step": -1}, "step"),
    ],
)
def test_impressions_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        slate(0, **changes)


def test_feedback_that_cannot_be() -> None:
    for fields in (("", "a", "click", 0), ("r", "a\0", "click", 0), ("r", "a", "\udfff", 0), ("r", "a", "b", 10**18)):
        with pytest.raises(InputError):
            Feedback(*fields)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([("click", 9), ("buy", 8), ("skip", 1)], ("buy", 8)),  # neither the first nor the last in time
        ([("skip", 3), ("click", 5)], ("click", 5)),
        ([("click", 7), ("click", 4), ("click", 6)], ("click", 4)),  # of equals the earliest
        ([("save", 2), ("click", 4), ("add", 4)], ("add", 4)),  # of the same reward and moment by name
        ([("skip", 1), ("wave", 2)], ("wave", 2)),  # what nobody gave a reward is above a skip,
        ([("wave", 1), ("click", 2)], ("click", 2)),  # and below a click
    ],
)
def test_the_strongest_response_by_hand(answers: list[tuple[str, int]], found: tuple[str, int]) -> None:
    rewards = {"skip": 0.0, "save": 0.7, "add": 1.0, "click": 1.0, "buy": 5.0}
    assert strongest(answers, rewards) == strongest(answers[::-1], rewards) == found


def test_memory_forgets_what_was_committed_long_ago() -> None:
    recent = Recent(keep=3)
    records: list[Record] = [slate(0), answer(0, "a", "click"), slate(1), answer(0, "b", "buy"), slate(2)]
    recent.add(records)
    recent.committed(records[:4])
    assert [one.request_id for one in recent.slates("s")] == ["r1", "r2"]
    assert recent.answers(["r0", "r1", "r9"]) == {"r0": {("a", "click"): NOW, ("b", "buy"): NOW}}
    recent.committed(records[4:])
    assert recent.answers(["r0"]) == {"r0": {("b", "buy"): NOW}}
    recent.forget(records)
    assert len(recent) == 0
    assert recent._slates == recent._answers == {}


# ---- retention, counts


def test_retention(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PRUNE_SLATES", 7)
    monkeypatch.setattr(writer, "PRUNE_PAUSE", 0.01)
    monkeypatch.setattr(writer, "BORDER_SECONDS", 0.0)
    now, day = time.time_ns() // 1000, writer.DAY_US
    store = open_store(url)
    for number in range(40):
        when = now - number * day // 2
        late = Feedback(f"r{number}", "a", "click", now)  # goes with its slate
        lost = Feedback(f"unknown{number}", "a", "click", when)
        store.submit([slate(number, f"s{number}", time_us=when), late, lost])
    store.close()
    store = open_store(url, retention_days=5.25)
    end = time.monotonic() + 120
    while store._writer._next_prune < time.monotonic() + 1:
        assert time.monotonic() < end
        store.submit([slate(0, "s0")])  # there already; a busy store forgets too
        time.sleep(0.02)
    store.close(60)
    found, log = log_of(url, tmp_path)
    assert sorted(log["request_id"].unique()) == sorted(f"r{number}" for number in range(11))
    assert found["responses"]["click"] == 11
    assert found["dropped"]["feedback_without_impression"] == 11


def carried_on(url: str, groups: list[list[Record]]) -> None:
    """One counter after each group, against a plain loop over all records."""
    store, counter, sent = open_store(url), ArmCounter(), list[Record]()
    connection = database_of(url).connect(create=False, patience=5)
    try:
        for group in groups:
            store.submit(group).result(60)
            sent += group
            assert counter.count(connection) == Model(sent).arms()
            assert counter.count(connection) == Model(sent).arms()
    finally:
        connection.close()
        store.close()


SEQUENCES = st.lists(st.lists(records, max_size=6), min_size=2, max_size=6)
LATE: list[list[Record]] = [
    [slate(0, "s0"), slate(1, "s1")],
    [answer(2, "a", "click")],  # before its slate
    [answer(0, "a", "click"), answer(0, "a", "buy")],
    [slate(2, "s0"), slate(3, "s0"), answer(0, "a", "click")],
]


@given(SEQUENCES)
@example(LATE)
@settings(max_examples=40, deadline=None, suppress_health_check=HEALTH)
def test_counts_are_carried_on_in_sqlite(tmp_path: Path, groups: list[list[Record]]) -> None:
    folder = tmp_path / str(time.monotonic_ns())
    folder.mkdir()
    carried_on(str(folder / "store.db"), groups)
    shutil.rmtree(folder)


@given(SEQUENCES)
@example(LATE)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH)
def test_counts_are_carried_on_in_postgresql(server: PostgresServer, groups: list[list[Record]]) -> None:
    carried_on(empty(server.url), groups)


def test_counts_after_something_was_deleted(url: str) -> None:
    store, counter = open_store(url), ArmCounter()
    connection = database_of(url).connect(create=False, patience=5)
    try:
        store.submit([slate(number, f"s{number % 3}") for number in range(9)]).result(60)
        store.submit([answer(number, "a", "click") for number in range(9)]).result(60)
        assert counter.count(connection)[0].requests == 9
        times = sorted(time_us for (time_us,) in connection.rows("SELECT time_us FROM bcd4rec_impressions"))
        queries.prune(connection, times[4], 100)
        store.submit([slate(20, "s0")]).result(60)
        found = counter.count(connection)
        assert found == ArmCounter().count(connection)
        assert found[0].requests == 6
    finally:
        connection.close()
        store.close()


def test_what_others_have_not_committed_is_counted_later(server: PostgresServer) -> None:
    """A transaction that began earlier may end later; what it wrote must not be passed over."""
    url = empty(server.url)
    store, counter = open_store(url), ArmCounter()
    reader, slow = (database_of(url).connect(create=False, patience=5) for _ in range(2))
    try:
        with slow.transaction():
            slow.insert(queries.IMPRESSIONS, queries.IMPRESSION_COLUMNS, [queries._impression_row(slate(0, "s0"))])
            store.submit([slate(1, "s1"), answer(0, "a", "click")]).result(60)
            counter.count(reader)
        found = counter.count(reader)
        assert found == ArmCounter().count(reader)
        assert (found[0].requests, found[0].responses) == (2, {"click": 1})
    finally:
        for connection in (reader, slow):
            connection.close()
        store.close()


def test_counting_again_looks_at_new_records_only(tmp_path: Path) -> None:
    store, counter = open_store(str(tmp_path / "a.db")), ArmCounter()
    connection = database_of(str(tmp_path / "a.db")).connect(create=False, patience=5)
    assert isinstance(connection, SqliteConnection)
    steps = [0]

    def step() -> int:
        steps[-1] += 1
        return 0

    try:
        connection._connection.set_progress_handler(step, 100)
        for first in range(0, 4_000, 1_000):
            numbers = range(first, first + 1_000)
            store.submit([slate(number, f"s{number // 4}") for number in numbers])
            store.submit([answer(number, "a", "click") for number in numbers]).result(60)
        counter.count(connection)
        steps.append(0)
        store.submit([slate(5_000, "s7"), answer(5_000, "b", "click")]).result(60)
        assert counter.count(connection)[0].requests == 4_001
        assert steps[1] < steps[0] / 100
    finally:
        connection.close()
        store.close()


def test_counting_takes_little_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [1000.0], list[float]()

    def slow(counter: ArmCounter, connection: Any) -> list[ArmCounts]:
        calls.append(now[0])
        now[0] += 0.1
        return []

    monkeypatch.setattr(ArmCounter, "count", slow)
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store = open_store(str(tmp_path / "a.db"))
    for pause, counted in ((0.0, 1), (0.0, 1), (1.99, 1), (0.02, 2), (1.0, 2)):  # a twentieth of the time
        now[0] += pause
        store.arms()
        assert len(calls) == counted
    store.close()


# ---- export


def test_export_selects_whole_sessions(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    rows = [("s1", 0, "v1"), ("s1", 5, "v1"), ("s2", 4, "v1"), ("s2", 9, "v2"), ("s3", 8, "v2"), ("s4", 6, "v1")]
    for number, (session, time_us, policy) in enumerate(rows):
        store.submit([slate(number, session, time_us=NOW + time_us, policy=policy)])
    store.close()

    def sessions(*selection: Any) -> list[str]:
        return log_of(url, tmp_path, Selection(*selection))[1]["session_id"].unique(maintain_order=True).to_list()

    assert sessions() == ["s1", "s2", "s4", "s3"]
    assert sessions(NOW + 4) == ["s2", "s4", "s3"]
    assert sessions(NOW + 1, NOW + 8) == ["s2", "s4"]
    assert sessions(None, NOW + 1) == ["s1"]
    assert sessions(None, None, "v1") == ["s1", "s4"]
    assert sessions(NOW + 1, None, "v1") == ["s4"]
    found, log = log_of(url, tmp_path, Selection(policy="v1"))
    assert found["dropped"]["sessions_of_several_policies"] == 1
    assert log.filter(pl.col("session_id") == "s1").height == 6
    with pytest.raises(InputError, match="no impressions"):
        log_of(url, tmp_path, Selection(policy="v3"))


def test_what_a_session_brought_along_is_of_no_policy(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    told = {"policy": ORGANIC, "arm": ORGANIC}
    store.submit([slate(0, "s1", **told), slate(1, "s1"), slate(2, "s2", **told), slate(3, "s2", policy="v2")])
    store.submit([slate(4, "s3", **told), slate(5, "s3"), slate(6, "s3", policy="v2"), slate(7, "s4", **told)])
    store.close()
    found, log = log_of(url, tmp_path, Selection(policy="v1"))
    assert log["request_id"].unique(maintain_order=True).to_list() == ["r0", "r1"]
    assert log["organic"].to_list() == [True] * 3 + [False] * 3
    assert (found["requests"], found["impressions"], found["organic"]) == (1, 3, 3)
    assert (found["sessions"], found["dropped"]["sessions_of_several_policies"]) == (1, 1)


def test_export_keeps_every_bit(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    draw = random.Random(0)
    slates = [slate(number, propensities=tuple(draw.random() for _ in "abc")) for number in range(50)]
    store.submit(slates)
    store.close()
    log = log_of(url, tmp_path)[1]
    assert log["propensity"].to_list() == [one for shown in slates for one in shown.propensities]
    assert log["timestamp"].cast(pl.Int64).to_list() == [shown.time_us for shown in slates for _ in "abc"]
    assert log.select("policy", "arm").unique().rows() == [("v1", "A")]


def test_export_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "a.db")
    store = open_store(url)
    for number in range(40):
        store.submit([slate(number), answer(number, "b", "click"), answer(number, "b", "buy")])
    store.close()
    whole = log_of(url, tmp_path)[1]
    monkeypatch.setattr("bcd4rec.serving.storage.export.CHUNK_ROWS", 7)
    assert log_of(url, tmp_path)[1].equals(whole)
    assert whole.height == 120


def test_export_of_other_responses_and_integer_items(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    store = open_store(url)
    store.submit([slate(0, items=("1", "20", "3")), answer(0, "20", "like"), answer(0, "20", "share")])
    store.close()
    with pytest.raises(InputError, match=r"holds the response 'like' .request r0, item 20.*--rewards"):
        log_of(url, tmp_path)
    likes = Responses(rewards={"share": 1.0, "like": 2.0, "ignore": -1.0})
    log = log_of(url, tmp_path, responses=likes, integer_items=True)[1]
    assert log["response"].to_list() == ["ignore", "like", "ignore"]
    assert log["item_id"].to_list() == [1, 20, 3]
    store = open_store(url)
    store.submit([slate(1, items=("1", "020", "3"))])
    store.close()
    with pytest.raises(InputError, match="--integer-items: found the item '020'"):
        log_of(url, tmp_path, responses=likes, integer_items=True)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".db", ".db-lock", ".parquet"]


# ---- addresses


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/name", "found mysql://…, expected sqlite:///path"),
        ("sqlite://name", "found sqlite://…"),
        ("sqlite:///", "found nothing"),
        ("FOLDER", "found a folder"),
        ("FOLDER/none/a.db", "none does not exist; make it"),
        ("sqlite:///FOLDER/a.db?mode=ro", "found the option 'mode'"),
        ("sqlite:///FOLDER/a.db?synchronous=off", "found synchronous=off, expected full or normal"),
        ("FOLDER/text.db", "text.db cannot be used (DatabaseError: file is not a database)"),
        ("postgresql://host:port/x", "cannot be"),
        ("postgresql://bcd4rec:secret@/x?host=/nowhere", "cannot be used"),
    ],
)
def test_addresses_that_cannot_be(url: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(InputError) as found:
        open_store(url.replace("FOLDER", str(tmp_path)))
    assert words in str(found.value)
    assert "secret" not in str(found.value)


def test_options_that_cannot_be(tmp_path: Path) -> None:
    for days in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="--retention-days"):
            open_store(str(tmp_path / "a.db"), retention_days=days)
    with pytest.raises(InputError, match="--buffer"):
        open_store(str(tmp_path / "a.db"), buffer=0)
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    open_store(str(path)).close()
    connection = database_of(str(path)).connect(create=False, patience=1)
    connection.rows("UPDATE bcd4rec_storage SET version = 99")
    connection.close()
    with pytest.raises(InputError, match="tables of version 99, expected 1"):
        open_store(str(path))


def test_values_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = open_store(f"sqlite:///{path}?synchronous=normal")
    store.submit([slate(0)]).result(60)
    store.close()
    connection = database_of(str(path)).connect(create=False, patience=1)
    assert json.loads(connection.rows("SELECT item_values FROM bcd4rec_impressions")[0][0]) == [0.1, -2.0, 3e-9]
    connection.close()
