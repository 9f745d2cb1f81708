"""The canary's books: every session counts once, by its own arm and share, whatever the order of what arrives."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.evaluation.canary import Canary, CanaryConfig
from bcd4rec.evaluation.session_rewards import MEASURES, SessionReward
from bcd4rec.serving.canary import LiveCanary
from bcd4rec.serving.canary_state import GRACE_US, NOTICE_US, CanarySettings, CanaryState
from bcd4rec.serving.decision_hook import HookFailed
from bcd4rec.serving.guard import Answered, Guard
from bcd4rec.serving.storage import canaries, queries
from bcd4rec.serving.storage.canaries import WatchedSession
from bcd4rec.serving.storage.records import ORGANIC, Feedback, Impression, Record
from bcd4rec.serving.storage.sqlite import Sqlite
from bcd4rec.serving.storage.store import open_store
from databases import postgres_server

REWARDS = {"skip": 0.0, "click": 1.0, "buy": 5.0}
MINUTE = 60_000_000


def settings_of(**changes: Any) -> CanarySettings:
    values = {
        "old": "v1",
        "new": "v2",
        "rule": CanaryConfig(highest=5.0, error=1e-6),
        "shares": (0.4,),
        "session_minutes": 1.0,
        "reward": SessionReward(highest=5.0),
    }
    return CanarySettings.parse(values | changes, "test")


# ---- what a session is worth


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(MEASURES),
)
def test_a_session_in_a_log_is_worth_what_it_is_in_the_server(slates: list[list[float]], measure: Any) -> None:
    reward = SessionReward.from_rewards(measure, [0.0, 1.0, 5.0], 7.0)
    rows = [(3, number, one) for number, slate in enumerate(slates) for one in slate]
    frame = pl.LazyFrame(rows, schema=["session_id", "step", "reward"], orient="row")
    (found,) = reward.of_rows(frame, "step").collect()["session_reward"]
    assert found == pytest.approx(reward.of(slates))
    assert reward.lowest <= found <= reward.highest


def test_worth_by_hand() -> None:
    slates = [[0.0, 5.0, 1.0], [0.0, 0.0], [1.0]]
    found = {name: SessionReward.from_rewards(name, [0.0, 1.0, 5.0], 4.0).of(slates) for name in MEASURES}
    assert found == {"slate": 2.0, "item": pytest.approx(7 / 6), "total": 4.0}


# ---- counting


Drawn = tuple[int, list[tuple[int, list[tuple[int, str, int]]]]]
DRAWN = st.lists(
    st.tuples(
        st.integers(0, 300),  # seconds at which it begins
        st.lists(  # slates: seconds later, and answers of (item, response, seconds after the slate)
            st.tuples(
                st.integers(0, 90),
                st.lists(
                    st.tuples(st.integers(0, 3), st.sampled_from(list(REWARDS)), st.integers(0, 90)),
                    max_size=4,
                    unique_by=lambda one: one[:2],  # the database keeps the first of the same
                ),
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=12,
)


def records_of(plan: CanarySettings, start: int, sessions: list[Drawn]) -> list[Record]:
    """Items 0 to 2 are shown; an answer to item 3 is to nothing that was."""
    found: list[Record] = []
    for number, (begin, slates) in enumerate(sessions):
        name = f"s{number}"
        offset = min(later for later, _ in slates)
        new = plan.point(name) < plan.shares[0]
        for place, (later, answers) in enumerate(slates):
            when = start + 1_000_000 * (1 + begin + later - offset) + number
            items = ("i0", "i1", "i2")
            arm = ("v2", "new") if new else ("v1", "old")
            found.append(Impression(f"{name}-{place}", name, place, *arm, when, items, (None,) * 3, (0.0,) * 3))
            found += [
                Feedback(f"{name}-{place}", f"i{item}", response, when + 1_000_000 * after)
                for item, response, after in answers
            ]
        opening = Impression(f"{name}-o", name, 0, ORGANIC, ORGANIC, start - 5, ("i9",), (None,), (0.0,))
        found += [opening, Feedback(f"{name}-o", "i9", "buy", start - 5)]
    return found


def plain(plan: CanarySettings, records: list[Record]) -> Canary:
    """Loops over sessions in the order in which they began."""
    canary = Canary(plan.rule)
    slates = [one for one in records if isinstance(one, Impression) and one.arm != ORGANIC]
    names = {one.session_id for one in slates}
    begins = sorted((min(one.time_us for one in slates if one.session_id == name), name) for name in names)
    for began, name in begins:
        rewards = []
        for slate in (one for one in slates if one.session_id == name and one.time_us <= began + MINUTE):
            best = 0.0
            for answer in records:
                if (
                    isinstance(answer, Feedback)
                    and answer.request_id == slate.request_id
                    and answer.item in slate.items
                    and answer.time_us <= began + MINUTE
                ):
                    best = max(best, REWARDS[answer.response])
            rewards.append(best)
        canary.add(plan.point(name) < plan.shares[0], sum(rewards) / len(rewards), plan.shares[0])
    return canary


@settings(max_examples=40, deadline=None)
@given(sessions=DRAWN, looks=st.lists(st.integers(0, 500), max_size=6), data=st.data())
def test_each_session_counts_once_whatever_arrives_in_whatever_order(
    sessions: list[Drawn], looks: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan, start = settings_of(), 10**15
    records = records_of(plan, start, sessions)
    state = CanaryState.begin(plan, start)
    connection = Sqlite(tmp_path_factory.mktemp("books") / "one.sqlite").connect(create=True, patience=1.0)
    queries.create_tables(connection)
    try:
        for look in [*sorted(looks), 10_000]:
            now = start + 1_000_000 * look
            arrived = [one for one in records if one.time_us <= now]
            again = data.draw(st.lists(st.sampled_from(arrived), max_size=5)) if arrived else []
            queries.write(connection, data.draw(st.permutations(arrived)))
            queries.write(connection, again)
            while found := canaries.watched_sessions(
                connection, state.position, now - plan.window_us, plan.window_us, REWARDS, 2
            ):
                state.add(plan, found, now)
                state = CanaryState.from_json(json.loads(json.dumps(state.to_json())))
    finally:
        connection.close()
    expected = plain(plan, records)
    assert state.canary.to_json() == expected.to_json()
    assert state.canary.sequence.sessions == len(sessions)
    assert state.left_out == 0


def watched(plan: CanarySettings, state: CanaryState, name: str, began: int, reward: float = 0.0) -> WatchedSession:
    new = state.in_new(plan, name, began)
    return WatchedSession(name, began, "v2" if new else "v1", "new" if new else "old", ((reward,),))


def test_a_ramp_moves_only_sessions_that_have_not_begun() -> None:
    plan = settings_of(shares=(0.2, 0.6), ramp_sessions=3)
    state, start = CanaryState.begin(plan, 1000), 1000
    names = [f"s{number}" for number in range(200)]
    before = {name: state.in_new(plan, name, start) for name in names}
    for number, name in enumerate(names):
        if len(state.schedule) > 1:
            break
        state.add(plan, [watched(plan, state, name, start + number)], now_us=5 * MINUTE)
    assert state.canary.sequence.new == 3
    assert [since.share for since in state.schedule] == [0.2, 0.6]
    change = state.schedule[1].time_us
    assert change == 5 * MINUTE + NOTICE_US
    assert {name: state.in_new(plan, name, change - 1) for name in names} == before
    after = {name: state.in_new(plan, name, change) for name in names}
    assert all(after[name] for name in names if before[name])
    assert sum(after.values()) > sum(before.values())
    counted = state.canary.sequence.sessions
    for began in (change - GRACE_US + 1, change + GRACE_US - 1):  # nobody can be sure of these
        state.add(plan, [watched(plan, state, f"t{began}", began)], now_us=10 * MINUTE)
    assert (state.canary.sequence.sessions, state.left_out) == (counted, 2)
    state.add(plan, [watched(plan, state, "later", change + GRACE_US)], now_us=10 * MINUTE)
    assert state.canary.sequence.sessions == counted + 1


def test_sessions_of_other_servers_and_versions_are_left_out() -> None:
    plan = settings_of()
    state = CanaryState.begin(plan, 1000)
    name = next(f"s{number}" for number in range(99) if state.in_new(plan, f"s{number}", 1000))
    for session in (
        WatchedSession(name, 2000, "v2", "b", ((5.0,),)),
        WatchedSession(name, 2001, "v3", "new", ((5.0,),)),
        WatchedSession(name, 2002, "v1", "old", ((5.0,),)),
        WatchedSession(name, 999, "v2", "new", ((5.0,),)),
    ):
        state.add(plan, [session], 3000)
    assert (state.canary.sequence.sessions, state.left_out) == (0, 4)


def test_shares_are_as_promised() -> None:
    plan = settings_of(shares=(0.3,))
    state = CanaryState.begin(plan, 0)
    count = sum(state.in_new(plan, f"session {number}", 5) for number in range(20_000))
    assert abs(count / 20_000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 20_000)
    assert not any(state.in_new(plan, f"session {number}", -1) for number in range(100))


def test_the_plot_has_few_points_and_the_newest() -> None:
    plan = settings_of(rule=CanaryConfig(highest=5.0, error=1e-9, most=3000))
    state = CanaryState.begin(plan, 0)
    for number in range(3000):
        state.add(plan, [watched(plan, state, f"s{number}", number, 1.0)], number)
    assert len(state.history) < 400
    assert state.history[-1].sessions == 3000
    assert [one.sessions for one in state.history] == sorted({one.sessions for one in state.history})
    assert state.ended is not None
    assert state.ended.decision == "stop"


# ---- several servers, and telling


def test_two_servers_decide_once_and_one_tells(tmp_path: Path) -> None:
    plan = settings_of(rule=CanaryConfig(highest=5.0), session_minutes=0.001)
    store = open_store(str(tmp_path / "one.sqlite"))
    told: list[dict[str, Any]] = []
    try:
        both = [LiveCanary(plan, store, REWARDS, hook=told.append) for _ in range(2)]
        now = store.now_us()
        records: list[Record] = []
        for number in range(80):
            name = f"s{number}"
            new = both[0].in_new(name, now)
            arm = ("v2", "new") if new else ("v1", "old")
            records.append(Impression(name, name, 0, *arm, now + number, ("i",), (None,), (0.0,)))
            records.append(Feedback(name, "i", "buy" if new else "skip", now + number))
        store.submit(records).result()
        while store.now_us() < now + 80 + plan.window_us:
            pass
        for live in both:
            live.look()
            live.look()
        assert both[0].described() == both[1].described()
        assert both[0].described()["decision"] == "promote"
        assert both[0].winner is True
        assert [one["decision"] for one in told] == ["promote"]
        again = LiveCanary(plan, store, REWARDS, hook=told.append)
        again.look()
        assert len(told) == 1
        assert again.state.to_json() == both[0].state.to_json() | {"told": True}
        other = LiveCanary(settings_of(seed=1), store, REWARDS)
        assert other.state.ended is None
        LiveCanary(settings_of(seed=2), store, REWARDS)
        other.look()
        assert other.state.ended is not None
        assert (other.state.ended.decision, other.state.ended.reason) == ("stop", "replaced")
    finally:
        store.close()


def test_another_server_in_between_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One looks after the other has read sessions, and again while the other tells the decision."""
    plan = settings_of(rule=CanaryConfig(highest=5.0, most=6), session_minutes=0.001)
    store = open_store(str(tmp_path / "one.sqlite"))
    told: list[str] = []
    try:
        other = LiveCanary(plan, store, REWARDS, hook=lambda _: told.append("other"))

        def telling(_: dict[str, Any]) -> None:
            told.append("first")
            other.look()

        first = LiveCanary(plan, store, REWARDS, hook=telling)
        now, records = store.now_us(), []
        for number in range(6):
            arm = ("v2", "new") if first.in_new(f"s{number}", now) else ("v1", "old")
            records.append(Impression(f"s{number}", f"s{number}", 0, *arm, now + number, ("i",), (None,), (0.0,)))
        store.submit(records[:3]).result()
        time.sleep(0.1)
        read = canaries.watched_sessions

        def slowly(*given: Any) -> list[WatchedSession]:
            found = read(*given)
            monkeypatch.setattr(canaries, "watched_sessions", read)
            other.look()
            return found

        monkeypatch.setattr(canaries, "watched_sessions", slowly)
        first.look()
        assert first.state.canary.sequence.sessions == 3
        store.submit(records[3:]).result()
        first.look()
        assert first.described()["decision"] == "stop"
        assert told == ["first"]
    finally:
        store.close()


def test_a_hook_that_fails_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    tries: list[str] = []

    def failing(decision: dict[str, Any]) -> None:
        tries.append(decision["decision"])
        raise HookFailed("no")

    store = open_store(str(tmp_path / "one.sqlite"))
    try:
        live = LiveCanary(settings_of(), store, REWARDS, hook=failing)
        for _ in range(5):
            live._note(True, Answered(0.01, failed=True, empty=False))
        assert live.winner is False  # at once
        for _ in range(9):
            live.look()
        assert tries == ["roll back"] * 5
        assert live.described()["reason"] == "guard"
    finally:
        store.close()


def test_a_database_that_was_begun_anew_gets_what_is_known(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "one.sqlite"))
    try:
        live = LiveCanary(settings_of(), store, REWARDS)
        for _ in range(5):
            live._note(True, Answered(0.01, failed=False, empty=True))
        live.look()
        live._connected().rows(f"DROP TABLE {canaries.CANARIES}")
        live._disconnect()
        live.look()
        assert LiveCanary(settings_of(), store, REWARDS).described() == live.described()
        assert live.described()["decision"] == "roll back"
    finally:
        store.close()


def test_a_database_that_comes_back_is_counted_again() -> None:
    def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not done():
            assert time.monotonic() < end
            time.sleep(0.05)

    with postgres_server() as server:
        store = open_store(server.url)
        live = LiveCanary(settings_of(session_minutes=0.001), store, REWARDS)
        live.start()
        try:
            for name in ("before", "after"):
                if name == "after":
                    server.stop()
                    until(lambda: live._away)
                    assert live.share == 0.4
                    server.start()
                new = live.in_new(name, store.now_us())
                arm = ("v2", "new") if new else ("v1", "old")
                until(lambda: store.status().connected)
                now = store.now_us()
                store.submit([Impression(name, name, 0, *arm, now, ("i",), (None,), (0.0,))]).result(60)
                until(lambda: live.state.canary.sequence.sessions == 1 + (name == "after"))  # noqa: B023
        finally:
            live.close()
            store.close()


# ---- the guard


def seen(old: list[Answered], new: list[Answered]) -> str | None:
    guard = Guard()
    for in_new, answers in ((False, old), (True, new)):
        for one in answers:
            guard.note(in_new, one)
    return guard.alarm()


FINE, FAILED, EMPTY = Answered(0.01, False, False), Answered(0.01, True, False), Answered(0.01, False, True)
SLOW = Answered(0.4, False, False)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ([FINE] * 100, [FINE] * 100, None),
        ([FINE] * 100, [FINE] * 20 + [FAILED] * 4, None),
        ([FINE] * 100, [FINE] * 20 + [FAILED] * 5, "5 of the last 25 requests failed"),
        ([], [EMPTY] * 5, "5 of the last 5 slates were empty"),
        ([FINE] * 50 + [EMPTY] * 25, [FINE] * 20 + [EMPTY] * 9, None),
        ([FINE] * 100, [SLOW] * 39, None),
        ([FINE] * 100, [SLOW] * 40, "95 % of answers took up to 400 ms"),
        ([SLOW] * 100, [SLOW] * 40, None),
        ([FINE] * 100, [FINE] * 37 + [SLOW] * 3, "95 % of answers took up to 400 ms"),
    ],
)
def test_the_guard(old: list[Answered], new: list[Answered], says: str | None) -> None:
    found = seen(old, new)
    assert (found is None) if says is None else (found is not None and says in found)
