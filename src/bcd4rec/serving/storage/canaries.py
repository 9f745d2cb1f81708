"""What the database keeps of canaries: one row each, changed by one server at a time; and whole sessions to count."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.database import Connection
from bcd4rec.serving.storage.records import ORGANIC, strongest

CANARIES = "bcd4rec_canaries"
TABLE = f"""CREATE TABLE IF NOT EXISTS {CANARIES} (
    id TEXT PRIMARY KEY, began_us BIGINT NOT NULL, settings TEXT NOT NULL, state TEXT NOT NULL,
    ended INTEGER NOT NULL, writes BIGINT NOT NULL)"""
NONE_EARLIER = f"""NOT EXISTS (SELECT 1 FROM bcd4rec_impressions e WHERE e.session_id = i.session_id
    AND e.arm <> '{ORGANIC}' AND (e.time_us < i.time_us OR (e.time_us = i.time_us AND e.request_id < i.request_id)))"""  # noqa: S608 (our names)

Position = tuple[int, str]  # when the last session that was looked at began, and its id


@dataclass(frozen=True)
class WatchedSession:
    """A session whose time is over: who served its first slate, and the rewards of what was shown, by slate."""

    session_id: str
    began_us: int
    policy: str
    arm: str
    rewards: tuple[tuple[float, ...], ...]


def create(connection: Connection) -> None:
    with connection.transaction():
        connection.lock_tables()
        connection.rows(TABLE)


def begin(connection: Connection, name: str, began_us: int, settings: str, state: dict[str, Any]) -> None:
    """Make the row, unless it is there."""
    connection.insert(
        CANARIES,
        ("id", "began_us", "settings", "state", "ended", "writes"),
        [(name, began_us, settings, json.dumps(state), 0, 0)],
    )


def running_others(connection: Connection, name: str) -> list[str]:
    """Canaries of this database that have not ended."""
    return [str(row[0]) for row in connection.rows(f"SELECT id FROM {CANARIES} WHERE ended = 0 AND id <> ?", name)]  # noqa: S608


def read(connection: Connection, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        connection.rows(f"SELECT state FROM {CANARIES} WHERE id = ?", name)[0][0]  # noqa: S608 (our names)
    )
    return found


@contextmanager
def changing(connection: Connection, name: str) -> Iterator[dict[str, Any]]:
    """The row's state, which nobody else reads or writes meanwhile; what was made of it is committed at the end."""
    with connection.transaction():
        # Writing first takes the row's lock in every database; whoever waits for it reads what was written.
        connection.rows(f"UPDATE {CANARIES} SET writes = writes + 1 WHERE id = ?", name)  # noqa: S608 (our names)
        state = read(connection, name)
        yield state
        connection.rows(
            f"UPDATE {CANARIES} SET state = ?, ended = ? WHERE id = ?",  # noqa: S608 (our names)
            json.dumps(state),
            int(state["ended"] is not None),
            name,
        )


def began(connection: Connection, session_id: str) -> int | None:
    """When a session was shown its first slate."""
    sql = f"SELECT MIN(time_us) FROM {queries.IMPRESSIONS} WHERE session_id = ? AND arm <> ?"  # noqa: S608 (our names)
    found: int | None = connection.rows(sql, session_id, ORGANIC)[0][0]
    return found


def watched_sessions(
    connection: Connection,
    after: Position,
    until_us: int,
    window_us: int,
    rewards: Mapping[str, float],
    limit: int,
) -> list[WatchedSession]:
    """The next sessions in the order in which they began, up to `until_us`, with what happened in their first
    `window_us`. Whenever this is asked, and however often, the answer for a session is the same."""
    firsts = connection.rows(
        f"""SELECT i.session_id, i.time_us, i.policy, i.arm FROM {queries.IMPRESSIONS} i
        WHERE i.arm <> ? AND i.time_us <= ? AND i.time_us >= ? AND (i.time_us > ? OR i.session_id > ?)
        AND {NONE_EARLIER} ORDER BY i.time_us, i.session_id LIMIT ?""",  # noqa: S608 (our names)
        *(ORGANIC, until_us, after[0], after[0], after[1], limit),
    )
    if not firsts:
        return []
    slates = _slates(connection, [row[0] for row in firsts])
    answers = _answers(connection, [request for found in slates.values() for request, _, _ in found])
    nothing = min(rewards.values())
    sessions = []
    for session_id, began_us, policy, arm in firsts:
        end = began_us + window_us
        shown = []
        for request, time_us, items in slates[session_id]:
            if time_us > end:
                continue
            given = answers.get(request, {})
            in_time = ([one for one in given.get(item, ()) if one[1] <= end] for item in items)
            shown.append(tuple(rewards.get(strongest(one, rewards)[0], nothing) if one else nothing for one in in_time))
        sessions.append(WatchedSession(session_id, began_us, policy, arm, tuple(shown)))
    return sessions


def _slates(connection: Connection, sessions: Sequence[str]) -> dict[str, list[tuple[str, int, list[str]]]]:
    """(request_id, time, items) by session."""
    marks = ", ".join("?" * len(sessions))
    found: dict[str, list[tuple[str, int, list[str]]]] = {}
    for session_id, request, time_us, items in connection.rows(
        f"""SELECT session_id, request_id, time_us, items FROM {queries.IMPRESSIONS}
        WHERE arm <> ? AND session_id IN ({marks}) ORDER BY time_us, request_id""",  # noqa: S608 (our names)
        *(ORGANIC, *sessions),
    ):
        found.setdefault(session_id, []).append((request, time_us, json.loads(items)))
    return found


def _answers(connection: Connection, requests: Sequence[str]) -> dict[str, dict[str, list[tuple[str, int]]]]:
    """(response, time) by request and item."""
    found: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for request, item, response, when in queries.feedback_to(connection, requests):
        found.setdefault(request, {}).setdefault(item, []).append((response, when))
    return found
