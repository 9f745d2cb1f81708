"""What the server does, apart from HTTP: sessions in, slates out, everything noted down."""

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from bcd4rec.data.states import FloatArray
from bcd4rec.data.vocabulary import ItemId
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Sessions
from bcd4rec.policies.slates import Slates
from bcd4rec.seeding import generator
from bcd4rec.serving.arms import Arm, Arms
from bcd4rec.serving.canary import LiveCanary
from bcd4rec.serving.canary_state import EXTERNAL, NEW, OLD
from bcd4rec.serving.messages import Event, FeedbackRequest, ImpressionsRequest, RecommendRequest
from bcd4rec.serving.metrics import CanaryMetrics, Metrics
from bcd4rec.serving.session_cache import SessionCache
from bcd4rec.serving.storage.patience import PATIENCE
from bcd4rec.serving.storage.records import ORGANIC, Feedback, Impression, Record, weight
from bcd4rec.serving.storage.store import BufferFull, Store, StoreClosed, StoredSession

COUNTED = 100_000  # sessions whose requests are counted
Events = list[tuple[ItemId, str]]
T = TypeVar("T")


class Service:
    def __init__(
        self,
        arms: Arms,
        store: Store,
        seed: int = 0,
        local: bool = True,
        new_items: bool = False,
        canary: LiveCanary | None = None,
        shared: bool = False,
        worker: int | None = None,
    ):
        """`local`: the database is this machine's own, and reading a session from it needs no thread.

        `new_items`: what sessions bring along is stored also where no policy knows the item, for the next to learn.
        `shared`: other processes answer the same sessions, and know of them what the database holds. So every session
        is read from there, and a slate is in there before it is answered. `worker`: the number of this one of several.
        """
        self.arms, self.store, self.seed, self.canary = arms, store, seed, canary
        self.metrics = Metrics(store.arms, store.status, worker)
        if canary is not None:
            self.metrics.registry.register(CanaryMetrics(canary.described))
        self._local, self._new_items, self._shared, self._cache = local, new_items, shared, SessionCache()
        self._secret, self._count = os.urandom(16), 0
        self._steps: OrderedDict[str, int] = OrderedDict()
        self._loading = threading.Lock()

    def reload(self, name: str | None) -> None:
        with self._loading:
            self.take(self.prepare(name))

    def prepare(self, name: str | None) -> tuple[Arm, ...]:
        """Read policies anew, while the old ones answer."""
        if self.canary is not None and self.canary.state.ended is None:
            raise InputError("a canary compares these two versions; start the server with another one to end it.")
        return self.arms.prepare(name)

    def take(self, fresh: tuple[Arm, ...]) -> None:
        """These policies answer from now on; what they say about rewards holds for sessions from then on."""
        self.arms.take(fresh)
        self.store.rewards = self.arms.rewards

    # ---- recommending

    def _new_id(self) -> str:
        """Nobody can guess the next one. The system's random numbers would let other threads go first, each time."""
        self._count += 1
        return hashlib.blake2b(self._count.to_bytes(8, "little"), key=self._secret, digest_size=16).hexdigest()

    async def recommend(self, asked: RecommendRequest) -> dict[str, Any]:
        request_id = self._new_id()
        session_id = asked.session_id or request_id
        if self.canary is None:
            return (await self._recommend(asked, request_id, session_id, self.arms.of(session_id)))[0]
        in_new = await self._in_new(self.canary, session_id, asked.session_id is None, asked.record)
        if self.canary.external and not in_new:
            self.metrics.recommended(EXTERNAL, EXTERNAL)
            nothing = {"policy": EXTERNAL, "arm": EXTERNAL, "items": [], "unknown": []}
            return {"request_id": request_id, "session_id": session_id} | nothing
        arm = self.arms.named(NEW if in_new else OLD)
        if not asked.record or asked.explain:  # somebody looks at the policy, and may take long
            return (await self._recommend(asked, request_id, session_id, arm))[0]
        with self.canary.guarding(in_new) as items:
            answer, possible = await self._recommend(asked, request_id, session_id, arm)
            items += answer["items"] if possible else [None]
        return answer

    async def _in_new(self, canary: LiveCanary, session_id: str, fresh: bool, remember: bool) -> bool:
        """Whether the new policy answers this session; `fresh`: nobody else can have heard of it."""
        began = canary.began(session_id)
        if began is None:
            stored = None if fresh else await self._read(self.store.began, session_id)
            began = self.store.now_us() if stored is None else stored
            if remember:
                canary.remember(session_id, began)
        return canary.in_new(session_id, began)

    async def _recommend(
        self, asked: RecommendRequest, request_id: str, session_id: str, arm: Arm
    ) -> tuple[dict[str, Any], bool]:
        """The answer, and whether there was anything to recommend."""
        given = self._given(asked)
        known = StoredSession([], [])
        if asked.session_id is not None and (given is None or self._shared or session_id not in self._steps):
            known = await self._known(session_id)
        question = _question(asked, arm, known, given)
        batcher = arm.recommender.batcher
        if batcher is None or asked.explain:
            answer = await asyncio.to_thread(self._answer, asked, question, arm, request_id)
        else:
            scores = await batcher.scores(question.sessions.states) if question.candidates is None else None
            answer = self._answer(asked, question, arm, request_id, scores)
        if asked.record:
            opening = given if given and not known.known else []
            noted = self._note(arm, request_id, session_id, opening, known.steps, answer)
            if noted is not None and self._shared and self.store.status().connected:
                await _within_patience(noted)
        about = {"request_id": request_id, "session_id": session_id, "policy": arm.version, "arm": arm.name}
        return about | answer, bool(answer["items"]) or self._possible(asked, question, arm)

    def _possible(self, asked: RecommendRequest, question: "_Question", arm: Arm) -> bool:
        """Whether a client left something to recommend; where it did not, an empty slate is no failure of the policy.

        What another arm knows, and this one does not, was left to both.
        """
        gone = {*question.excluded, *question.sessions.unavailable[0].tolist()}
        if question.candidates is None:
            return arm.recommender.policy.n_items > len(gone)
        barred = {str(item) for item in asked.exclude}
        strange = [item for item in question.unknown if item in (asked.candidates or []) and str(item) not in barred]
        return bool(set(question.candidates) - gone) or any(map(self._in_catalogue, strange))

    async def _known(self, session_id: str) -> StoredSession:
        if not self._local:
            return await self._read(self.store.session, session_id)
        if self._cache.covers(session_id):
            return self.store.session(session_id, in_memory=True)
        session, asked = self.store.look_up(session_id)
        if asked and not session.known and not self._shared:
            self._cache.begin(session_id)
        return session

    async def _read(self, read: Callable[..., T], *values: Any) -> T:
        """From a database that may hang: then from memory."""
        if self._local:
            return read(*values)
        future = asyncio.wrap_future(self.store.in_thread(read, *values))
        done, _ = await asyncio.wait([future], timeout=PATIENCE)
        if done:
            return future.result()
        self.store.give_up_reading()
        return read(*values, in_memory=True)

    def _answer(
        self,
        asked: RecommendRequest,
        question: "_Question",
        arm: Arm,
        request_id: str,
        scores: FloatArray | None = None,
    ) -> dict[str, Any]:
        recommender = arm.recommender
        explores = recommender.policy.rule.exploration.kind != "none" and asked.explore is not False
        rng = generator(self.seed, "explore", request_id) if explores else None
        slate = recommender.slate(question.sessions, asked.k, rng, question.candidates, question.excluded, scores)
        found = self._items(arm, slate)
        answer: dict[str, Any] = {"items": found, "unknown": list(dict.fromkeys(question.unknown))}
        if question.unknown:
            self.metrics.unknown.inc(len(question.unknown))
        if question.unknown_responses:
            self.metrics.unknown_responses.inc(question.unknown_responses)
        if asked.explain:
            details, answer["beside"] = recommender.explain(question.sessions, slate, asked.k)
            for one, more in zip(found, details, strict=True):
                one |= more
        return answer

    def _items(self, arm: Arm, slate: Slates) -> list[dict[str, Any]]:
        vocabulary = arm.recommender.served.vocabulary
        columns = (part[0].tolist() for part in (slate.items, slate.values, slate.propensities))
        return [
            {"item": vocabulary.id(item), "value": value, "propensity": propensity}
            for item, value, propensity in zip(*columns, strict=True)
        ]

    def _given(self, asked: RecommendRequest) -> Events | None:
        """The session as the client tells it; a response that no policy knows is refused."""
        if asked.session is None:
            return None
        names, liked = self.arms.rewards, self.arms.all[0].recommender.served.responses.positive[0]
        events: Events = []
        for one in asked.session:
            item, response = (one.item, one.response or liked) if isinstance(one, Event) else (one, liked)
            if response not in names:
                raise InputError(f"response: found {response!r}, expected one of {', '.join(names)}.")
            events.append((item, response))
        return events

    def _note(
        self, arm: Arm, request_id: str, session_id: str, opening: Events, steps: int, answer: dict[str, Any]
    ) -> Future[None] | None:
        """Keep what was shown. A session that began elsewhere is kept as it was given, without propensities."""
        self.metrics.recommended(arm.version, arm.name)
        items = [str(one["item"]) for one in answer["items"]]
        if not items:
            return None
        now = self.store.now_us()
        records: list[Record] = []
        opening = [event for event in opening if self._may_store(event[0])]
        if opened := bool(opening) and session_id not in self._steps:  # another request may have been faster
            records += _opening(request_id, session_id, opening, now - 1)
        step = self._step(session_id, max(steps, int(opened)))
        propensities = tuple(one["propensity"] for one in answer["items"])
        values = tuple(one["value"] for one in answer["items"])
        records.append(
            Impression(request_id, session_id, step, arm.version, arm.name, now, tuple(items), propensities, values)
        )
        self._cache.add_slate(request_id, sum(map(weight, records)))
        try:
            return self.store.submit(records)
        except (BufferFull, StoreClosed):
            self.metrics.unlogged.inc()
            return None

    def _may_store(self, item: ItemId) -> bool:
        """Whoever may ask could otherwise make items up, and the next policy would recommend them."""
        return self._new_items or self._in_catalogue(item)

    def _in_catalogue(self, item: ItemId) -> bool:
        return any(arm.recommender.served.vocabulary.index(item) is not None for arm in self.arms.all)

    def _step(self, session_id: str, least: int) -> int:
        """The number of the next slate; a session may have begun before this process did."""
        step = max(self._steps.pop(session_id, 0), least)
        self._steps[session_id] = step + 1
        if len(self._steps) > COUNTED:
            self._steps.popitem(last=False)
        return step

    # ---- what another system showed

    async def impressions(self, told: ImpressionsRequest) -> tuple[bool, dict[str, Any]]:
        """Note a slate of the external arm; whether it is on disk, and the ids under which it is kept."""
        if self.canary is None or not self.canary.external:
            raise InputError("This server has no external arm; start it with --control external.")
        if await self._in_new(self.canary, told.session_id, False, True) and self.canary.winner is None:
            raise InputError(f"session_id: found a session of the arm {NEW}, expected one of the arm {EXTERNAL}.")
        if strange := [item for item in told.items if not self._may_store(item)]:
            self.metrics.unknown.inc(len(strange))
            raise InputError(
                f"items: found {strange[0]!r}, which no policy here knows; if your system shows other items, start the "
                "server with --new-items."
            )
        request_id, items = told.request_id or self._new_id(), told.in_order()
        answer = {"request_id": request_id, "session_id": told.session_id, "arm": EXTERNAL, "accepted": len(items)}
        before, _ = await self._read(self.store.slates, [request_id])
        if request_id in before and before[request_id] != tuple(item for item, _ in items):
            raise InputError("request_id: found one that was given other items before, expected a new one or the same.")
        known = await self._known(told.session_id)
        record = Impression(
            *(request_id, told.session_id, self._step(told.session_id, known.steps), EXTERNAL, EXTERNAL),
            self.store.now_us(),
            *(tuple(item for item, _ in items), tuple(propensity for _, propensity in items), (0.0,) * len(items)),
        )
        self._cache.add_slate(request_id, weight(record))
        return await self._stored([record]), answer

    # ---- feedback

    async def feedback(self, given: FeedbackRequest) -> tuple[bool, int, list[dict[str, Any]]]:
        """Whether the responses are on disk, or wait in memory for the database; how many; and which match no slate."""
        records = self._feedback_records(given)
        slates, certain = await self._read(self.store.slates, [record.request_id for record in records])
        taken, unmatched = [], []
        for record, answer in zip(records, given.responses, strict=True):
            items = slates.get(record.request_id)
            if items is None or record.item in items:
                taken.append(record)
            if (items is None and certain) or (items is not None and record.item not in items):
                reason = "no slate" if items is None else "not shown"
                unmatched.append({"request_id": record.request_id, "item": answer.item, "reason": reason})
        self.metrics.unmatched.inc(len(unmatched))
        self._cache.add_feedback(slates if certain else [record.request_id for record in records], len(taken))
        return await self._stored(taken), len(taken), unmatched

    def _feedback_records(self, given: FeedbackRequest) -> list[Feedback]:
        now, names, records = self.store.now_us(), self.arms.rewards, []
        for answer in given.responses:
            request_id = answer.request_id or given.request_id
            if request_id is None:
                raise InputError("responses: found one without a request_id, expected it there or beside the list.")
            if answer.response not in names:
                raise InputError(f"response: found {answer.response!r}, expected one of {', '.join(sorted(names))}.")
            records.append(Feedback(request_id, str(answer.item), answer.response, now))
        return records

    async def _stored(self, records: Sequence[Record]) -> bool:
        if not records:
            return True
        stored = await _within_patience(self.store.submit(records))
        if stored is not None:
            stored.result()
        return stored is not None


@dataclass(frozen=True)
class _Question:
    """A request in the policy's numbers."""

    sessions: Sessions  # one
    excluded: list[int]
    candidates: list[int] | None
    unknown: list[ItemId]
    unknown_responses: int


def _question(asked: RecommendRequest, arm: Arm, known: StoredSession, given: Events | None) -> _Question:
    """What a client tells of a session counts in place of what the server remembers of it."""
    policy = arm.recommender.policy
    reading = policy.read([], given) if given is not None else policy.read(known.slates, known.opening)
    excluded, strange = policy.vocabulary.encode(asked.exclude)
    candidates, foreign = (None, []) if asked.candidates is None else policy.vocabulary.encode(asked.candidates)
    return _Question(
        reading.sessions, excluded, candidates, [*reading.unknown, *strange, *foreign], reading.unknown_responses
    )


async def _within_patience(commit: Future[None]) -> "asyncio.Future[None] | None":
    """How a commit went; None while it may yet come."""
    future = asyncio.wrap_future(commit)
    future.add_done_callback(_look)
    done, _ = await asyncio.wait([future], timeout=PATIENCE)
    return future if done else None


def _look(future: "asyncio.Future[None]") -> None:
    """What failed later is in the store's status; nobody is left to be told."""
    if not future.cancelled():
        future.exception()


def _opening(request_id: str, session_id: str, events: Events, when: int) -> list[Record]:
    """One slate that nobody chose, without propensities, and its responses in their order; repeats are kept once."""
    name, items = f"{request_id}-opening", tuple(dict.fromkeys(str(item) for item, _ in events))
    times = range(when - len(events), when)
    unknown, nothing = (None,) * len(items), (0.0,) * len(items)
    return [
        Impression(name, session_id, 0, ORGANIC, ORGANIC, times[0], items, unknown, nothing),
        *(
            Feedback(name, str(item), response, time_us)
            for (item, response), time_us in zip(events, times, strict=True)
        ),
    ]
