"""Options that several commands share."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bcd4rec.config import OPTIONS
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log, LogOptions, default_responses

if TYPE_CHECKING:
    from bcd4rec.sim.environment import Environment

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Root of all randomness: the same seed, the same bits.")]
MOST_THREADS = max(256, os.cpu_count() or 1)  # with many more the system refuses some, and libraries crash
Threads = Annotated[
    int, typer.Option("--threads", min=1, max=MOST_THREADS, help="Threads; more than one may change the last bits.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="How many tasks at once, each with one thread; 1, or with --ray all CPUs."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Make tasks on Ray: one that is started here (--ray alone), or a running cluster (auto or HOST:PORT).",
    ),
]
Store = Annotated[
    str | None,
    typer.Option("--store", help="Where tasks keep their results: a folder, or a bucket such as s3://bucket/prefix."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set beta=0.5; may be repeated.")
]
Rewards = Annotated[
    str | None,
    typer.Option("--rewards", help="Reward of each response, e.g. skip=0,click=4. Default: skip=0,click=1,buy=5."),
]
Positive = Annotated[
    str | None, typer.Option("--positive", help="Responses that enter the state; default: those with a reward above 0.")
]
Target = Annotated[
    str | None, typer.Option("--target", help="Response whose rate is reported; default: the most rewarded one.")
]
TimeUnit = Annotated[str, typer.Option("--time-unit", help="Unit of a numeric timestamp since 1970: s, ms or us.")]
StringIds = Annotated[
    bool, typer.Option("--string-ids", help="Read ids as strings, also where some look like numbers.")
]
Sort = Annotated[
    bool, typer.Option("--sort", help="Sort each session's rows by time instead of refusing those out of order.")
]
LogPath = Annotated[
    Path, typer.Argument(metavar="LOGS", help="A Parquet or CSV file of impressions, or a folder of them.")
]


def open_log(path: Path, time_unit: str, string_ids: bool, sort: bool) -> Log:
    options = LogOptions.parse({"time_unit": time_unit, "string_ids": string_ids, "sort": sort}, OPTIONS)
    return Log(path, options)


def responses_of(log: Log, rewards: str | None, positive: str | None, target: str | None) -> Responses:
    """What the options say, or the defaults for what the log holds."""
    if rewards is None:
        found = default_responses(log)
        if positive is None and target is None:
            return found
        rewards = ",".join(f"{name}={reward}" for name, reward in found.rewards.items())
    return Responses.from_options(rewards, positive, target)


Env = Annotated[
    str,
    typer.Option(
        "--env",
        help="Who plays the user: recsim (the interest-evolution environment), shop (a synthetic shop), learned (a "
        "model of real users, see --model).",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="Preset of the environment; recsim: paper, recsim, literal, single; shop: single, pages, "
        "pages-biased; learned: settings such as slate_size=3,start=empty,shown=20,most=5.",
    ),
]
Model = Annotated[
    Path | None, typer.Option("--model", help="Folder of a learned user (bcd4rec train user), for --env learned.")
]
Users = Annotated[int, typer.Option("--users", min=1, help="How many simulated sessions.")]
DataSet = Annotated[
    Path | None, typer.Option("--dataset", help="Data set that baselines learn from; default: a random log.")
]
AfterSkip = Annotated[
    str | None,
    typer.Option(
        "--after-skip",
        help="After a skipped slate: repeat the ranking, or exclude its items once. Default: the policy's own rule.",
    ),
]
Candidates = Annotated[
    str,
    typer.Option(
        "--candidates",
        help="What may be recommended: all items, or those of the category of what the user clicked first (category).",
    ),
]

Diversity = Annotated[
    float | None,
    typer.Option(
        "--diversity",
        min=0.0,
        help="λ: how much items lose by items like them in the same slate. Default: the policy's own rule.",
    ),
]


Unanswered = Annotated[
    str | None,
    typer.Option(help="What was shown and not answered: skip, once the session goes on (default), or unknown."),
]


def as_unanswered(name: str | None) -> Literal["skip", "unknown"] | None:
    from bcd4rec.errors import InputError

    if name is None or name == "skip" or name == "unknown":
        return name  # type: ignore[return-value]  # one of the two
    raise InputError(f"--unanswered: found {name!r}, expected skip or unknown.")


def make_environment(env: str, preset: str | None, model: Path | None) -> "Environment":
    from bcd4rec.sim.environment import ENVIRONMENTS, EnvironmentOptions

    return ENVIRONMENTS[env](EnvironmentOptions(preset, model))


def set_threads(threads: int) -> None:
    with contextlib.suppress(ModuleNotFoundError):  # without torch there are still methods that need none
        import torch

        torch.set_num_threads(threads)
