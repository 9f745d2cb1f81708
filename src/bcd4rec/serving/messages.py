"""What is said over HTTP: requests are strict, an unknown key is an error, and every list has a longest length."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, StringConstraints

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


class Experiments(Message):
    arms: list[ArmRates]


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
