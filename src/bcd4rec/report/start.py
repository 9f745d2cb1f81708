"""The page of `bcd4rec start`: what a log is, what it cannot tell, what was learned, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcd4rec.evaluation.logged_slates import MEASURES
from bcd4rec.evaluation.start_advice import Result, headline, next_steps, too_thin, unit_of
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.methods import friendly
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, measured, write_page

DECIMALS = 3
ASKED = {
    "slate": "Each policy ranks what was in view. AUC is the share of pairs, one liked and one not, that it has in the "
    "right order.",
    "session": "Items were shown one at a time, so each counts by the place that the policy would have given it. "
    "AUC is the share of pairs of a session, one liked and one not, that it has in the right order.",
    "next item": "Each policy guesses what was chosen next among the whole catalogue. R@20 is the share of guesses "
    "with the right item among the first 20.",
}
WHO = {"slate": "Logged order is what your system did.", "session": "", "next item": ""}
AXES = {"auc": "AUC (0.5 is chance)"}
LIKED = {"click": "✓", "buy": "✓✓"}


@dataclass(frozen=True)
class Story:
    """All that the page tells, as the stages of `start` left it."""

    log: str
    policy: str
    mapping: Sequence[tuple[str, str, str]]  # what, which column, why
    doubts: Sequence[str]
    preview: Sequence[str]
    check: Result
    reading: Result  # what the reader kept and what it left out
    prepared: Result
    trained: Result
    evaluation: Result
    verdict: Result
    sessions: Sequence[Result]
    commands: Sequence[str]

    @property
    def first(self) -> str:
        return headline(self.check, self.evaluation, self.verdict)


def write_start_page(path: Path, story: Story) -> None:
    write_page(path, page_of(story), force=True)


def page_of(story: Story) -> Page:
    thin = too_thin(story.check, story.evaluation)
    words, commands = next_steps(story.check, story.evaluation, story.verdict, story.policy)
    sections = [
        Section("What to do next", words, commands=commands, anchor="next"),
        *(_results(story) if thin is None else []),
        _verdict(story),
        _cannot_tell(story),
        *([_sessions(story, thin is not None)] if story.sessions else []),
        Section("How the policy makes slates", _rule(story.trained), anchor="slates"),
        _read_as(story),
        Section(
            "The same in separate commands",
            ["Each step is also a command of its own, with more options; these give the same results."],
            commands=story.commands,
            anchor="commands",
        ),
    ]
    return Page(f"What {Path(story.log).name} can tell", [story.first], sections, facts=_facts(story.check))


def _facts(check: Result) -> list[tuple[str, str]]:
    liked = sum(count for name, count in check["responses"].items() if name != "skip")
    days = check.get("days")
    chosen = liked == check["impressions"]
    share = f"{100 * liked / max(check['impressions'], 1):.1f} %"
    return [
        ("sessions", f"{check['sessions']:,}"),
        ("items", f"{check['items']:,}"),
        *([] if chosen else [("impressions", _shown_how(check))]),
        ("liked", f"{liked:,} ({'what was shown is not known' if chosen else share})"),
        *([("organic events", f"{check['organic']:,}")] if check["organic"] else []),
        *([("days", f"{days['days']:,} ({days['first'][:10]} to {days['last'][:10]})")] if days else []),
        ("propensities", f"for {check['propensities']:.0f} % of impressions" if check["propensities"] else "none"),
    ]


def _shown_how(check: Result) -> str:
    alone = check["requests"] == check["impressions"]
    return f"{check['impressions']:,}" + (", one at a time" if alone else f" in {check['requests']:,} slates")


def _interval(one: Result, measure: str) -> Interval | None:
    value = one.get(measure)
    return None if value is None else Interval(value, one[f"{measure}_low"], one[f"{measure}_high"])


def _results(story: Story) -> list[Section]:
    found = story.evaluation
    names = found["measures"]
    label = MEASURES[names[0]]
    rows: list[list[Cell | str]] = [
        [friendly(one["policy"]), *(measured(_interval(one, name), DECIMALS) for name in names)]
        for one in found["policies"]
    ]
    values = {one["policy"]: value for one in found["policies"] if (value := _interval(one, names[0])) is not None}
    said = ", ".join(f"{friendly(name)} {number(one.value, DECIMALS)}" for name, one in values.items())
    figure = Figure(
        plots.dots("headline", values, AXES.get(names[0], label), DECIMALS),
        f"Dot plot of {label} with 95 % intervals: {said}.",
        Table(
            ["Policy", label, "low", "high"], [[friendly(n), *(number(v, 3) for v in one)] for n, one in values.items()]
        ),
    )
    prose = [
        f"{_cases(found)} that no policy has learned from. {ASKED[found['unit']]} Farther right is better; a dot is "
        "the mean, the line its 95 % interval.",
        f"{WHO[found['unit']]} {friendly('ctr')} is the smoothed rate of each item, {friendly('popular')} what is "
        f"liked most, {friendly('stan')} what similar sessions liked, {friendly('random')} is chance.",
    ]
    table = Table(["Policy", *(MEASURES[name] for name in names)], rows, caption="Each value with its 95 % interval.")
    verdicts = [_named(one) for one in found["comparisons"]]
    return [
        Section("The learned policy beside others", prose, figure, anchor="results"),
        Section("All measures", table=table, notes=verdicts),
    ]


def _cases(found: Result) -> str:
    sessions = f"{found['sessions']:,} sessions"
    return sessions if found["unit"] == "session" else f"{found['cases']:,} {unit_of(found)} of {sessions}"


def _named(pair: Result) -> str:
    """The sentence about two policies, by the names that the table has."""
    first, second = friendly(pair["first"]), friendly(pair["second"])
    return (
        str(pair["sentence"])
        .replace(f"{pair['first']} is", f"{first} is")
        .replace(f"than {pair['second']}", f"than {second}")
    )


def _verdict(story: Story) -> Section:
    title = "What the propensities say"
    if not story.check["propensities"]:
        text = "The log has no propensities: no estimate of what another policy would have earned can be made from it."
        return Section(title, [text], anchor="verdict")
    if "problem" in story.verdict:
        return Section(title, [story.verdict["problem"]], anchor="verdict")
    words = f"Verdict: {story.verdict['verdict']}. {story.verdict['reason']}"
    return Section(title, [words, *story.verdict.get("notes", [])], anchor="verdict")


def _cannot_tell(story: Story) -> Section:
    warnings = [one["message"] for one in (*story.check["warnings"], *story.prepared["warnings"])]
    rows = [[one["kind"], one["message"]] for one in (*story.check["warnings"], *story.prepared["warnings"])]
    if not warnings:
        return Section("What this log cannot tell", ["Nothing that is known to hurt was found."], anchor="limits")
    table = Table(["What", "Why, and what helps"], rows, words=True)
    return Section("What this log cannot tell", table=table, anchor="limits")


def _sessions(story: Story, thin: bool) -> Section:
    caution = ["The policy has learned from too little; this only shows what its slates look like."] if thin else []
    prose = [
        "Held-out sessions as they were, and what the policy would have shown at each slate. ✓ marks what was clicked, "
        "✓✓ what was bought.",
        *caution,
    ]
    parts = [Section(f"Session {one['session']}", table=_slates(one["slates"])) for one in story.sessions]
    return Section("Three real sessions", prose, parts=parts, anchor="sessions")


def _slates(slates: Sequence[Result]) -> Table:
    rows = [
        [str(place), _shown(one["shown"]), ", ".join(map(str, one["policy"]))] for place, one in enumerate(slates, 1)
    ]
    return Table(["Slate", "Was shown", "The policy would show"], rows, words=True)


def _shown(items: Sequence[Any], most: int = 8) -> str:
    told = [f"{item}\u00a0{LIKED[answer]}" if answer in LIKED else str(item) for item, answer in items]
    if len(told) <= most:
        return ", ".join(told)
    others = [text for text in told[most:] if text.endswith("✓")]
    return ", ".join([*told[:most], f"… {len(told) - most} more", *others])


def _rule(trained: Result) -> list[str]:
    reason = str(trained["rule"]["reason"])
    return [trained["rule"]["words"], f"Why: {reason}."]


def _read_as(story: Story) -> Section:
    table = Table(["What", "Your column or value", "Why"], [list(row) for row in story.mapping], words=True)
    return Section(
        "How the file was read",
        ["Is this wrong? Correct `mapping.toml` and run it again with `--mapping`.", *story.doubts],
        table=table,
        notes=[*_became(story.reading), "Some sessions in words:", *story.preview],
        anchor="reading",
    )


def _became(reading: Result) -> list[str]:
    """What became of the rows of the file."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in counts.items())

    dropped = reading["dropped"]
    left = f" Not kept: {listed(dropped)}." if dropped else " Nothing was left out."
    remarks = [f"{remark[0].upper()}{remark[1:]}." for remark in reading["remarks"]]
    return [f"Read: {listed(reading['read'])}. Kept: {listed(reading['kept'])}.{left}", *remarks]
