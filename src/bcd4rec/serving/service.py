"""What the server does, apart from HTTP: sessions in, slates out, everything noted down."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from bcd4rec.data.states import FloatArray, States
from bcd4rec.data.vocabulary import ItemId
from bcd4rec.errors import InputError
from bcd4rec.policies.ranking import Exploration
from bcd4rec.seeding import generator
from bcd4rec.serving.arms import Arm, Arms
from bcd4rec.serving.messages import Event, FeedbackRequest, RecommendRequest
from bcd4rec.serving.metrics import Metrics
from bcd4rec.serving.recommending import GREEDY, Slate, read_history
from bcd4rec.serving.session_cache import SessionCache
from bcd4rec.serving.storage.records import ORGANIC, Feedback, Impression, Record
from bcd4rec.serving.storage.store import BufferFull, Store, StoreClosed

PATIENCE = 0.25  # seconds to wait for the database; then feedback is only "accepted", and sessions are as in memory
COUNTED = 100_000  # sessions whose requests are counted
Events = list[tuple[ItemId, str | None]]
T = TypeVar("T")


class Service:
    def __init__(
        self,
        arms: Arms,
        store: Store,
        exploration: Exploration = GREEDY,
        seed: int = 0,
        local: bool = True,
        new_items: bool = False,
    ):
        """`local`: the database is this process's own, and reading a session from it needs no thread.

        `new_items`: what sessions bring along is stored also where no policy knows the item, for the next to learn.
        """
        self.arms, self.store, self.exploration, self.seed = arms, store, exploration, seed
        self.metrics = Metrics(store.arms, store.status)
        self._local, self._new_items, self._cache = local, new_items, SessionCache()
        self._secret, self._count = os.urandom(16), 0
        self._steps: OrderedDict[str, int] = OrderedDict()

    def reload(self, name: str | None) -> None:
        """Read policies anew; what they say about rewards holds for sessions from then on."""
        self.arms.reload(name)
        self.store.rewards = self.arms.rewards

    # ---- recommending

    def _new_id(self) -> str:
        """Nobody can guess the next one. The system's random numbers would let other threads go first, each time."""
        self._count += 1
        return hashlib.blake2b(self._count.to_bytes(8, "little"), key=self._secret, digest_size=16).hexdigest()

    async def recommend(self, asked: RecommendRequest) -> dict[str, Any]:
        request_id = self._new_id()
        session_id = asked.session_id or request_id
        arm = self.arms.of(session_id)
        events, opening = await self._events(asked, session_id)
        events = self._understood(arm, events)
        question = _question(asked, arm, events)
        batcher = arm.recommender.batcher
        if batcher is None or asked.explain:
            answer = await asyncio.to_thread(self._answer, asked, question, arm, request_id)
        else:
            known = await batcher.scores(question.states) if question.candidates is None else None
            answer = self._answer(asked, question, arm, request_id, known)
        if asked.record:
            self._note(arm, request_id, session_id, events if opening else [], answer)
        return {"request_id": request_id, "session_id": session_id, "policy": arm.version, "arm": arm.name} | answer

    async def _events(self, asked: RecommendRequest, session_id: str) -> tuple[Events, bool]:
        """What happened in the session, and whether the server hears of it for the first time."""
        if asked.session is None:
            return ([*await self._known(session_id)] if asked.session_id is not None else []), False
        given: Events = [(one.item, one.response) if isinstance(one, Event) else (one, None) for one in asked.session]
        self._refuse_unknown_responses(given)
        if asked.session_id is None:
            return given, True
        return given, session_id not in self._steps and not await self._known(session_id)

    async def _known(self, session_id: str) -> list[tuple[str, str]]:
        if not self._local:
            return await self._read(self.store.session, session_id)
        if self._cache.covers(session_id):
            return self.store.session(session_id, in_memory=True)
        known, asked = self.store.look_up(session_id)
        if asked and not known:
            self._cache.begin(session_id)
        return known

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
        known: FloatArray | None = None,
    ) -> dict[str, Any]:
        recommender, states, gone = arm.recommender, question.states, question.gone
        explores = self.exploration.kind != "none" and asked.explore is not False
        luck = generator(self.seed, "explore", request_id) if explores else None
        slate = recommender.slate(states, asked.k, gone, question.candidates, self.exploration, luck, known)
        found = self._items(arm, slate)
        answer: dict[str, Any] = {"items": found, "unknown": list(dict.fromkeys(question.unknown))}
        if question.unknown:
            self.metrics.unknown.inc(len(question.unknown))
        if asked.explain:
            details, answer["beside"] = recommender.explain(states, slate, gone, asked.k)
            for one, more in zip(found, details, strict=True):
                one |= more
        return answer

    def _items(self, arm: Arm, slate: Slate) -> list[dict[str, Any]]:
        vocabulary = arm.recommender.served.vocabulary
        columns = (slate.items.tolist(), slate.values.tolist(), slate.propensities.tolist())
        return [
            {"item": vocabulary.id(item), "value": value, "propensity": propensity}
            for item, value, propensity in zip(*columns, strict=True)
        ]

    def _refuse_unknown_responses(self, events: Events) -> None:
        names = self.arms.rewards
        for _, response in events:
            if response is not None and response not in names:
                raise InputError(f"response: found {response!r}, expected one of {', '.join(names)}.")

    def _understood(self, arm: Arm, events: Events) -> Events:
        """Without responses that this arm's policy does not know: another one may have asked for them."""
        names = arm.recommender.served.responses.rewards
        known = [event for event in events if event[1] is None or event[1] in names]
        if len(known) < len(events):
            self.metrics.unknown_responses.inc(len(events) - len(known))
        return known

    def _note(self, arm: Arm, request_id: str, session_id: str, opening: Events, answer: dict[str, Any]) -> None:
        """Keep what was shown. A session that began elsewhere is kept as it was given, without propensities."""
        self.metrics.recommended(arm.version, arm.name)
        items = [str(one["item"]) for one in answer["items"]]
        if not items:
            return
        now = self.store.now_us()
        records: list[Record] = []
        opening = [event for event in opening if self._may_store(event[0])]
        if opened := bool(opening) and session_id not in self._steps:  # another request may have been faster
            records += _opening(arm, request_id, session_id, opening, now - 1)
        step = self._step(session_id, opened)
        propensities = tuple(one["propensity"] for one in answer["items"])
        values = tuple(one["value"] for one in answer["items"])
        records.append(
            Impression(request_id, session_id, step, arm.version, arm.name, now, tuple(items), propensities, values)
        )
        self._cache.add_slate(request_id, len(records))
        try:
            self.store.submit(records)
        except (BufferFull, StoreClosed):
            self.metrics.unlogged.inc()

    def _may_store(self, item: ItemId) -> bool:
        """Whoever may ask could otherwise make items up, and the next policy would recommend them."""
        return self._new_items or any(
            arm.recommender.served.vocabulary.index(item) is not None for arm in self.arms.all
        )

    def _step(self, session_id: str, opened: bool) -> int:
        step = self._steps.pop(session_id, int(opened))
        self._steps[session_id] = step + 1
        if len(self._steps) > COUNTED:
            self._steps.popitem(last=False)
        return step

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

    async def _stored(self, records: list[Feedback]) -> bool:
        if not records:
            return True
        future = asyncio.wrap_future(self.store.submit(records))
        done, _ = await asyncio.wait([future], timeout=PATIENCE)
        if not done:
            future.add_done_callback(_look)
            return False
        future.result()
        return True


@dataclass(frozen=True)
class _Question:
    """A request in the policy's numbers."""

    states: States
    gone: list[int]
    candidates: list[int] | None
    unknown: list[ItemId]


def _question(asked: RecommendRequest, arm: Arm, events: Events) -> _Question:
    served = arm.recommender.served
    history = read_history(served, events)
    excluded, strange = served.vocabulary.encode(asked.exclude)
    candidates, foreign = (None, []) if asked.candidates is None else served.vocabulary.encode(asked.candidates)
    gone, unknown = sorted({*history.liked, *excluded}), [*history.unknown, *strange, *foreign]
    return _Question(served.states(history.liked, history.skipped), gone, candidates, unknown)


def _look(future: "asyncio.Future[None]") -> None:
    """What failed later is in the store's status; nobody is left to be told."""
    if not future.cancelled():
        future.exception()


def _opening(arm: Arm, request_id: str, session_id: str, events: Events, when: int) -> list[Record]:
    """One slate that nobody chose, without propensities, and its responses in their order; repeats are kept once."""
    positive = arm.recommender.served.responses.positive[0]
    name, items = f"{request_id}-opening", tuple(dict.fromkeys(str(item) for item, _ in events))
    times = range(when - len(events), when)
    unknown, nothing = (None,) * len(items), (0.0,) * len(items)
    return [
        Impression(name, session_id, 0, ORGANIC, ORGANIC, times[0], items, unknown, nothing),
        *(
            Feedback(name, str(item), response or positive, time_us)
            for (item, response), time_us in zip(events, times, strict=True)
        ),
    ]
