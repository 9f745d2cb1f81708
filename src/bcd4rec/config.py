"""Frozen, strict configurations: every field has a sentence, an unknown key is an error."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bcd4rec.errors import InputError


class Config(BaseModel):
    """Base of all configurations. They say *what* is computed; seeds, paths and devices are run options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, values: dict[str, Any], source: str = "configuration") -> Self:
        """Build from untrusted values; the first problem becomes one sentence that names `source` and the key."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or cls.__name__
            if first["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise InputError(f"{source}: unknown key {key!r}; known keys are {known}.") from error
            message = first["msg"].removeprefix("Value error, ").rstrip(".")
            message = message[:1].lower() + message[1:]
            raise InputError(f"{source}: {key} is {first['input']!r}, but {message}.") from error


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """`a=1,b=2` as a dictionary, in the given order; `option` names the CLI option in errors."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{option}: found {part!r}, expected name=value pairs such as skip=0,click=4.")
        if key in pairs:
            raise InputError(f"{option}: {key!r} is given twice; keep one of them.")
        pairs[key] = value
    return pairs


def parse_numbers(text: str, option: str) -> dict[str, float]:
    """`skip=0,click=4` as numbers."""
    numbers: dict[str, float] = {}
    for key, value in parse_pairs(text, option).items():
        try:
            numbers[key] = float(value)
        except ValueError:
            raise InputError(f"{option}: {key} is {value!r}, expected a number as in {key}=1.") from None
    return numbers
