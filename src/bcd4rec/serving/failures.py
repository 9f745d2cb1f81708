"""How failures are told: a status and one sentence, and nothing of the inside."""

import logging
from collections.abc import Sequence
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.store import BufferFull, StoreClosed

LONGEST = 400
NO_JSON = "The body is not a JSON object with content-type application/json."
log = logging.getLogger(__name__)


def of_validation(errors: Sequence[Any]) -> str:
    """The first problem that pydantic found. Places within a union are named by their types, which tell nobody much."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid" or not place:
        return NO_JSON
    where = ".".join(part for part in place if (part.isidentifier() and part.islower()) or part.isdigit())
    return f"{where}: {first['msg']}."[:LONGEST]


def of(error: Exception) -> tuple[int, str]:
    if isinstance(error, InputError):
        return 422, str(error)[:LONGEST]
    if isinstance(error, BufferFull | StoreClosed):
        return 503, "Too many records wait for the database; send this again later."
    log.error("A request failed.", exc_info=error)
    return 500, "The server failed; its log says why."
