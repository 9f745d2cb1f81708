"""`bcd4rec start` from a file to a page: two of the examples, what is kept, what is refused, what the page says."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest

from bcd4rec.commands._stages import Kept
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.features import id_column
from bcd4rec.data.proposals.telling import sessions_in_words
from bcd4rec.evaluation.start_advice import headline, next_steps, too_thin
from bcd4rec.report.page import render
from bcd4rec.report.start import Story, page_of
from markup import Structure, assert_loads_nothing
from test_cli import fails, result, run, works

EXAMPLES = Path(__file__).parents[1] / "examples"
SECTIONS = ("next", "verdict", "limits", "sessions", "slates", "reading", "commands")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("start") / "shop"
    return out, result("start", EXAMPLES / "shop.jsonl", "--yes", "--out", out)


def test_the_shop_is_taken_to_a_page(shop: tuple[Path, dict[str, Any]]) -> None:
    out, told = shop
    assert told["mapping"]["map"]["items"] == "shown"
    assert told["check"]["sessions"] == 60
    assert told["thin"] is True
    assert told["first"].startswith("This log is too thin")
    assert told["policy"]["method"] == "bcd4rec"
    assert told["page"] == str(out / "start.html")
    page = (out / "start.html").read_text()
    assert_loads_nothing(page)
    found = Structure(page)
    assert {one.get("id") for one in found.all("section")} >= set(SECTIONS)
    assert "results" not in {one.get("id") for one in found.all("section")}  # no table as if it meant something
    assert told["policy"]["rule"]["reason"] in found.text
    assert all(command in found.text for command in told["commands"])
    assert told["check"]["warnings"][0]["message"] in found.text
    assert found.text.count("The policy would show") == 3


def test_its_commands_give_the_same_data_set(shop: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, told = shop
    prepare = told["commands"][1].split()[1:]
    prepare[prepare.index("--out") + 1] = str(tmp_path / "again")
    assert result(*prepare)["content_hash"] == told["dataset"]["content_hash"]
    assert Dataset.load(out / "dataset").content_hash == told["dataset"]["content_hash"]


def test_features_of_items_join(shop: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, told = shop
    shutil.copytree(out, tmp_path / "copy")
    features = ("--items", EXAMPLES / "shop-items.jsonl", "--items-id", "sku")
    with mock.patch("bcd4rec.commands._stages.AGENT", "popular"):
        found = result("start", EXAMPLES / "shop.jsonl", "--yes", "--out", tmp_path / "copy", *features)
    assert found["dataset"]["counts"]["items"] == told["dataset"]["counts"]["items"] + 4
    prepare = shlex.split(found["commands"][1])[1:]
    prepare[prepare.index("--out") + 1] = str(tmp_path / "again")
    assert result(*prepare)["content_hash"] == found["dataset"]["content_hash"]


def test_the_id_of_items_is_found_by_its_values(tmp_path: Path) -> None:
    ids = pl.Series(["a", "b", "c", "d"])
    files = {
        "named.csv": "shown,sku\nx,a\ny,b\n",
        "found.csv": "group,sku\na,a\nb,b\nc,c\nd,x\nd,y\n",  # a group stands twice
        "strange.csv": "group,sku\n1,x\n2,a\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert [id_column(tmp_path / name, "shown", ids) for name in files] == ["shown", "sku", None]
    shop = EXAMPLES / "shop.jsonl"
    with mock.patch("bcd4rec.commands._stages.AGENT", "popular"):
        given = ("--yes", "--items", EXAMPLES / "shop-items.jsonl", "--out", tmp_path / "out")
        assert " --items-id sku " in result("start", shop, *given)["commands"][1]


def test_what_is_done_is_not_done_again(shop: tuple[Path, dict[str, Any]]) -> None:
    out, told = shop
    before = {path.name: path.stat().st_mtime_ns for path in (out / "log.parquet", out / "dataset", out / "policy")}
    again = run("start", EXAMPLES / "shop.jsonl", "--yes", "--out", out, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == told
    assert again.stderr.count("(done before)") >= 5
    assert before == {name: (out / name).stat().st_mtime_ns for name in before}


def test_another_mapping_is_another_run(shop: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, told = shop
    copy, mapping = tmp_path / "copy", tmp_path / "mine.toml"
    shutil.copytree(out, copy)
    mapping.write_text((out / "mapping.toml").read_text().replace('bought = "bought"', ""))
    with mock.patch("bcd4rec.commands._stages.AGENT", "popular"):
        found = result("start", EXAMPLES / "shop.jsonl", "--mapping", mapping, "--out", copy)
    assert "buy" not in found["check"]["responses"] or not found["check"]["responses"]["buy"]
    assert found["dataset"]["content_hash"] != told["dataset"]["content_hash"]
    assert found["policy"]["method"] == "popular"


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    out, given = tmp_path / "out", ("start", EXAMPLES / "news.tsv.gz", "--yes")
    with (
        mock.patch("bcd4rec.commands._stages.AGENT", "ctr"),
        mock.patch("bcd4rec.commands.train.learn", side_effect=KeyboardInterrupt),
        mock.patch("bcd4rec.cli._leave", side_effect=SystemExit(2)),
    ):
        run(*given, "--out", out)
    assert (out / "dataset").is_dir()
    assert not (out / "policy").exists()
    with mock.patch("bcd4rec.commands._stages.AGENT", "ctr"):
        done = works(*given, "--out", out)
    assert "Making a data set of it (done before)" in done.stderr
    assert "Training a policy …" in done.stderr
    page = Structure((out / "start.html").read_text()).text
    assert "N27-0" in page  # why the column is a list of items
    assert "the file has no header".capitalize()[0:20] in page


def test_what_users_liked_earlier_may_open_their_sessions(tmp_path: Path) -> None:
    with mock.patch("bcd4rec.commands._stages.AGENT", "ctr"):
        told = result("start", EXAMPLES / "shop.jsonl", "--yes", "--earlier", 4, "--out", tmp_path / "out")
    assert told["dataset"]["counts"]["organic"] > 0
    assert " --earlier 4 " in told["commands"][1]
    data = Dataset.load(tmp_path / "out" / "dataset")
    assert data.manifest["config"]["earlier"] == 4
    users = data.sessions.group_by("user_id").agg(pl.col("split").replace("validation", "train").n_unique())
    assert users["split"].max() == 1  # nobody is learned from and judged on


def test_clicks_only_are_no_ranking_of_policies(tmp_path: Path) -> None:
    found = result("start", EXAMPLES / "clicks.csv", "--yes", "--out", tmp_path / "out")
    assert found["policy"]["method"] in ("bcd4rec", "stan")  # which validation sessions choose
    assert "passed over" in found["first"] or found["thin"]


def test_without_a_terminal_somebody_must_say_yes(tmp_path: Path) -> None:
    told = fails("start", EXAMPLES / "shop.jsonl", "--out", tmp_path / "out")
    assert "no terminal" in told
    assert "session=visit" in told
    assert not (tmp_path / "out").exists()


def test_a_no_on_the_terminal_ends_it(tmp_path: Path) -> None:
    with mock.patch("sys.stdin") as stdin, mock.patch("builtins.input", return_value="n"):
        stdin.isatty.return_value = True
        done = run("start", EXAMPLES / "shop.jsonl", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "In session v000, on 2024-03-01 at 08:00 six items were shown" in done.stderr
    assert "Nothing was learned" in done.stderr
    assert (tmp_path / "out" / "mapping.toml").is_file()
    assert not (tmp_path / "out" / "dataset").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"session,item,response\n", "no rows"),
        ("one.csv", b"item\na\nb\n", "has one column"),
        ("nobody.csv", b"sku,price,event\na,1.5,view\nb,2.5,click\na,2.5,view\nb,3,view\n", "looks like a session"),
        ("noise.bin", bytes(range(256)) * 40, "not"),
        ("zip.csv", b"PK\x03\x04" + bytes(100), "zip archive"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in fails("start", tmp_path / name, "--yes", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    assert "something else" in fails("start", EXAMPLES / "shop.jsonl", "--yes", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_sessions_in_words(tmp_path: Path) -> None:
    rows = [
        {"session_id": "v017", "request_id": slate, "item_id": f"i{place}", "response": answer, "organic": False}
        for slate, answers in enumerate((("skip", "skip", "click", "skip"), ("skip", "skip"), ("buy",), ("skip",)))
        for place, answer in enumerate(answers)
    ]
    log = tmp_path / "log.parquet"
    pl.DataFrame(rows).write_parquet(log)
    assert sessions_in_words(log) == [
        "In session v017, four items were shown, the third (i2) was clicked; then two items were shown, none was "
        "clicked; then i0 was shown and bought; one more slate followed."
    ]


def test_places_in_words(tmp_path: Path) -> None:
    rows = [
        {"session_id": 1, "request_id": "a", "item_id": f"i{place}", "response": ("skip", "click")[place in (20, 21)]}
        for place in range(23)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    (told,) = sessions_in_words(tmp_path / "log.parquet")
    assert "the 21st (i20) was clicked, the 22nd (i21) was clicked" in told


def check_of(**more: Any) -> dict[str, Any]:
    responses = {"skip": 9000, "click": 1000}
    found = {"log": "log.csv", "responses": responses, "sessions": 2000, "impressions": 10_000, "requests": 2500}
    return (
        found
        | {
            "items": 50,
            "organic": 0,
            "propensities": 0.0,
            "warnings": [],
            "days": None,
            "sessions_of_a_user": 0,
            "earlier": 0,
        }
        | more
    )


def evaluation_of(verdict: str = "better", **more: Any) -> dict[str, Any]:
    policies = [
        {"policy": name, "auc": value, "auc_low": value - 0.02, "auc_high": value + 0.02}
        for name, value in (("bcd4rec", 0.71), ("ctr", 0.66), ("logged order", 0.55))
    ]
    pair = {"first": "bcd4rec", "second": "ctr", "verdict": verdict, "sentence": "bcd4rec is so than ctr."}
    found = {"unit": "slate", "cases": 400, "sessions": 300, "measures": ["auc"], "method": "bcd4rec"}
    return found | {"policies": policies, "comparisons": [pair]} | more


@pytest.mark.parametrize(
    ("check", "evaluation", "words"),
    [
        (check_of(), evaluation_of(), None),
        (check_of(sessions=7), evaluation_of(), "7 sessions"),
        (check_of(responses={"skip": 9980, "click": 20}), evaluation_of(), "20 of 10,000"),
        (check_of(), evaluation_of(cases=12), "12 slates"),
        (check_of(), evaluation_of(sessions=4), "4 tell something"),
        (check_of(), {"problem": "no slate was mixed."}, "no slate was mixed"),
    ],
)
def test_thin_logs(check: dict[str, Any], evaluation: dict[str, Any], words: str | None) -> None:
    found = too_thin(check, evaluation)
    assert (found is None) if words is None else (found is not None and words in found)
    assert (headline(check, evaluation, {}) == found) == (words is not None)


def test_the_first_sentence_is_the_verdict() -> None:
    check = check_of()
    assert headline(check, evaluation_of("better"), {}).startswith("There seems to be a better policy in this log")
    behind = evaluation_of()
    behind["comparisons"].append({"first": "bcd4rec", "second": "logged order", "verdict": "worse", "sentence": "…"})
    assert headline(check, behind, {}).startswith("It cannot be told whether")
    assert "the order in which the log showed items does better (0.550)" in headline(check, behind, {})
    assert headline(check, evaluation_of("no better"), {}).startswith("No better policy was found")
    assert headline(check, evaluation_of("worse"), {}).startswith("Do not use")
    assert "say ship" in headline(check, evaluation_of(), {"verdict": "ship", "reason": "it earns more."})
    assert "--explore epsilon" in " ".join(next_steps(check, evaluation_of(), {}, "p")[1])
    assert "--canary p" in " ".join(next_steps(check_of(propensities=100.0), evaluation_of(), {}, "p")[1])


@pytest.mark.parametrize(("each", "earlier", "told"), [(1.4, 0, False), (1.5, 0, True), (9.0, 5, False)])
def test_users_that_come_back_are_worth_a_try(each: float, earlier: int, told: bool) -> None:
    words, commands = next_steps(check_of(sessions_of_a_user=each, earlier=earlier), evaluation_of(), {}, "p")
    assert any("Users come back (1.5 sessions each)" in one for one in words) == told
    assert any("--earlier 20" in one for one in commands) == told


def test_what_was_chosen_is_not_said_to_have_been_shown(tmp_path: Path) -> None:
    rows = [{"session_id": 1, "step": step, "item_id": f"i{step}", "response": "click"} for step in range(5)]
    log = tmp_path / "log.parquet"
    pl.DataFrame(rows).write_parquet(log)
    assert sessions_in_words(log) == [
        "In session 1, i0 was clicked; then i1 was clicked; then i2 was clicked; two more followed."
    ]


def test_the_page_of_a_log_that_tells_something() -> None:
    sessions = [{"session": "<v1>", "slates": [{"shown": [["a", "click"], ["b", "skip"]], "policy": ["b", "c"]}]}]
    reading = {"read": {"rows": 10_200}, "kept": {"impressions": 10_000}, "dropped": {"rows that stand once more": 200}}
    reading |= {"remarks": ["a remark"]}
    trained = {"method": "bcd4rec", "rule": {"words": "Slates of the best.", "reason": "the log says so"}}
    story = Story(
        *("log.csv", "out/policy", [("session", "visit", "by its name")], ["A doubt."], ["In session 1, …."]),
        *(check_of(), reading, {"warnings": []}, trained, evaluation_of(), {}, sessions, ["bcd4rec check log.csv"]),
    )
    page = render(page_of(story))
    assert_loads_nothing(page)
    found = Structure(page)
    assert {one.get("id") for one in found.all("section")} >= {*SECTIONS, "results"}
    assert "0.710" in found.text
    assert "Session <v1>" in found.text
    assert "no propensities: no estimate" in found.text
    assert "Read: 10,200 rows. Kept: 10,000 impressions. Not kept: 200 rows that stand once more." in found.text
    assert "A remark." in found.text
    assert "10,000 in 2,500 slates" in found.text
    clicks = replace(story, check=check_of(responses={"click": 10_000}))
    assert "10,000 (what was shown is not known)" in Structure(render(page_of(clicks))).text
    assert "10,000 in 2,500 slates" not in Structure(render(page_of(clicks))).text
    judged = replace(story, check=check_of(propensities=100.0), verdict={"verdict": "cannot tell", "reason": "Few."})
    assert "Verdict: cannot tell. Few." in Structure(render(page_of(judged))).text


def test_propensities_are_judged_where_a_judge_is_at_hand(tmp_path: Path) -> None:
    verdict = mock.Mock()
    verdict.to_json.return_value = {"verdict": "cannot tell", "reason": "Too few sessions.", "notes": ["A note."]}
    judge = mock.Mock(return_value=verdict)
    with (
        mock.patch("bcd4rec.commands._stages.AGENT", "ctr"),
        mock.patch("bcd4rec.commands._stages._judge", return_value=judge),
    ):
        told = result("start", EXAMPLES / "feed.csv", "--yes", "--out", tmp_path / "out")
    assert told["verdict"]["reason"] == "Too few sessions."
    assert judge.call_args.args[0] == tmp_path / "out" / "policy"
    assert judge.call_args.kwargs == {"split": "test", "seed": 0}
    assert "A note." in (tmp_path / "out" / "start.html").read_text()


def test_what_a_stage_gave_counts_until_it_is_begun_again(tmp_path: Path) -> None:
    Kept(tmp_path).keep("train", "b", {"x": 1})
    assert Kept(tmp_path).result("train", "b", None) == {"x": 1}
    assert Kept(tmp_path).result("train", "a", None) is None
    assert Kept(tmp_path).result("train", "b", tmp_path / "gone") is None
    Kept(tmp_path).begin("train", "b")
    assert Kept(tmp_path).result("train", "b", None) is None
    assert Kept(tmp_path).key("train") == "b"
