"""`bcd4rec prepare`: a log becomes a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bcd4rec.commands._options import Force, Jobs, Json, Positive, Ray, Rewards, Seed, Sort, StringIds, Target, TimeUnit
from bcd4rec.commands._reading import Format, Map, RawLog, RawPath, ResponseRules, Settings

if TYPE_CHECKING:
    from bcd4rec.data.features import ItemFeatures
    from bcd4rec.runner.mapping import Helpers

EPILOG = """Example:  bcd4rec prepare logs.parquet --out dataset/ --rewards skip=0,click=4

Raw logs:  bcd4rec prepare diginetica/ --format diginetica --out dataset/ --set cut=none

Days in a bucket:  bcd4rec prepare s3://bucket/log/ --out dataset/ --split hash

The next day:  bcd4rec prepare s3://bucket/log/day=2026-01-31/ --append dataset/"""

OF_THE_DATA_SET = (
    "earlier",
    "rewards",
    "positive",
    "target",
    "history",
    "length",
    "skips",
    "convention",
    "gamma",
    "split",
    "test",
    "periods",
    "validation",
    "seed",
)


def add_to(app: typer.Typer) -> None:
    app.command("prepare", epilog=EPILOG)(prepare)


def prepare(
    context: typer.Context,
    logs: RawPath,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the data set; it appears when it is complete.")
    ] = None,
    append: Annotated[
        Path | None,
        typer.Option(
            "--append", help="Add the sessions to this data set, made with --split hash; its settings are kept."
        ),
    ] = None,
    raw_format: Format = None,
    columns: Map = None,
    rules: ResponseRules = None,
    settings: Settings = None,
    keep: Annotated[
        Path | None, typer.Option("--logs", help="With --format: also keep the canonical log as this Parquet file.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option("--items", help="A second file about items: id, and columns of numbers, texts or vectors."),
    ] = None,
    items_id: Annotated[
        str | None,
        typer.Option(help="What that file calls an item's id. Default: as --map does, or item_id."),
    ] = None,
    item_kinds: Annotated[
        str | None,
        typer.Option(
            help="What columns of that file are (number, category, text, ignored) where they do not look like it, e.g. "
            "size=category,url=ignored."
        ),
    ] = None,
    new_items: Annotated[
        bool,
        typer.Option(help="Items of that file that the log never shows join the catalogue and can be recommended."),
    ] = True,
    earlier: Annotated[
        int,
        typer.Option(help="Open sessions with so many items that the same user liked before (needs a user)."),
    ] = 0,
    rewards: Rewards = None,
    positive: Positive = None,
    target: Target = None,
    history: Annotated[
        str, typer.Option(help="What a state remembers: all (positive items and recent skips), or positives.")
    ] = "all",
    length: Annotated[
        int | None,
        typer.Option(
            help="L: how many positive items a state holds. Default: enough for 95 % of sessions, at most 50."
        ),
    ] = None,
    skips: Annotated[
        int | None,
        typer.Option(
            help="S: how many skipped items a state holds with --history all. Default: enough for 95 % of sessions, at "
            "most 200."
        ),
    ] = None,
    convention: Annotated[
        str, typer.Option(help="Transitions: every shown item (shown), or one per slate (chosen).")
    ] = "shown",
    gamma: Annotated[float, typer.Option(help="γ: the discount.")] = 0.9,
    split: Annotated[
        Literal["session", "hash", "time"] | None,
        typer.Option(
            help="Split by session (at random; the default of most formats), by a hash of the user or session (stays "
            "when days are added), or by time (see --periods)."
        ),
    ] = None,
    test: Annotated[float, typer.Option(help="Share of test sessions, with --split session or hash.")] = 0.0,
    periods: Annotated[
        str | None, typer.Option(help="Days of each period, with --split time, e.g. user=60,train=30,test=30.")
    ] = None,
    validation: Annotated[float, typer.Option(help="Share of the train sessions kept for validation.")] = 0.2,
    seed: Seed = 0,
    time_unit: TimeUnit = "s",
    string_ids: StringIds = False,
    sort: Sort = False,
    jobs: Jobs = None,
    ray: Ray = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn an impression log into sessions, states and transitions, in streaming: logs larger than memory work."""
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.commands._options import responses_of
    from bcd4rec.commands._tasks import workers
    from bcd4rec.config import OPTIONS, parse_numbers
    from bcd4rec.console import progress
    from bcd4rec.data import preparing
    from bcd4rec.errors import InputError
    from bcd4rec.runner.mapping import Helpers

    raw = RawLog(logs, raw_format, columns, rules, settings, time_unit, string_ids, sort)
    side_by_side = Helpers(workers(jobs, ray), ray)
    if append is not None:
        _refuse_with_append(context, out)
        _append(raw, append, keep, features, items_id, side_by_side, force, json)
        return
    if out is None:
        raise InputError("prepare needs a place for the data set: --out DIR for a new one, --append DIR for one more.")
    reader = raw.reader()
    usual = reader.periods if reader is not None else {}
    by = split or ("time" if usual else "session")
    values: dict[str, Any] = {
        "transitions": {
            "history": history,
            "length": length,
            "skips": skips,
            "convention": convention,
            "gamma": gamma,
        },
        "split": {
            "by": by,
            "test": test,
            "periods": parse_numbers(periods, "--periods") if periods else usual if by == "time" else {},
            "validation": validation,
        },
        "earlier": earlier,
    }
    config = preparing.PrepareConfig.parse(values, OPTIONS)
    refuse_existing(out, force, "dataset", [*raw.inputs(), keep, features])
    if keep is not None:
        refuse_existing(keep, force, inputs=[*raw.inputs(), features])
        if raw.whole_folders:
            _refuse_beside_inputs(keep, logs)
    with progress() as tick, raw.canonical(reader, tick, keep, force, out) as (log, reading):
        responses = responses_of(log, rewards, positive, target)
        own_id, id_type = items_id or raw.item_name(reader), log.id_types["item_id"]
        known = read_features(features, own_id, id_type, item_kinds, new_items)
        manifest = preparing.prepare(log, responses, config, out, seed, force, tick, reading, known, side_by_side)
    beside = beside_the_paper(manifest["counts"], reader.paper) if reader is not None else {}
    _tell(out, manifest, reading, beside, json)


def _tell(
    out: Path,
    manifest: dict[str, Any],
    reading: dict[str, Any] | None,
    beside: dict[str, dict[str, int]],
    json: bool,
) -> None:
    from bcd4rec.console import emit_json, say, show

    if json:
        sizes = {name: manifest["config"][name] for name in ("history", "length", "skips", "automatic")}
        dropped = sizes | {name: manifest[name] for name in ("dropped", "warnings", "content_hash")}
        told = {"reading": reading} | ({"paper": beside} if beside else {}) if reading is not None else {}
        emit_json({"dataset": str(out)} | manifest["counts"] | dropped | told)
    else:
        show(_table(str(out), manifest, beside))
        for warned in manifest["warnings"]:
            say(f"Warning: {warned['message']}")
        say(f"The data set is in {out}.")


def _refuse_with_append(context: typer.Context, out: Path | None) -> None:
    """Options of which the data set has its own already; those of the command line would be ignored."""
    from bcd4rec.errors import InputError

    if out is not None:
        raise InputError("--append writes to the data set that it names, --out to a new one; give one of them.")
    for name in OF_THE_DATA_SET:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{name} is what the data set of --append was made with; leave it out.")


def _append(
    raw: RawLog,
    folder: Path,
    keep: Path | None,
    features: Path | None,
    items_id: str | None,
    side_by_side: "Helpers",
    force: bool,
    json: bool,
) -> None:
    """Add the sessions of a log to the data set in `folder`."""
    from dataclasses import replace

    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.console import progress
    from bcd4rec.data import appending

    there = appending.Grown.open(folder)
    refuse_existing(folder, True, "dataset", [*raw.inputs(), keep, features])
    if raw.name is None:
        raw = replace(raw, string_ids=raw.string_ids or there.string_ids)
    reader = raw.reader()
    if keep is not None:
        refuse_existing(keep, force, inputs=[*raw.inputs(), features])
    with progress() as tick, raw.canonical(reader, tick, keep, force, folder) as (log, reading):
        known = read_features(features, items_id or raw.item_name(reader), log.id_types["item_id"])
        manifest = appending.append(folder, log, tick, reading, known, side_by_side)
    _tell(folder, manifest, manifest.get("reading"), {}, json)


def read_features(
    path: Path | None, own_id: str, id_type: Any, kinds: str | None = None, new_items: bool = True
) -> "ItemFeatures | None":
    from bcd4rec.config import parse_pairs
    from bcd4rec.data.features import ItemFeatures
    from bcd4rec.errors import InputError

    if path is None:
        if kinds is not None or not new_items:
            raise InputError("--item-kinds and --no-new-items say how --items is read; give --items, too.")
        return None
    wished = parse_pairs(kinds, "--item-kinds") if kinds else {}
    return ItemFeatures.read(path, own_id, id_type, wished, new_items)


def _refuse_beside_inputs(keep: Path, logs: Path) -> None:
    """A log kept among the files it is made of would be read with them the next time."""
    from bcd4rec.artifacts import real
    from bcd4rec.errors import InputError

    if logs.is_dir() and real(keep).parent == real(logs):
        raise InputError(f"{keep} would be among the logs of {logs} the next time; choose another folder.")


def beside_the_paper(counts: dict[str, Any], paper: dict[str, int]) -> dict[str, dict[str, int]]:
    """Our counts and the paper's, by name. The paper's train sessions include what we keep for validation."""

    def of(what: str, *splits: str) -> int:
        return sum(counts[what].get(split, 0) for split in splits)

    ours = {
        "train sessions": of("sessions_by_split", "train", "validation"),
        "train tuples": of("impressions_by_split", "train", "validation"),
        "test sessions": of("sessions_by_split", "test"),
        "items": counts["items"],
        "categories": counts["categories"],
    }
    return {name: {"ours": ours[name], "paper": theirs} for name, theirs in paper.items()}


def again_told(counts: dict[str, int]) -> str:
    after, again = counts["impressions_after_a_like"], counts["of_items_liked_before"]
    return f"{again:,} of {after:,} impressions after a positive response ({100 * again / max(after, 1):.1f} %)"


def features_told(found: dict[str, Any]) -> str:
    columns = ", ".join(f"{name} ({kind})" for name, kind in found["columns"].items())
    counts = f"{found['items']:,} items of the log have them, {found['items_without']:,} do not"
    return f"{columns}; {counts}; {new_items_told(found)}"


def new_items_told(found: dict[str, Any]) -> str:
    if found["left_out"]:
        return f"{found['left_out']:,} others are not in the log and left out"
    return f"{found['items_new']:,} others, which the log never shows, can be recommended, too"


def _table(path: str, manifest: dict[str, Any], beside: dict[str, dict[str, int]]) -> Any:
    from bcd4rec.commands._reading import organic_told, reading_pairs
    from bcd4rec.commands.check import items_told
    from bcd4rec.console import pairs_table

    counts, config = manifest["counts"], manifest["config"]
    sizes = [("length", f"{config['length']} positive items"), ("skips", f"{config['skips']} skipped items")]
    held = [f"{text}{' (automatic)' if name in config['automatic'] else ''}" for name, text in sizes if config[name]]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["sessions_by_split"].items())
    pairs = reading_pairs(manifest["reading"]) if "reading" in manifest else []
    pairs += [
        ("sessions", f"{counts['sessions']:,} ({splits})"),
        ("impressions", f"{counts['impressions']:,}"),
        *([("organic events", organic_told(counts))] if counts["organic"] else []),
        ("responses", ", ".join(f"{name} {count:,}" for name, count in counts["responses"].items())),
        ("transitions", f"{counts['transitions']:,} over {counts['states']:,} distinct states"),
        ("a state holds the last", " and ".join(held)),
        *([("users", f"{counts['users']:,}")] if "users" in counts else []),
        ("liked items shown again", again_told(manifest["availability"])),
        *([("features of items", features_told(manifest["features"]))] if "features" in manifest else []),
        ("items", items_told(counts)),
        ("dropped", ", ".join(f"{count:,} {why}" for why, count in manifest["dropped"].items()) or "nothing"),
        ("content hash", manifest["content_hash"][:16]),
    ]
    if beside:
        told = [f"{name} {both['ours']:,} ({both['paper']:,})" for name, both in beside.items()]
        pairs.append(("beside (the paper's)", ", ".join(told)))
    return pairs_table(path, pairs)
