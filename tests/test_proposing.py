"""What is proposed for logs of many kinds: the right columns, the same data sets as by hand, or one sentence."""

import gzip
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd4rec.data.proposals.proposal import LogSample, Proposal
from bcd4rec.data.proposals.proposing import propose
from bcd4rec.data.proposals.rules import response_rules
from bcd4rec.data.proposals.sampling import sample_of
from bcd4rec.data.proposals.words import answer_of, name_score
from bcd4rec.errors import InputError
from test_cli import result

EXAMPLES = Path(__file__).parents[1] / "examples"
CLICKS, SLATES, ITEMS = 7, 3, 11


def rows_of(names: dict[str, str], sessions: int = 12, **more: Any) -> pl.DataFrame:
    """A log with slates; `names` says what it calls things, and only what is named is there."""
    rows = []
    for session in range(sessions):
        for slate in range(SLATES):
            for place in range(4):
                item = (3 * session + 5 * slate + place) % ITEMS
                rows.append(
                    {
                        "session": f"s{session:03}",
                        "user": f"u{session // 2}",
                        "slate": slate,
                        "time": 1_700_000_000 + 1000 * session + 60 * slate,
                        "position": place,
                        "item": f"i{item}",
                        "category": f"c{item % 3}",
                        "propensity": 0.1 + place / 10,
                        "response": ("view", "click")[(session + slate + place) % CLICKS == 0],
                    }
                )
    frame = pl.DataFrame(rows).select(pl.col(role).alias(own) for role, own in names.items())
    return frame.with_columns(**more) if more else frame


def proposed(frame: pl.DataFrame) -> Proposal:
    return propose(LogSample(Path("log.parquet"), "parquet", frame))


NAMED = [
    {"session": "session_id", "item": "item_id", "response": "response", "time": "timestamp"},
    {"session": "visit_id", "item": "sku", "response": "event", "time": "ts", "slate": "page", "position": "place"},
    {"session": "sessionId", "user": "customerId", "item": "productId", "response": "eventType", "time": "createdAt"},
    {"session": "sid", "user": "uid", "item": "article", "response": "action", "time": "t", "category": "topic"},
    {"session": "SESSION", "item": "Track", "response": "Interaction", "time": "Time", "propensity": "pscore"},
    {"session": "basket", "item": "asin", "response": "outcome", "time": "datetime", "slate": "request"},
    {"session": "trip.id", "item": "hotel.id", "response": "feedback", "time": "event_time", "position": "rank"},
    {"session": "visit", "item": "video", "response": "label", "time": "epoch", "propensity": "prob", "slate": "imp"},
]


@pytest.mark.parametrize("names", NAMED, ids=[one["session"] for one in NAMED])
def test_names_are_known(names: dict[str, str]) -> None:
    found = proposed(rows_of(names))
    assert found.map == {"slate": names["time"]} | names  # rows of one moment are one slate
    assert {choice.role for choice in found.choices} >= set(names)
    assert all(choice.reason for choice in found.choices)


def test_a_canonical_name_wins() -> None:
    frame = rows_of({"session": "session_id", "item": "item_id", "response": "response", "time": "timestamp"})
    frame = frame.with_columns(pl.lit("x").alias("sku"), pl.col("item_id").alias("product"))
    assert proposed(frame).map["item"] == "item_id"


def test_users_are_sessions_where_no_visits_are_told_apart() -> None:
    found = proposed(rows_of({"user": "viewer", "item": "video", "response": "event", "time": "ms"}))
    assert found.map["session"] == "viewer"
    assert "user" not in found.map


def test_an_anonymous_user_column_is_left_out() -> None:
    names = {"session": "session_id", "item": "item_id", "response": "response", "time": "timestamp"}
    found = proposed(rows_of(names).with_columns(pl.lit("NA").alias("user_id")))
    assert found.options["ignore"] == ["user_id"]


def test_ids_that_are_partly_numbers_are_texts() -> None:
    names = {"session": "visit", "item": "sku", "response": "event", "time": "ts"}
    frame = rows_of(names).with_columns(pl.col("sku").replace({"i3": "3"}))
    assert proposed(frame).options["string_ids"] is True


def test_unnamed_columns_are_known_by_their_contents() -> None:
    names = {"session": "a", "item": "b", "response": "c"}
    frame = rows_of(names).with_columns(
        pl.datetime_range(
            pl.datetime(2024, 1, 1), interval="1m", eager=False, end=pl.datetime(2024, 1, 1) + pl.duration(minutes=143)
        ).alias("d")
    )
    assert proposed(frame).map == names | {"time": "d"}


def test_open_bandit_has_no_sessions(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "timestamp": [f"2019-11-24 00:{row // 60:02}:{row % 60:02}.5+00:00" for row in range(300)],
            "item_id": [row * 7 % 34 for row in range(300)],
            "position": [1 + row % 3 for row in range(300)],
            "click": [int(row % 13 == 0) for row in range(300)],
            "propensity_score": [1 / 34] * 300,
            "user_feature_0": ["81ce", "03a5", "7bc9"] * 100,
        }
    )
    found = proposed(frame)
    assert found.options["row_sessions"] is True
    assert found.map == {
        "time": "timestamp",
        "position": "position",
        "item": "item_id",
        "propensity": "propensity_score",
        "response": "click",
    }
    log, mapping = tmp_path / "bandit.parquet", tmp_path / "m.toml"
    frame.write_parquet(log)
    mapping.write_text(found.to_toml())
    checked = result("check", log, "--map", mapping)
    assert (checked["sessions"], checked["impressions"], checked["requests"]) == (300, 300, 300)
    assert checked["propensities"] == 100


def test_mind_has_rows_of_marked_items() -> None:
    frame = pl.DataFrame(
        {
            "column1": [str(row) for row in range(1, 31)],
            "column2": [f"U{row // 3}" for row in range(30)],
            "column3": [f"11/15/2019 8:{row:02}:22 AM" for row in range(30)],
            "column4": ["N5 N7", "N9 N3 N1", ""] * 10,
            "column5": [f"N{row}-0 N{row + 1}-1 N{row + 2}-0" for row in range(30)],
        }
    )
    found = propose(LogSample(Path("behaviors.tsv"), "csv", frame, "\t", names_given=True))
    expected = {"session": "column2", "time": "column3", "slate": "column1", "items": "column5", "history": "column4"}
    assert found.map == expected
    assert found.options["mark"] == "-"
    assert found.options["responses"] == {"0": "skip", "1": "click"}
    assert found.options["time_format"] == "%m/%d/%Y %I:%M:%S %p"


def test_trivago_has_a_reader_of_its_own() -> None:
    names = ("user_id", "session_id", "timestamp", "step", "action_type", "reference", "impressions", "prices")
    assert proposed(pl.DataFrame({name: ["1", "2"] for name in names})).options == {"format": "trivago", "cut": "none"}


def test_the_cup_of_2016_has_a_reader_of_its_own(tmp_path: Path) -> None:
    files = {"train-queries.csv": "queryId;sessionId", "train-clicks.csv": "queryId;itemId", "products.csv": "itemId;p"}
    for name, header in files.items():
        (tmp_path / name).write_text(f"{header}\n1;2\n")
    assert propose(sample_of(tmp_path)).options == {"format": "diginetica"}


def test_files_that_are_no_parts_of_one_log(tmp_path: Path) -> None:
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n1,A,B\n")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,4.0,1\n")
    with pytest.raises(InputError, match=r"movies.csv has movieId, title, genres; ratings.csv has userId, movieId"):
        sample_of(tmp_path)
    rows_of(NAMED[0]).write_csv(tmp_path / "a.csv")
    for name in ("movies.csv", "ratings.csv"):
        (tmp_path / name).unlink()
    rows_of(NAMED[0]).with_columns(pl.lit(1).alias("more")).write_csv(tmp_path / "b.csv")
    assert propose(sample_of(tmp_path)).map["session"] == "session_id"


def test_lists_of_sessions_are_sequences() -> None:
    assert proposed(pl.DataFrame({"items": [[1, 2], [3, 4, 5]]})).options == {"format": "sequences", "column": "items"}


ALL = ["visits.csv", "shop.jsonl", "news.tsv.gz", "travel.csv", "feed.csv", "events.csv", "clicks.csv"]


@pytest.mark.parametrize("name", ALL)
def test_examples_are_read_as_by_hand(tmp_path: Path, name: str) -> None:
    own = EXAMPLES / f"{name.split('.')[0]}.toml"
    hand, machine = tmp_path / "hand.toml", tmp_path / "machine.toml"
    hand.write_text("\n".join(line for line in own.read_text().splitlines() if "min_support" not in line))
    machine.write_text(propose(sample_of(EXAMPLES / name)).to_toml("about"))
    hashes = [
        result("prepare", EXAMPLES / name, "--map", one, "--out", tmp_path / one.stem, *sort)["content_hash"]
        for one, sort in ((hand, ()), (machine, ("--sort",)))
    ]
    assert hashes[0] == hashes[1]


def test_values_of_a_response() -> None:
    shop = ["impression", "view", "add_to_cart", "purchase", "bot"]
    wanted = {"impression": "skip", "view": "click", "add_to_cart": "click", "purchase": "buy", "bot": "drop"}
    assert response_rules(shop, slates=True) == (wanted, [])
    assert response_rules(["view", "click"], slates=True)[0]["view"] == "skip"
    assert response_rules(["view", "addtocart", "transaction"], slates=False)[0]["view"] == "click"
    assert response_rules(["shown", "click", "read"], slates=True)[0]["read"] == "organic:click"
    assert response_rules(["shown", "click", "xyzzy"], slates=True)[1] == ["xyzzy"]
    assert [answer_of(one) for one in ("not_clicked", "Clicked", "no click", "???")] == ["skip", "click", "skip", None]


def test_what_is_not_known_is_asked() -> None:
    names = {"session": "visit", "item": "sku", "response": "event", "time": "ts"}
    frame = rows_of(names).with_columns(pl.col("event").replace({"view": "foo"}))
    with pytest.raises(InputError, match="not clear which values are a skip"):
        proposed(frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pl.DataFrame({"a": ["x", "y"]}), "has one column"),
        (pl.DataFrame({"sku": ["a", "b", "a", "b"], "price": [1.5, 2.5, 3.5, 1.5]}), "no column looks like a session"),
        (pl.DataFrame({"price": [1.5, 2.5], "weight": [0.5, 3.5]}), "no column looks like items"),
    ],
)
def test_what_is_no_log_is_refused(frame: pl.DataFrame, words: str) -> None:
    with pytest.raises(InputError, match=words):
        proposed(frame)


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(["skip", "click", "organic:click"]), max_size=4)
)
def test_toml_survives_any_value(rules: dict[str, str]) -> None:
    options = {"delimiter": ";", "map": {"session": "a b"}, "responses": rules}
    if all(character not in json.dumps(rules, ensure_ascii=False) for character in "\x7f"):
        assert tomllib.loads(Proposal(options, ()).to_toml()) == options


@given(st.text(max_size=20))
def test_any_name_has_a_score(name: str) -> None:
    assert all(0 <= name_score(role, name) <= 100 for role in ("session", "item", "time"))


# Logs as people have them: each is proposed, and read as it was meant.


def slates(sessions: int = 40) -> Iterator[tuple[int, datetime, int, int, int]]:
    """session, time, place, item, answer: one in seven of the items was clicked, some of these bought."""
    for session in range(sessions):
        for slate in range(1 + session % 3):
            when = datetime(2025, 5, 1, 8) + timedelta(minutes=17 * session + 2 * slate)
            for place in range(4):
                number = 4 * (3 * session + slate) + place
                yield (
                    session,
                    when,
                    place,
                    (3 * session + 5 * slate + place) % ITEMS,
                    int(number % 7 == 0) + (number % 28 == 0),
                )


def german(path: Path) -> None:
    words = ("angezeigt", "Klick", "Kauf")
    rows = [
        f"S{session};{when:%d.%m.%Y %H:%M:%S};{session}-{when:%M};{place + 1};A{item:03};G{item % 5};{words[answer]}"
        for session, when, place, item, answer in slates()
    ]
    head = "Sitzung;Zeitstempel;Anfrage;Platz;Artikelnummer;Warengruppe;Ereignis"
    path.write_bytes("\n".join([head, *rows, ""]).encode("utf-8-sig"))


def japanese(path: Path) -> None:
    words = ("表示", "クリック", "購入")
    rows = [
        f"s{one},{when.isoformat()},{place},商品{item},{words[answer]}" for one, when, place, item, answer in slates()
    ]
    path.write_text("\n".join(["セッション,日時,位置,商品,反応", *rows, ""]), encoding="utf-8")


def french(path: Path) -> None:
    words = ("vu", "clic", "achat")
    rows = [f"s{one},{when.isoformat()},{place},P{item},{words[answer]}" for one, when, place, item, answer in slates()]
    path.write_text("\n".join(["visite,horodatage,rang,produit,action", *rows, ""]), encoding="utf-8")


def flags(path: Path) -> None:
    rows = [
        f"s{one},{when.replace(tzinfo=UTC).timestamp() * 1000:.0f},{item},{place},{answer > 0}"
        for one, when, place, item, answer in slates()
    ]
    path.write_text("\n".join(["sessionId,time_ms,productId,slot,clicked", *rows, ""]))


def by_slate() -> Iterator[tuple[int, datetime, list[tuple[int, int]]]]:
    for (session, when), rows in itertools.groupby(slates(), key=lambda row: row[:2]):
        yield session, when, [(item, answer) for *_, item, answer in rows]


def wide(path: Path) -> None:
    rows = [
        ",".join(
            [f"s{session}", f"{when:%s}", *(f"i{item}" for item, _ in shown), *(str(int(a > 0)) for _, a in shown)]
        )
        for session, when, shown in by_slate()
    ]
    head = "session,ts,item_1,item_2,item_3,item_4,click_1,click_2,click_3,click_4"
    path.write_text("\n".join([head, *rows, ""]))


def nested(path: Path) -> None:
    rows = [
        {
            "visit": {"id": session, "device": "phone"},
            "at": when.isoformat(),
            "shown": [{"clicked": answer > 0, "item": {"sku": f"i{item}"}} for item, answer in shown],
        }
        for session, when, shown in by_slate()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def cells(path: Path) -> None:
    def quoted(items: list[str]) -> str:
        return '"' + json.dumps(items).replace('"', '""') + '"'

    rows = [
        f"v{session},{when.isoformat()}Z,{quoted([f'p{one}' for one, _ in shown])},"
        f"{quoted([f'p{one}' for one, answer in shown if answer])}"
        for session, when, shown in by_slate()
    ]
    path.write_text("\n".join(["visit,ts,shown,clicked", *rows, ""]))


def ratings(path: Path) -> None:
    rows = [
        f"{session},{item},{(2.5, 4.0, 5.0)[answer]},{1_700_000_000 + 100 * number}"
        for number, (session, _, _, item, answer) in enumerate(slates())
    ]
    path.write_text("\n".join(["userId,movieId,rating,timestamp", *rows, ""]))


def days(path: Path) -> None:
    path.mkdir()
    words = ("impression", "click", "buy")
    for day in range(3):
        rows = [
            f"{session}-{day},{(when + timedelta(days=day)).isoformat()},{item},{words[answer]}"
            for session, when, _, item, answer in slates()
        ]
        text = "\n".join(["session_id,ts,item,event", *rows, ""])
        (path / f"2025-05-0{day + 1}.csv.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize(
    ("write", "name", "mapped", "days_of"),
    [
        (
            german,
            "log.csv",
            {"session": "Sitzung", "item": "Artikelnummer", "slate": "Anfrage", "position": "Platz"},
            1,
        ),
        (japanese, "log.csv", {"session": "セッション", "item": "商品", "response": "反応", "slate": "日時"}, 1),
        (french, "log.csv", {"session": "visite", "item": "produit", "response": "action", "position": "rang"}, 1),
        (flags, "log.csv", {"time": "time_ms", "slate": "time_ms", "item": "productId", "response": "clicked"}, 1),
        (wide, "log.csv", {"session": "session", "items": "item_*", "response": "click_*"}, 1),
        (nested, "log.jsonl", {"session": "visit.id", "items": "shown.item.sku", "response": "shown.clicked"}, 1),
        (cells, "log.csv", {"session": "visit", "items": "shown", "clicked": "clicked"}, 1),
        (ratings, "log.csv", {"session": "userId", "item": "movieId", "response": "rating"}, 0),
        (days, "log", {"session": "session_id", "item": "item", "slate": "ts"}, 3),
    ],
)
def test_logs_as_people_have_them(
    tmp_path: Path, write: Callable[[Path], None], name: str, mapped: dict[str, str], days_of: int
) -> None:
    log = tmp_path / name
    write(log)
    found = propose(sample_of(log))
    assert {role: found.map[role] for role in mapped} == mapped
    (tmp_path / "mapping.toml").write_text(found.to_toml("how it was proposed"), encoding="utf-8")
    told = result("check", log, "--map", tmp_path / "mapping.toml")
    answers = [answer for *_, answer in slates()]
    assert told["impressions"] == max(days_of, 1) * len(answers)
    assert told["responses"]["skip"] == max(days_of, 1) * answers.count(0)
    assert told["requests"] == (len(answers) if not days_of else days_of * len(answers) // 4)
    assert told["items"] == ITEMS


def test_events_of_a_shop_are_looks_carts_and_purchases() -> None:
    rows = [
        (1_700_000_000_000 + 60_000 * n, n // 9, ("view", "view", "addtocart", "transaction")[n % 4], n % 11)
        for n in range(400)
    ]
    found = proposed(pl.DataFrame(rows, schema=["timestamp", "visitorid", "event", "itemid"], orient="row"))
    assert found.map == {"session": "visitorid", "time": "timestamp", "item": "itemid", "response": "event"}
    assert found.options["responses"] == {"view": "click", "addtocart": "click", "transaction": "buy"}


def test_how_long_people_stayed_is_told_as_a_chance() -> None:
    frame = rows_of({"user": "viewer", "item": "video", "time": "ms"}).with_columns(
        watch_seconds=pl.int_range(pl.len())
    )
    assert any("watch_seconds may tell" in doubt for doubt in proposed(frame).doubts)


@pytest.mark.parametrize("only", ["session", "item", "response"])
def test_a_log_of_one_session_one_item_or_no_click_is_proposed_all_the_same(only: str) -> None:
    names = {"session": "session", "item": "item", "response": "event", "time": "ts", "position": "slot"}
    frame = rows_of(names).with_columns(pl.lit("view" if only == "response" else "x").alias(names[only]))
    assert proposed(frame).map[only] == names[only]
