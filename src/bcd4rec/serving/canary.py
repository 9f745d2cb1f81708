"""A canary at work: it gives sessions to arms, counts them when their time is over, and acts on what that shows.

Every server of a database runs one of these. They share a row of the database, which one of them changes at a time, so
that all of them know the same, each session counts once and there is one decision.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.serving.canary_state import EXTERNAL, NEW, CanarySettings, CanaryState
from bcd4rec.serving.decision_hook import Hook, HookFailed
from bcd4rec.serving.guard import Answered, Guard
from bcd4rec.serving.storage import canaries
from bcd4rec.serving.storage.database import Connection
from bcd4rec.serving.storage.store import BufferFull, Store, StoreClosed
from bcd4rec.serving.storage.writer import words

LOOK_SECONDS = 1.0
PATIENCE = 5.0  # seconds to wait for another process's lock
BATCH = 200  # sessions of a transaction
REMEMBERED = 100_000  # sessions whose beginning is known without asking
LEASE_US = 60_000_000  # in which a server that tells the decision is not helped by another
TRIES = 5

log = logging.getLogger(__name__)


class LiveCanary:
    def __init__(
        self,
        settings: CanarySettings,
        store: Store,
        rewards: Mapping[str, float],
        act: bool = True,
        hook: Hook | None = None,
    ):
        self.settings, self.act, self.guard = settings, act, Guard()
        self._store, self._rewards, self._hook = store, dict(rewards), hook
        self._began: OrderedDict[str, int] = OrderedDict()
        self._alarm: str | None = None
        self._closing, self._wake = threading.Event(), threading.Event()
        self._connection: Connection | None = None
        self._away = False
        self.state = CanaryState.begin(settings, store.now_us())
        self._replace_others()
        self._thread = threading.Thread(target=self._run, name="bcd4rec canary", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    # ---- which arm

    @property
    def external(self) -> bool:
        return self.settings.old == EXTERNAL

    @property
    def winner(self) -> bool | None:
        """Whether all sessions go to the new arm (True) or to the old one (False), once that is decided."""
        if not self.act:
            return None
        if self.state.ended is not None:
            return self.state.ended.decision == "promote"
        return False if self._alarm is not None else None

    @property
    def share(self) -> float:
        """Of the sessions that begin now, those of the new arm."""
        if self.winner is not None:
            return float(self.winner)
        return self.state.share_at(self._store.now_us()) or 0.0

    def began(self, session_id: str) -> int | None:
        return self._began.get(session_id)

    def remember(self, session_id: str, began_us: int) -> None:
        self._began[session_id] = began_us
        if len(self._began) > REMEMBERED:
            with suppress(KeyError):
                self._began.popitem(last=False)

    def in_new(self, session_id: str, began_us: int) -> bool:
        """The arm of a session stays, whatever happens to the share; the decision alone moves it."""
        winner = self.winner
        return self.state.in_new(self.settings, session_id, began_us) if winner is None else winner

    @contextmanager
    def guarding(self, in_new: bool) -> Iterator[list[Any]]:
        """Watch over one answer; who answers puts the items into the list."""
        began = time.perf_counter()
        items: list[Any] = []
        try:
            yield items
        except (InputError, BufferFull, StoreClosed):
            raise  # not the policy's fault
        except Exception:
            self._note(in_new, Answered(time.perf_counter() - began, failed=True, empty=False))
            raise
        self._note(in_new, Answered(time.perf_counter() - began, failed=False, empty=not items))

    def _note(self, in_new: bool, answered: Answered) -> None:
        self.guard.note(in_new, answered)
        if answered.fine or not in_new or self._alarm is not None or self.state.ended is not None:
            return
        self._alarm = self.guard.alarm()
        if self._alarm is not None:
            self._wake.set()

    # ---- counting

    def _replace_others(self) -> None:
        """Other canaries of this database end with the beginning of this one; where it began before, it goes on."""
        connection = self._connected()
        for other in canaries.running_others(connection, self.settings.id):
            with self._changing(connection, other) as state:
                sentence = "Stopped without a decision: another canary was begun."
                state.end("stop", "replaced", sentence, self._store.now_us())
        self.state = CanaryState.from_json(canaries.read(connection, self.settings.id))

    @contextmanager
    def _changing(self, connection: Connection, name: str) -> Iterator[CanaryState]:
        with canaries.changing(connection, name) as stored:
            state = CanaryState.from_json(stored)
            yield state
            stored.update(state.to_json())

    def _connected(self) -> Connection:
        """With the canary's row in it: a database that was lost and begun anew gets what is known here."""
        if self._connection is None:
            connection = self._store.connect(PATIENCE)
            try:
                canaries.create(connection)
                settings, state = self.settings.model_dump_json(), self.state.to_json()
                canaries.begin(connection, self.settings.id, self.state.schedule[0].time_us, settings, state)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _run(self) -> None:
        pause = min(LOOK_SECONDS, self.settings.session_minutes * 60 / 4)
        while not self._closing.is_set():
            try:
                self.look()
                self._away = False
            except Exception as error:
                if not self._away:
                    log.warning("The canary could not be looked at: %s", words(error))
                self._away = True
                self._disconnect()
            self._wake.wait(pause)
            if not self._closing.is_set():
                self._wake.clear()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def look(self) -> None:
        """Count what is over, and tell what was decided. Looking more often changes nothing."""
        connection = self._connected()
        connection.ping()
        now = self._store.now_us()
        state = CanaryState.from_json(canaries.read(connection, self.settings.id))
        while state.ended is None and not self._closing.is_set():
            sessions = canaries.watched_sessions(
                connection, state.position, now - self.settings.window_us, self.settings.window_us, self._rewards, BATCH
            )
            if not sessions and self._alarm is None:
                break
            before = state.position
            with self._changing(connection, self.settings.id) as state:
                if self._alarm is not None:
                    state.end("roll back", "guard", f"Rolled back by the guard: {self._alarm}.", now)
                elif state.position == before:  # else another server was faster
                    state.add(self.settings, sessions, now)
            self._take(state)
        self._take(state)
        if state.ended is not None and not state.told and self._hook is not None:
            self._tell(connection, self._hook)

    def _take(self, state: CanaryState) -> None:
        ended = state.ended
        if ended is not None and self.state.ended is None:
            log.warning("Canary %s: %s", self.settings.id, ended.sentence)
        self.state = state

    def _tell(self, connection: Connection, hook: Hook) -> None:
        """One server at a time, and again where the one before did not come to its end."""
        now = self._store.now_us()
        with self._changing(connection, self.settings.id) as state:
            if state.told or state.telling_until_us > now:
                return
            state.tries += 1
            state.telling_until_us = now + LEASE_US
        try:
            hook(self.described())
            done = True
        except HookFailed as error:
            log.warning("--on-decision failed: %s", error)
            done = False
        with self._changing(connection, self.settings.id) as state:
            state.told = done or state.tries >= TRIES
            state.telling_until_us = 0
        self._take(state)

    # ---- for people and programs

    def described(self) -> dict[str, Any]:
        """What is known, as `/v1/experiments` and `--on-decision` tell it."""
        state, settings = self.state, self.settings
        canary, ended = state.canary, state.ended
        low, high = canary.interval
        means = dict(zip((settings.old_arm, NEW), canary.means, strict=True))
        return {
            "id": settings.id,
            "old": settings.old,
            "new": settings.new,
            "decision": ended.decision if ended is not None else None,
            "reason": ended.reason if ended is not None else None,
            "sentence": ended.sentence if ended is not None else canary.sentence(),
            "decided_us": ended.time_us if ended is not None else None,
            "acts": self.act,
            "began_us": state.schedule[0].time_us,
            "share": self.share,
            "shares": list(settings.shares),
            "sessions": {settings.old_arm: canary.sequence.old, NEW: canary.sequence.new},
            "left_out": state.left_out,
            "means": means,
            "low": low,
            "high": high,
            "margin": settings.rule.margin,
            "error": settings.rule.error,
            "most": settings.rule.most,
            "session_minutes": settings.session_minutes,
            "reward": settings.reward.model_dump(),
            "history": [point._asdict() for point in state.history],
        }
