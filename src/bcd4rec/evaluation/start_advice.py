"""What `bcd4rec start` says first, and what to do next: from the results of its stages alone."""

import shlex
from typing import Any

from bcd4rec.data.warnings import FEW_POSITIVES, FEW_SESSIONS

FEW_CASES = 30  # held-out slates or next items; with fewer, intervals are wider than any difference that matters
FEW_JUDGING = 15  # held-out sessions that have such cases
SEVERAL_SESSIONS = 1.5  # of a user, from which on what she liked before is worth a try
REFERENCE, LOGGED = "ctr", "logged order"
NO_SKIPS = "no skips"
OLD = "`OLD` is the policy that you serve now; beside a system of another kind, `--control external` takes its place."

Result = dict[str, Any]


def too_thin(check: Result, evaluation: Result) -> str | None:
    """Why a table of this log would mean nothing, as a sentence; None where it means something."""
    responses = {name: count for name, count in check["responses"].items() if name != "skip"}
    positives, sessions = sum(responses.values()), check["sessions"]
    if check["items"] < 2:
        return "There is nothing to learn from this log: it shows one item, and a policy chooses among several."
    if sessions < FEW_SESSIONS:
        told = "one session" if sessions == 1 else f"{sessions:,} sessions"
        return f"This log is too thin to learn from: it has {told}, and a few hundred are the least."
    if positives < FEW_POSITIVES:
        return (
            f"This log is too thin to learn from: {positives:,} of {check['impressions']:,} impressions have a "
            f"positive response, and {FEW_POSITIVES} are the least."
        )
    if "problem" in evaluation:
        return f"Nothing in this log tells one policy from another by their rankings: {evaluation['problem']}"
    cases, judging = evaluation["cases"], evaluation["sessions"]
    alone = evaluation["unit"] == "session"  # which are cases themselves
    if judging < FEW_JUDGING or (cases < FEW_CASES and not alone):
        told = f"of the held-out sessions {judging:,} tell something"
        cases_told = "" if alone else f", in {cases:,} {unit_of(evaluation)}"
        least = f"{FEW_JUDGING} sessions{'' if alone else f' with {FEW_CASES}'} are the least"
        return f"This log is too thin to compare policies on: {told}{cases_told}, and {least}."
    return None


def unit_of(evaluation: Result) -> str:
    return {"slate": "slates", "session": "sessions", "next item": "next items"}[evaluation["unit"]]


def comparison(evaluation: Result, with_whom: str = REFERENCE) -> Result | None:
    return next((one for one in evaluation.get("comparisons", []) if one["second"] == with_whom), None)


def headline(check: Result, evaluation: Result, verdict: Result) -> str:
    """The first sentence."""
    thin = too_thin(check, evaluation)
    if thin is not None:
        return thin
    if verdict.get("verdict") in ("ship", "reject"):
        return f"The log's propensities say {verdict['verdict']}: {verdict['reason']}"
    pair = comparison(evaluation)
    method, cases = evaluation["method"], f"{evaluation['cases']:,} held-out {unit_of(evaluation)}"
    if pair is None:
        return f"{method} was judged on {cases}."
    measure = evaluation["measures"][0]
    own, other = (_value(evaluation, name, measure) for name in (method, REFERENCE))
    numbers = f"{measure.upper()} {own:.3f} against {other:.3f}"
    if evaluation["unit"] == "next item":
        return (
            "This log tells what people chose and not what they passed over, so it cannot say which policy is better, "
            f"only who guesses the next item more often: of {evaluation['cases']:,} held-out items, {100 * own:.1f} % "
            f"are among the first 20 guesses of {method}, and {100 * other:.1f} % among the items with the best rates."
        )
    logged = comparison(evaluation, LOGGED)
    behind = logged is not None and logged["verdict"] == "worse"
    hope = "It cannot be told whether there is" if behind else "There seems to be"
    words = {
        "better": f"{hope} a better policy in this log: on {cases} the learned one ({method}) ranks what people liked "
        f"above what they skipped more often than smoothed rates of the items do ({numbers}).",
        "no better": f"No better policy was found in this log: on {cases} the learned one ({method}) cannot be told "
        f"from smoothed rates of the items ({numbers}).",
        "worse": f"Do not use the learned policy: on {cases} it is worse than smoothed rates of the items ({numbers}).",
    }
    return words[str(pair["verdict"])] + _others(evaluation, measure)


def _others(evaluation: Result, measure: str) -> str:
    """Who else did better, which the comparison with smoothed rates does not tell."""
    method = evaluation["method"]
    ahead = [one["second"] for one in evaluation["comparisons"] if one["verdict"] == "worse"]
    told = [f"{name} {_value(evaluation, name, measure):.3f}" for name in ahead if name not in (REFERENCE, LOGGED)]
    better = f" But simpler ones do better than {method} here: {', '.join(told)}." if told else ""
    if LOGGED in ahead:
        better += (
            " But the order in which the log showed items does better "
            f"({_value(evaluation, LOGGED, measure):.3f}); as people choose what stands on top, this favours it, and "
            "only a test on people tells which is better."
        )
    logged = comparison(evaluation, LOGGED)
    if logged is not None and logged["verdict"] == "no better":
        better += (
            f" The order in which the log showed items does as well ({_value(evaluation, LOGGED, measure):.3f}), "
            "helped by what stands on top being seen first."
        )
    return better


def _value(evaluation: Result, policy: str, measure: str) -> float:
    return float(next(one[measure] for one in evaluation["policies"] if one["policy"] == policy))


def next_steps(check: Result, evaluation: Result, verdict: Result, policy: str) -> tuple[list[str], list[str]]:
    """What to do now in words, and the commands for it."""
    words, commands = _steps(check, evaluation, verdict, policy)
    each = check["sessions_of_a_user"]
    if each >= SEVERAL_SESSIONS and not check["earlier"]:
        words.append(
            f"Users come back ({each:.1f} sessions each): what they liked before may tell what they like now. "
            "`--earlier 20` lets it open their sessions; the server then wants it, too, as `session` of the first "
            "request."
        )
        commands.append(f"bcd4rec start {shlex.quote(str(check['log']))} --earlier 20 --out with-earlier")
    return words, commands


def _steps(check: Result, evaluation: Result, verdict: Result, policy: str) -> tuple[list[str], list[str]]:
    policy, log = shlex.quote(policy), shlex.quote(str(check["log"]))
    explore = f"bcd4rec serve {policy} --explore epsilon --epsilon 0.1 --database impressions.sqlite"
    export = "bcd4rec logs export --database impressions.sqlite --out explored.parquet"
    logged = bool(check["propensities"])
    if too_thin(check, evaluation) is not None:
        words = [
            "Come back with more of the same log: a longer period is the surest help. Nothing here is fit to ship."
        ]
        if not logged:
            words.append("Log from now on with which probability each item was shown; a column is enough.")
        return words, [f"bcd4rec start {log}"]
    if verdict.get("verdict") == "ship":
        return ["Serve it to a small share of the sessions first, beside what you have.", OLD], [
            f"bcd4rec serve OLD --canary {policy} --share 0.05",
        ]
    if evaluation["unit"] == "next item":
        words = [
            "Log what was shown and not chosen, too, with the probability of each item; then there is more to learn."
        ]
        return [*words, "Until then, serve the policy with exploration to a small share: that writes such a log."], [
            explore,
            export,
            "bcd4rec start explored.parquet",
        ]
    pair = comparison(evaluation)
    if pair is not None and pair["verdict"] != "better":
        words = ["Do not ship this policy. Smoothed rates are as good, and simpler; train and serve those if anything."]
        return [*words, "More sessions, or a log with exploration, may change this."], [explore, export]
    if logged:
        words = [
            "Ranking held-out slates well is a good sign and no proof. The canary decides: a small share of users."
        ]
        return [*words, OLD], [
            f"bcd4rec serve OLD --canary {policy} --share 0.05",
            f"bcd4rec judge {policy} --log explored.parquet",
        ]
    words = [
        "Ranking held-out slates well is a good sign and no proof: the log does not say with which probability items "
        "were shown, so nothing in it tells what would have happened with others.",
        "Serve the policy to a small share of the sessions with exploration, which logs propensities; then judge.",
    ]
    return words, [explore, export, f"bcd4rec judge {policy} --log explored.parquet"]
