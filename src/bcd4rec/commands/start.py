"""`bcd4rec start`: from a raw file to a verdict and one page."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Json, Seed

if TYPE_CHECKING:
    from bcd4rec.commands._stages import Start
    from bcd4rec.data.proposals.proposal import Proposal
    from bcd4rec.report.start import Story

EPILOG = "Example:  bcd4rec start visits.csv"
WORDS = {
    "read": "Reading and checking the log",
    "prepare": "Making a data set of it",
    "train": "Training a policy",
    "evaluate": "Judging on held-out sessions",
    "judge": "Judging by propensities",
    "sessions": "Looking at real sessions",
}
# What it takes on one core, about: to begin with, and for a million rows of slates, of single items, and to judge them
# by propensities (docs/start.md).
SECONDS, SLATES, SINGLE, JUDGING, JUDGING_SINGLE = 10.0, 20.0, 95.0, 18.0, 60.0


def add_to(app: typer.Typer) -> None:
    app.command("start", epilog=EPILOG)(start)


def start(
    log: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines or Parquet, also .gz and .zst, or a folder.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of all that is made. Default: start-NAME here.")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="What the columns mean, as TOML, in place of a proposal; see docs/your-logs.md.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option("--items", help="A second file about items: id, and columns of numbers, texts or vectors."),
    ] = None,
    items_id: Annotated[
        str | None, typer.Option(help="What that file calls an item's id. Default: as the log does.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Take the proposal without asking.")] = False,
    earlier: Annotated[
        int,
        typer.Option(min=0, help="Open each session with so many items that its user had liked before; needs users."),
    ] = 0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Look at a file, propose what it means, learn a policy, judge it, and write one page about it.

    Every finished stage is kept in --out: after an interruption, or with a corrected mapping, run it again.
    """
    from bcd4rec.artifacts import sole_run
    from bcd4rec.commands._stages import MAPPING, PAGE, Start
    from bcd4rec.console import emit_json, say, show
    from bcd4rec.report.start import write_start_page

    folder = out or Path(f"start-{log.name.split('.')[0]}")
    if items is not None and not items.is_file():
        raise _error(f"--items: {items} is not a file; expected a table of items.")
    proposal = _proposal(log, mapping, folder)
    if not (yes or mapping is not None or sys.stdin.isatty()):
        told = ", ".join(f"{role}={column}" for role, column in proposal.map.items()) or proposal.options["format"]
        raise _error(f"There is no terminal to ask whether {told} is right; pass --yes if it is, or --mapping FILE.")
    _refuse_others(folder)
    with sole_run(folder):
        _keep(folder, mapping, proposal, log)
        if items is not None and items_id is None:
            items_id = _items_id(items, log, proposal)
        run = Start(log, folder, seed, earlier, _say_stage, items, items_id)
        read = _read(run, proposal)
        if not (yes or mapping is not None):
            _ask(folder / MAPPING, log)
        found = read["check"]
        rows, single = found["impressions"] + found["organic"], found["requests"] == found["impressions"]
        say(f"{_estimate(rows, single, bool(found['propensities']))}, less where stages were done before.")
        story = _story(run, proposal, read)
        write_start_page(folder / PAGE, story)
    if json:
        emit_json(_told(story, folder, proposal))
    else:
        show(story.first)
        for warned in story.check["warnings"]:
            show(f"Warning: {warned['message']}")
        say(f"The page is in {folder / PAGE}.")


def _error(sentence: str) -> Exception:
    from bcd4rec.errors import InputError

    return InputError(sentence)


def _proposal(log: Path, mapping: Path | None, folder: Path) -> "Proposal":
    from bcd4rec.commands._reading import read_mapping
    from bcd4rec.data.proposals.proposal import Choice, Proposal
    from bcd4rec.data.proposals.proposing import propose
    from bcd4rec.data.proposals.sampling import sample_of

    if mapping is None:
        return propose(sample_of(log))
    options = read_mapping(mapping, "--mapping")
    named = [Choice(role, str(column), "as you say") for role, column in options.get("map", {}).items()]
    values = [Choice(f"responses.{value}", rule, "as you say") for value, rule in options.get("responses", {}).items()]
    return Proposal(options, (*named, *values))


def _items_id(items: Path, log: Path, proposal: "Proposal") -> str | None:
    """Which column of the file of items holds the log's ids, where it is not called as in the log."""
    from bcd4rec.console import say
    from bcd4rec.data.features import id_column
    from bcd4rec.data.proposals.sampling import item_ids, sample_of

    own = proposal.map.get("item", "item_id")
    found = id_column(items, own, item_ids(sample_of(log), proposal))
    if found not in (None, own):
        say(f"{items.name}: {found} is the item, most of whose values in the log are there.")
    return found


def _refuse_others(folder: Path) -> None:
    """A folder that is not ours to fill. One that was killed as it began has left nothing but a temporary folder."""
    from bcd4rec.artifacts import workshops
    from bcd4rec.commands._stages import MAPPING

    if folder.exists() and not folder.is_dir():
        raise _error(f"{folder} is a file, expected a folder; choose another with --out.")
    if folder.is_dir() and {*folder.iterdir()} - {*workshops(folder)} and not (folder / MAPPING).is_file():
        raise _error(f"{folder} holds something else than the results of an earlier start; choose another with --out.")


def _keep(folder: Path, mapping: Path | None, proposal: "Proposal", log: Path) -> None:
    from bcd4rec.artifacts import atomic_file
    from bcd4rec.commands._stages import MAPPING

    about = f"How {log.name} calls things; correct it and run: bcd4rec start {shlex.quote(str(log))} --mapping FILE"
    text = proposal.to_toml(about) if mapping is None else mapping.read_text(encoding="utf-8")
    with atomic_file(folder / MAPPING, force=True) as path:
        path.write_text(text, encoding="utf-8")


def _say_stage(stage: str, done: bool) -> None:
    from bcd4rec.console import say

    say(f"{WORDS[stage]}{' (done before)' if done else ' …'}")


def _read(run: "Start", proposal: "Proposal") -> dict[str, Any]:
    """The log, with what it is taken for, how long it takes, and some of its sessions in words."""
    from bcd4rec.console import say

    _show(proposal)
    say(_first_estimate(run.log, proposal))
    read = run.read()
    for sentence in read["preview"]:
        say(f"  {sentence}")
    return read


def _show(proposal: "Proposal") -> None:
    from bcd4rec.console import say

    say("What the file seems to say:")
    for what, column, why in _rows(proposal):
        say(f"  {what:<18} {column:<18} {why}")
    for doubt in proposal.doubts:
        say(f"  Note: {doubt}.")


def _rows(proposal: "Proposal") -> list[tuple[str, str, str]]:
    rows = []
    for one in proposal.choices:
        value = one.role.removeprefix("responses.")
        rows.append((one.role, one.column, one.reason) if value == one.role else (one.column, value, one.reason))
    return rows


def _ask(mapping: Path, log: Path) -> None:
    from bcd4rec.console import say

    say("Is this right? [y/n]")  # not by input(), whose question would stand where --json has its object
    try:
        answer = input().strip().lower()
    except EOFError:
        answer = ""
    if answer not in ("y", "yes"):
        raise _error(
            f"Nothing was learned. Correct {mapping}, copy it, and run: bcd4rec start {shlex.quote(str(log))} "
            "--mapping FILE."
        )


def _first_estimate(log: Path, proposal: "Proposal") -> str:
    """Before anything is read: by the size of the file and its first rows."""
    from bcd4rec.data.proposals.sampling import sample_of
    from bcd4rec.data.row_estimate import about_rows, items_of_a_row

    roles = proposal.map
    rows = about_rows(log)
    nested = str(proposal.options.get("nested", ""))
    several = items_of_a_row(sample_of(log).frame, roles, nested) if nested or "items" in roles else 1.0
    shown = round(rows * several)
    digits = max(0, len(str(shown)) - 2)
    single = not ({"slate", "items", "format"} & (set(roles) | set(proposal.options)))
    told = _estimate(round(shown, -digits), single and "response" in roles, "propensity" in roles)
    return f"{told.replace(' for ', ' for about ')} (by the size of the file). Ctrl-C loses nothing."


def _estimate(rows: int, single: bool, propensities: bool) -> str:
    """`single`: items were shown one at a time."""
    each = (SINGLE if single else SLATES) + propensities * (JUDGING_SINGLE if single else JUDGING)
    seconds = SECONDS + each * rows / 1e6
    told = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    return f"This takes about {told} for {rows:,} rows"


def _story(run: "Start", proposal: "Proposal", read: dict[str, Any]) -> "Story":
    from bcd4rec.commands._stages import POLICY
    from bcd4rec.evaluation.start_advice import NO_SKIPS
    from bcd4rec.report.start import Story

    prepared = run.prepare(read["reading"])
    counts = prepared["counts"]
    each = counts.get("sessions_of_users", 0) / max(counts.get("users", 0), 1)
    check = read["check"] | {"log": str(run.log), "sessions_of_a_user": each, "earlier": run.earlier}
    trained = run.train(any(one["kind"] == NO_SKIPS for one in check["warnings"]))
    evaluation = run.evaluate()
    verdict = run.judge() if check["propensities"] else {}
    return Story(
        str(run.log),
        str(run.out / POLICY),
        _rows(proposal),
        [f"{doubt[0].upper()}{doubt[1:]}." for doubt in proposal.doubts],
        read["preview"],
        check,
        read["reading"],
        prepared,
        trained,
        evaluation,
        verdict,
        run.sessions()["sessions"],
        commands_of(run, trained["method"], bool(check["propensities"])),
    )


def commands_of(run: "Start", method: str, propensities: bool) -> list[str]:
    """What does the same, one after the other."""
    from bcd4rec.commands._stages import DATASET, MAPPING, OPPONENTS, PAGE, POLICY, TEST

    log, mapping, data, policy = (
        shlex.quote(str(path)) for path in (run.log, run.out / MAPPING, run.out / DATASET, run.out / POLICY)
    )
    others = " ".join(name for name in OPPONENTS if name != method)
    earlier = f" --earlier {run.earlier}" if run.earlier else ""
    features = f" --items {shlex.quote(str(run.items))}" if run.items is not None else ""
    features += f" --items-id {shlex.quote(run.items_id)}" if run.items_id is not None else ""
    return [
        f"bcd4rec check {log} --map {mapping} --sort",
        f"bcd4rec prepare {log} --map {mapping} --sort --test {TEST}{earlier}{features} --out {data} --seed {run.seed}",
        f"bcd4rec train {method} {data} --out {policy} --seed {run.seed}",
        f"bcd4rec evaluate {policy} {others} --log {data} --seed {run.seed}",
        *([f"bcd4rec judge {policy} --log {data} --seed {run.seed}"] if propensities else []),
        f"bcd4rec start {log} --mapping {mapping}{earlier}{features} --out {shlex.quote(str(run.out))}"
        f"  # all of it, and {PAGE}",
    ]


def _told(story: "Story", folder: Path, proposal: "Proposal") -> dict[str, Any]:
    from bcd4rec.commands._stages import PAGE
    from bcd4rec.evaluation.start_advice import next_steps, too_thin

    words, commands = next_steps(story.check, story.evaluation, story.verdict, story.policy)
    return {
        "log": story.log,
        "page": str(folder / PAGE),
        "first": story.first,
        "thin": too_thin(story.check, story.evaluation) is not None,
        "mapping": proposal.options,
        "doubts": list(proposal.doubts),
        "preview": list(story.preview),
        "check": story.check,
        "dataset": story.prepared,
        "policy": story.trained,
        "evaluation": story.evaluation,
        "verdict": story.verdict,
        "next": {"words": words, "commands": commands},
        "commands": list(story.commands),
    }
