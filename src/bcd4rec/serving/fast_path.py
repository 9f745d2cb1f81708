"""The questions that are asked all the time, answered without the framework, which takes longer than the model.

The framework declares the same routes, for the description of the interface.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from pydantic import ValidationError

from bcd4rec.serving import failures
from bcd4rec.serving.messages import FeedbackRequest, ImpressionsRequest, RecommendRequest
from bcd4rec.serving.service import Service

Answer = tuple[int, bytes]
Handler = Callable[[bytes], Awaitable[Answer]]


async def recommend(service: Service, asked: RecommendRequest) -> tuple[int, Any]:
    return 200, await service.recommend(asked)


async def feedback(service: Service, given: FeedbackRequest) -> tuple[int, Any]:
    stored, accepted, unmatched = await service.feedback(given)
    return 200 if stored else 202, {"accepted": accepted, "stored": stored, "unmatched": unmatched}


async def impressions(service: Service, told: ImpressionsRequest) -> tuple[int, Any]:
    stored, answer = await service.impressions(told)
    return 200 if stored else 202, answer | {"stored": stored}


def handlers(service: Service) -> dict[str, Handler]:
    """By path; all of them are asked by POST."""

    async def recommend_raw(body: bytes) -> Answer:
        return await _answered(recommend(service, RecommendRequest.model_validate_json(body)))

    async def feedback_raw(body: bytes) -> Answer:
        return await _answered(feedback(service, FeedbackRequest.model_validate_json(body)))

    async def impressions_raw(body: bytes) -> Answer:
        return await _answered(impressions(service, ImpressionsRequest.model_validate_json(body)))

    raw = {"recommend": recommend_raw, "feedback": feedback_raw, "impressions": impressions_raw}
    return {f"/v1/{name}": _worded(handler) for name, handler in raw.items()}


async def _answered(answer: Awaitable[tuple[int, Any]]) -> Answer:
    status, value = await answer
    return status, orjson.dumps(value)


def _worded(handler: Handler) -> Handler:
    async def answer(body: bytes) -> Answer:
        try:
            return await handler(body)
        except ValidationError as error:
            sentence = failures.of_validation(error.errors(include_url=False, include_input=False))
            return 422, orjson.dumps({"error": sentence})
        except Exception as error:
            status, sentence = failures.of(error)
            return status, orjson.dumps({"error": sentence})

    return answer
