"""What is said over HTTP: requests are strict, an unknown key is an error, and every list has a longest length."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, StringConstraints

from bcd4rec.errors import InputError

LONGEST_SESSION, LONGEST_LIST, LARGEST_SLATE, LARGEST_BATCH = 1_000, 10_000, 200, 1_000
Text = Annotated[StrictStr, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Item = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | Text


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Event(Message):
    """An item of the session with what the user did."""

    item: Item
    response: Text | None = None
    """A response of the policy's data set, e.g. skip, click, buy; without one the item was liked."""


class RecommendRequest(Message):
    """A session, given as a list or kept by the server under an id; both may be missing."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"session": [17, {"item": 4, "response": "skip"}], "k": 3}]}
    )

    session: list[Item | Event] | None = Field(default=None, max_length=LONGEST_SESSION)
    """What the user saw so far, oldest first: items that were liked, or items with responses."""
    session_id: Text | None = None
    """With an id the server remembers the responses it was told; the id also fixes the arm of an A/B test."""
    k: Annotated[StrictInt, Field(ge=1, le=LARGEST_SLATE)] = 3
    """How many items."""
    candidates: list[Item] | None = Field(default=None, max_length=LONGEST_LIST)
    """Only these may be recommended."""
    exclude: list[Item] = Field(default_factory=list, max_length=LONGEST_LIST)
    """None of these may be recommended. Items liked in this session never are."""
    explore: StrictBool | None = None
    """False turns exploration off for this request; it never happens unless the server was started with it."""
    explain: StrictBool = False
    """Also tell quantiles of the return, the likelihood under the behaviour model, and what others would show."""
    record: StrictBool = True
    """False: only trying; the request is neither stored nor counted among the policy's impressions."""


class Explained(Message):
    item: int | str
    value: float
    propensity: float
    quantiles: dict[str, float] | None = None
    likelihood: float | None = None


class Beside(Message):
    """What others would show to the same session."""

    behaviour: list[int | str] | None = None
    popular: list[int | str] | None = None


class RecommendResponse(Message):
    request_id: str
    session_id: str
    policy: str
    """The policy's version."""
    arm: str
    items: list[Explained]
    unknown: list[int | str]
    """Items of the request that the policy does not know; they played no part."""
    beside: Beside | None = None


class ImpressionsRequest(Message):
    """A slate that another system showed, in a session whose arm is `external`. Saying the same again changes nothing
    where it has a request_id."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"session_id": "s1", "items": [17, 4], "request_id": "5f0c"}]}
    )

    session_id: Text
    items: list[Item] = Field(min_length=1, max_length=LARGEST_SLATE)
    """What was shown, each item once."""
    request_id: Text | None = None
    """Of the answer that said `external`, or one of your own; without one the server makes one for the feedback."""
    positions: list[StrictInt] | None = Field(default=None, max_length=LARGEST_SLATE)
    """The place of each item, counted from 0; without them the items are in order."""
    propensities: list[Annotated[float, Field(gt=0, le=1)] | None] | None = Field(
        default=None, max_length=LARGEST_SLATE
    )
    """The probability of each item at its place, given those above it, where it is known."""

    def in_order(self) -> list[tuple[str, float | None]]:
        """Items with propensities, from the first place to the last."""
        number = len(self.items)
        places = self.positions if self.positions is not None else list(range(number))
        chances = self.propensities if self.propensities is not None else [None] * number
        if sorted(places) != list(range(number)):
            raise InputError(f"positions: found {places[:10]}, expected each number from 0 to {number - 1} once.")
        if len(chances) != number:
            raise InputError(f"propensities: found {len(chances)}, expected one for each of {number} items.")
        if len({str(item) for item in self.items}) < number:
            raise InputError("items: found one twice, expected each item once.")
        in_order = sorted(zip(places, self.items, chances, strict=True), key=lambda one: one[0])
        return [(str(item), chance) for _, item, chance in in_order]


class ImpressionsResponse(Message):
    request_id: str
    """For the feedback."""
    session_id: str
    arm: str
    accepted: int
    stored: bool
    """As for feedback."""


class Answer(Message):
    item: Item
    response: Text
    request_id: Text | None = None
    """Where it is not that of the whole message."""


class FeedbackRequest(Message):
    """Responses to recommended items. Saying the same again changes nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"request_id": "5f0c", "responses": [{"item": 17, "response": "click"}]}],
        }
    )

    request_id: Text | None = None
    responses: list[Answer] = Field(min_length=1, max_length=LARGEST_BATCH)


class Unmatched(Message):
    request_id: str
    item: int | str
    reason: Literal["no slate", "not shown"]
    """Nothing was recommended under this request_id (yet), which is kept; or not this item, which is not."""


class FeedbackResponse(Message):
    accepted: int
    unmatched: list[Unmatched]
    """The responses that belong to nothing that was recommended."""
    stored: bool
    """True (status 200): on disk. False (status 202): the database is slow or away; the server will keep trying."""


class Storage(Message):
    connected: bool
    pending: int
    dropped: int
    last_error: str | None
    last_commit_us: int | None


class Health(Message):
    status: Literal["ok", "degraded"]
    storage: Storage
    uptime_seconds: float


class Ready(Message):
    ready: bool


class PolicyInfo(Message):
    arm: str
    version: str
    method: str
    items: int
    share: float
    responses: dict[str, float]
    positive: list[str]
    memory: dict[str, Any]
    """How many liked and skipped items it remembers, and what an unanswered item counts as."""
    rule: dict[str, Any]
    """How it makes slates: diversity, what follows a skipped slate, what is not shown again, exploration."""
    retrieval: dict[str, float] | None
    """Of an approximate search: how many items it retrieves, and its measured recall."""


class Policies(Message):
    policies: list[PolicyInfo]


class ReloadRequest(Message):
    arm: Text | None = None
    """Which arm; without one, all of them."""


class Rate(Message):
    value: float
    low: float
    high: float


class ArmRates(Message):
    policy: str
    arm: str
    serving: bool
    """Whether this version answers requests now."""
    sessions: int
    requests: int
    impressions: int
    responses: dict[str, int]
    rates: dict[str, Rate]
    """Share of the shown items with each response, with a 95 % interval over sessions, not over items."""
    per_request: dict[str, float]


class CanaryPoint(Message):
    sessions: int
    low: float
    high: float
    difference: float | None
    time_us: int


class CanaryInfo(Message):
    """A canary: what is known of new − old in units of the session's reward, and what was decided."""

    id: str
    old: str
    new: str
    decision: Literal["promote", "roll back", "stop"] | None
    reason: Literal["sessions", "guard", "replaced"] | None
    sentence: str
    """The same in words."""
    decided_us: int | None
    acts: bool
    """Whether the decision moves sessions, or is only told."""
    began_us: int
    share: float
    """Of the sessions that begin now, those of the new arm."""
    shares: list[float]
    sessions: dict[str, int]
    """How many were counted, by arm."""
    left_out: int
    means: dict[str, float | None]
    low: float
    high: float
    margin: float
    error: float
    most: int
    session_minutes: float
    reward: dict[str, Any]
    history: list[CanaryPoint]


class Experiments(Message):
    arms: list[ArmRates]
    canary: CanaryInfo | None = None


class Named(Message):
    item: int | str
    name: str
    picture: str | None = None


class Catalogue(Message):
    items: list[Named]
    total: int


class Problem(Message):
    """Every failure has this body: one sentence."""

    error: str
