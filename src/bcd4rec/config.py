"""Frozen, strict configurations: every field has a sentence, an unknown key is an error."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bcd4rec.errors import InputError

OPTIONS = "options"  # the source of values that come from the command line


class Config(BaseModel):
    """Base of all configurations. They say *what* is computed; seeds, paths and devices are run options."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: dict[str, Any], source: str) -> Self:
        """Build from untrusted values; the first problem becomes one sentence that names `source` and the key.

        The source `OPTIONS` stands for the command line: the key is then named as the option it came from.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InputError(_sentence(error.errors()[0], source, list(cls.model_fields))) from None


def _sentence(problem: Any, source: str, known: list[str]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{source}: unknown key {key!r}; known keys are {', '.join(known)}."
    where = f"--{key.rpartition('.')[2].replace('_', '-')}" if source == OPTIONS else f"{source}: {key}"
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "value_error":
        # A rule over several fields; its own sentence names them.
        return f"{message[:1].upper()}{message[1:]}." if source == OPTIONS else f"{source}: {message}."
    return f"{where}: found {problem['input']!r}, expected {message.removeprefix('Input should be ')}."


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


def parse_settings(settings: list[str] | None) -> dict[str, str]:
    """Repeated `--set key=value` options; values are typed by the config that takes them."""
    found: dict[str, str] = {}
    for setting in settings or []:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise InputError(f"--set: found {setting!r}, expected key=value, e.g. --set beta=0.5.")
        if key in found:
            raise InputError(f"--set: {key!r} is given twice; keep one of them.")
        found[key] = value
    return found
