"""The tables and every question that is asked of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.database import Connection, Marks, Row
from bcd4rec.serving.storage.records import ORGANIC, Feedback, Impression, Record

VERSION = 1
NOTHING: Marks = (0, 0)
SESSION_SLATES = 500  # of a session that does not end, the newest ones make its state
IMPRESSIONS = "bcd4rec_impressions"
FEEDBACK = "bcd4rec_feedback"
SHOWING = f"CASE WHEN policy <> '{ORGANIC}' THEN policy END"  # the beginning of a session may be nobody's
IMPRESSION_COLUMNS = (
    *("request_id", "session_id", "step", "policy", "arm", "time_us"),
    *("size", "items", "propensities", "item_values"),
)
encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
FEEDBACK_COLUMNS = ("request_id", "item", "response", "time_us")
TABLES = (
    "CREATE TABLE IF NOT EXISTS bcd4rec_storage (version INTEGER PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS bcd4rec_impressions (
        request_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, step INTEGER NOT NULL, policy TEXT NOT NULL,
        arm TEXT NOT NULL, time_us BIGINT NOT NULL, size INTEGER NOT NULL, items TEXT NOT NULL,
        propensities TEXT NOT NULL, item_values TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS bcd4rec_feedback (
        request_id TEXT, item TEXT, response TEXT, time_us BIGINT NOT NULL,
        PRIMARY KEY (request_id, item, response))""",
    "CREATE INDEX IF NOT EXISTS bcd4rec_impressions_session ON bcd4rec_impressions (session_id, time_us)",
    "CREATE INDEX IF NOT EXISTS bcd4rec_impressions_time ON bcd4rec_impressions (time_us)",
    "CREATE INDEX IF NOT EXISTS bcd4rec_feedback_time ON bcd4rec_feedback (time_us)",
)


@dataclass(frozen=True)
class Selection:
    """Whole sessions: those that began from `since` on and before `until`, and that `policy` alone served."""

    since_us: int | None = None
    until_us: int | None = None
    policy: str | None = None

    @property
    def where(self) -> str:
        parts = {
            "MIN(time_us) >= ?": self.since_us,
            "MIN(time_us) < ?": self.until_us,
            f"MIN({SHOWING}) = ? AND MIN({SHOWING}) = MAX({SHOWING})": self.policy,
        }
        having = " AND ".join(condition for condition, value in parts.items() if value is not None)
        sessions = f"SELECT session_id FROM {IMPRESSIONS} GROUP BY session_id HAVING {having}"  # noqa: S608 (our names)
        return f"WHERE i.session_id IN ({sessions})" if having else ""

    @property
    def values(self) -> list[int | str]:
        return [value for value in (self.since_us, self.until_us, self.policy) if value is not None]


def create_tables(connection: Connection) -> None:
    with connection.transaction():
        connection.lock_tables()
        for statement in TABLES:
            connection.rows(statement)
        connection.complete_tables()
        if not connection.rows("SELECT version FROM bcd4rec_storage"):
            connection.insert("bcd4rec_storage", ["version"], [(VERSION,)])
        connection.rows("UPDATE bcd4rec_storage SET version = version")  # fails now where nothing may be written
    check_version(connection)


def check_version(connection: Connection) -> None:
    found = ", ".join(str(version) for (version,) in connection.rows("SELECT version FROM bcd4rec_storage"))
    if found != str(VERSION):
        raise InputError(
            f"The database has tables of version {found}, expected {VERSION}; use the bcd4rec that made it."
        )


def write(connection: Connection, records: Sequence[Record]) -> None:
    """All records in one transaction; what is there already stays as it is."""
    impressions = [_impression_row(one) for one in records if isinstance(one, Impression)]
    feedback = [astuple(one) for one in records if isinstance(one, Feedback)]
    with connection.transaction():
        if impressions:
            connection.insert(IMPRESSIONS, IMPRESSION_COLUMNS, impressions)
        if feedback:
            connection.insert(FEEDBACK, FEEDBACK_COLUMNS, feedback)


def _impression_row(one: Impression) -> Row:
    lists = map(encode, (one.items, one.propensities, one.values))
    return one.request_id, one.session_id, one.step, one.policy, one.arm, one.time_us, len(one.items), *lists


def slates_of(connection: Connection, session_id: str) -> list[Row]:
    """(request_id, step, time_us, items, arm) of the session's newest slates."""
    return connection.rows(
        "SELECT request_id, step, time_us, items, arm FROM bcd4rec_impressions "
        "WHERE session_id = ? ORDER BY time_us DESC LIMIT ?",
        session_id,
        SESSION_SLATES,
    )


def items_of(connection: Connection, requests: Sequence[str]) -> list[Row]:
    """(request_id, items) of these slates, as far as there are such."""
    marks = ", ".join("?" * len(requests))
    sql = f"SELECT request_id, items FROM {IMPRESSIONS} WHERE request_id IN ({marks})"  # noqa: S608 (our names)
    return connection.rows(sql, *requests)


def feedback_to(connection: Connection, requests: Sequence[str]) -> list[Row]:
    """(request_id, item, response, time_us); a join would do, but without statistics PostgreSQL reads all for it."""
    rows: list[Row] = []
    for first in range(0, len(requests), SESSION_SLATES):
        part = requests[first : first + SESSION_SLATES]
        marks = ", ".join("?" * len(part))
        sql = f"SELECT request_id, item, response, time_us FROM {FEEDBACK} WHERE request_id IN ({marks})"  # noqa: S608
        rows += connection.rows(sql, *part)
    return rows


def new_counts(connection: Connection, seen: Marks, marks: Marks) -> tuple[list[Row], list[Row]]:
    """What records from the marks `seen` up to `marks` add to sums over sessions: Σ n, Σ n², Σ y, Σ y², Σ y·n.

    (policy, arm, sessions, requests, n, n²) and (policy, arm, response, y, y², y·n).
    """
    (slates, answers), (slates_now, answers_now) = map(_integers, (seen, marks))
    i, f = f"i.{connection.mark}", f"f.{connection.mark}"
    some = f"""AND i.session_id IN (SELECT i.session_id FROM {IMPRESSIONS} i
        WHERE {i} >= {slates} AND {i} < {slates_now}
        UNION SELECT i.session_id FROM {FEEDBACK} f JOIN {IMPRESSIONS} i ON i.request_id = f.request_id
        WHERE {f} >= {answers} AND {f} < {answers_now})"""  # noqa: S608 (our names)
    touched = "" if seen == NOTHING else some
    old = f"CASE WHEN {i} < {slates} THEN 1 ELSE 0 END"
    shown = f"""SELECT i.policy, i.arm, i.session_id, SUM({old}) AS r0, COUNT(*) AS r1, SUM({old} * i.size) AS n0,
        SUM(i.size) AS n1 FROM {IMPRESSIONS} i WHERE {i} < {slates_now} {touched}
        GROUP BY i.policy, i.arm, i.session_id"""  # noqa: S608 (our names)
    answered = f"""SELECT i.policy, i.arm, i.session_id, f.response, COUNT(*) AS y1,
        SUM(CASE WHEN {i} < {slates} AND {f} < {answers} THEN 1 ELSE 0 END) AS y0
        FROM {IMPRESSIONS} i JOIN {FEEDBACK} f ON f.request_id = i.request_id
        WHERE {i} < {slates_now} AND {f} < {answers_now} AND {connection.shown} {touched}
        GROUP BY i.policy, i.arm, i.session_id, f.response"""  # noqa: S608 (our names)
    arms = connection.rows(
        f"""SELECT policy, arm, SUM(CASE WHEN r0 = 0 THEN 1 ELSE 0 END), SUM(r1 - r0), SUM(n1 - n0),
        SUM(n1 * n1 - n0 * n0) FROM ({shown}) AS s GROUP BY policy, arm"""  # noqa: S608 (our names)
    )
    responses = connection.rows(
        f"""SELECT a.policy, a.arm, a.response, SUM(y1 - y0), SUM(y1 * y1 - y0 * y0), SUM(y1 * n1 - y0 * n0)
        FROM ({answered}) AS a
        JOIN ({shown}) AS s ON s.policy = a.policy AND s.arm = a.arm AND s.session_id = a.session_id
        GROUP BY a.policy, a.arm, a.response"""  # noqa: S608 (our names)
    )
    return arms, responses


def _integers(marks: Marks) -> Marks:
    """They stand in the SQL itself, often: nothing but numbers may."""
    return int(marks[0]), int(marks[1])


def newest(connection: Connection) -> int | None:
    """When the last slate was shown, in microseconds."""
    found: int | None = connection.rows("SELECT MAX(time_us) FROM bcd4rec_impressions")[0][0]
    return found


def oldest(connection: Connection) -> int | None:
    """The time of the first record of all."""
    sql = "SELECT MIN(time_us) FROM "
    times = [connection.rows(sql + table)[0][0] for table in (IMPRESSIONS, FEEDBACK)]
    return min((time for time in times if time is not None), default=None)


def prune(connection: Connection, before_us: int, limit: int) -> int:
    """Delete some of what is older: `limit` slates with their feedback, `limit` other feedback. How many it found."""
    slates = "SELECT request_id FROM bcd4rec_impressions WHERE time_us < ? ORDER BY time_us, request_id LIMIT ?"
    answers = "SELECT request_id, item, response FROM bcd4rec_feedback WHERE time_us < ? ORDER BY time_us LIMIT ?"
    found = 0
    with connection.transaction():
        for table, key, old in (
            (FEEDBACK, "request_id", slates),
            (IMPRESSIONS, "request_id", slates),
            (FEEDBACK, "(request_id, item, response)", answers),
        ):
            found += connection.rows(f"SELECT COUNT(*) FROM ({old}) AS old", before_us, limit)[0][0]  # noqa: S608
            connection.rows(f"DELETE FROM {table} WHERE {key} IN ({old})", before_us, limit)  # noqa: S608 (our names)
    return found


def stream_slates(connection: Connection, selection: Selection) -> Iterator[Row]:
    """Slates in order of time, one row for each feedback, or one with nulls:
    request_id, session_id, step, policy, arm, time_us, items, propensities, item, response, time of the response.
    """
    return connection.stream(
        f"""SELECT i.request_id, i.session_id, i.step, i.policy, i.arm, i.time_us, i.items, i.propensities,
        f.item, f.response, f.time_us FROM bcd4rec_impressions i
        LEFT JOIN bcd4rec_feedback f ON f.request_id = i.request_id {selection.where}
        ORDER BY i.time_us, i.step, i.request_id""",  # noqa: S608 (our names)
        *selection.values,
    )


def size_of(connection: Connection, selection: Selection) -> tuple[int, int]:
    """How many slates, and how many sessions."""
    sql = f"SELECT COUNT(*), COUNT(DISTINCT session_id) FROM {IMPRESSIONS} i {selection.where}"  # noqa: S608 (our names)
    slates, sessions = connection.rows(sql, *selection.values)[0]
    return int(slates), int(sessions)


def feedback_without_slate(connection: Connection) -> int:
    return int(
        connection.rows(
            """SELECT COUNT(*) FROM bcd4rec_feedback f WHERE NOT EXISTS
            (SELECT 1 FROM bcd4rec_impressions i WHERE i.request_id = f.request_id)"""
        )[0][0]
    )


def sessions_of_several_policies(connection: Connection, policy: str) -> int:
    """Sessions that this policy and another one served."""
    return int(
        connection.rows(
            f"""SELECT COUNT(*) FROM (SELECT session_id FROM bcd4rec_impressions GROUP BY session_id
            HAVING MIN({SHOWING}) <> MAX({SHOWING}) AND SUM(CASE WHEN policy = ? THEN 1 ELSE 0 END) > 0)
            AS several""",  # noqa: S608 (our names)
            policy,
        )[0][0]
    )
