"""Small logs in the forms in which people and public data sets keep them, each with the mapping that is right."""

import gzip
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
ITEMS, USERS, START = 40, 24, 1_650_000_000
CATEGORY = np.arange(ITEMS) % 5


@dataclass(frozen=True)
class Slate:
    """What somebody was shown at a time, and what she liked of it."""

    user: int
    visit: int
    number: int  # of the slate in the visit
    time: int
    items: list[int]
    liked: list[bool]

    @property
    def chosen(self) -> list[int]:
        return [item for item, liked in zip(self.items, self.liked, strict=True) if liked]

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


def slates(seed: int, size: int = 5, visits: int = 120, rate: float = 0.25) -> list[Slate]:
    """Visits of one to four slates, in the order of time; users come several times."""
    rng = np.random.default_rng(seed)
    found = []
    for visit in range(visits):
        user, time = int(rng.integers(0, USERS)), START + 7_000 * visit
        for number in range(int(rng.integers(1, 5))):
            items = [int(item) for item in rng.permutation(ITEMS)[:size]]
            found.append(Slate(user, visit, number, time, items, [bool(one) for one in rng.random(size) < rate]))
            time += int(rng.integers(20, 90))
    return found


def as_csv(path: Path, rows: list[Row], separator: str = ",", header: bool = True, bom: bool = False) -> None:
    def text(value: Any) -> str:
        plain = "" if value is None else str(value)
        return f'"{plain}"' if separator in plain else plain

    lines = [separator.join(rows[0])] if header else []
    lines += [separator.join(text(value) for value in row.values()) for row in rows]
    path.write_text(("\ufeff" if bom else "") + "\n".join(lines) + "\n", encoding="utf-8")


def as_lines(path: Path, rows: list[Row]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


Maker = Callable[[Path], Path]
FORMATS: dict[str, tuple[Maker, Row]] = {}


def log(name: str, **expected: Any) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Registers a maker of the file `name`; `expected` are the options of its mapping, `map` without its reasons."""

    def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
        def made(folder: Path) -> Path:
            make(folder / name)
            return folder / name

        FORMATS[make.__name__] = made, expected
        return make

    return register


@log(
    "events.csv",
    map={"session": "visitorid", "time": "timestamp", "item": "itemid", "response": "event"},
    responses={"view": "click", "addtocart": "click", "transaction": "buy"},
    time_unit="ms",
)
def retail_events(path: Path) -> None:
    rows = []
    for slate in slates(1):
        for item in slate.chosen:
            row = {"timestamp": slate.time * 1000, "visitorid": 257_000 + slate.user, "event": "view", "itemid": item}
            rows.append(row | {"transactionid": None})
            if item % 4 == 0:
                rows.append(rows[-1] | {"event": "addtocart", "timestamp": slate.time * 1000 + 999})
            if item % 8 == 0:
                rows.append(rows[-1] | {"event": "transaction", "transactionid": len(rows)})
    as_csv(path, rows)


@log(
    "sessions.jsonl",
    nested="events",
    map={"session": "session", "time": "events.ts", "item": "events.aid", "response": "events.type"},
    responses={"clicks": "click", "carts": "click", "orders": "buy"},
    time_unit="ms",
)
def sessions_of_events(path: Path) -> None:
    sessions: dict[int, list[Row]] = {}
    for slate in slates(2):
        for place, item in enumerate(slate.chosen):
            kind = "orders" if item % 9 == 0 else "carts" if item % 5 == 0 else "clicks"
            event = {"aid": 59_000 + item, "ts": 1000 * slate.time + place, "type": kind}
            sessions.setdefault(slate.visit, []).append(event)
    as_lines(path, [{"session": session, "events": events} for session, events in sessions.items()])


@log(
    "behaviors.jsonl",
    map={
        **{"session": "session_id", "user": "user_id", "time": "impression_time", "slate": "impression_id"},
        **{"items": "article_ids_inview", "clicked": "article_ids_clicked"},
    },
)
def news_in_view(path: Path) -> None:
    rows = []
    for number, slate in enumerate(slates(3, 8)):
        row: Row = {"impression_id": 149_474 + number, "article_id": None, "impression_time": slate.at.isoformat()}
        row |= {"read_time": 3.5 * number, "scroll_percentage": None, "device_type": 1 + number % 2}
        row |= {"article_ids_inview": [9_000 + item for item in slate.items]}
        row |= {"article_ids_clicked": [9_000 + item for item in slate.chosen], "user_id": 22_000 + slate.user}
        rows.append(row | {"is_subscriber": slate.user % 2 == 0, "session_id": slate.visit, "next_read_time": 8.0})
    as_lines(path, rows)


@log(
    "videos.csv",
    map={"session": "user_id", "time": "time_ms", "item": "video_id", "response": "is_click"},
    responses={"0": "skip", "1": "click"},
    time_unit="ms",
)
def short_videos(path: Path) -> None:
    rows = []
    for slate in slates(4):
        for place, item in enumerate(slate.items):
            click = int(slate.liked[place])
            row = {"user_id": slate.user, "video_id": item, "date": f"{slate.at:%Y%m%d}", "hourmin": f"{slate.at:%H}00"}
            row |= {"time_ms": 1000 * slate.time + 7000 * place, "is_click": click, "is_like": int(click and item < 3)}
            row |= {"is_hate": 0, "long_view": int(click and item % 2), "play_time_ms": 80 * item, "tab": place % 2}
            rows.append(row)
    as_csv(path, sorted(rows, key=lambda row: (row["user_id"], row["time_ms"])))


@log(
    "clicks.dat",
    columns=["column1", "column2", "column3", "column4"],
    map={"session": "column1", "time": "column2", "item": "column3"},
    every="click",
)
def clicks_without_header(path: Path) -> None:
    rows = [
        {"a": slate.visit, "b": f"{slate.at:%Y-%m-%dT%H:%M:%S}.277Z", "c": 214_500_000 + item, "d": "0"}
        for slate in slates(5)
        for item in slate.chosen
    ]
    as_csv(path, rows, header=False)


@log(
    "behavior.csv",
    columns=["column1", "column2", "column3", "column4", "column5"],
    map={"session": "column1", "time": "column5", "item": "column2", "response": "column4"},
    responses={"pv": "click", "fav": "click", "cart": "click", "buy": "buy"},
)
def behaviours_without_header(path: Path) -> None:
    rows = []
    for slate in slates(6):
        for item in slate.chosen:
            kind = "buy" if item % 9 == 0 else "cart" if item % 5 == 0 else "fav" if item % 7 == 0 else "pv"
            rows.append({"a": slate.user, "b": 2_268_318 + item, "c": 4000 + item % 5, "d": kind, "e": slate.time})
    as_csv(path, sorted(rows, key=lambda row: (row["a"], row["e"])), header=False)


@log(
    "raw_sample.csv",
    map={"session": "user", "time": "time_stamp", "item": "adgroup_id", "response": "clk"},
    responses={"0": "skip", "1": "click"},
)
def advertisements(path: Path) -> None:
    rows = []
    for slate in slates(8, 1, 400):
        row = {"user": slate.user, "time_stamp": slate.time, "adgroup_id": slate.items[0]}
        row |= {"pid": f"4305{slate.number % 2}8_1007", "nonclk": int(not slate.liked[0]), "clk": int(slate.liked[0])}
        rows.append(row)
    as_csv(path, rows)


@log(
    "clicks_train.csv",
    map={"session": "display_id", "slate": "display_id", "item": "ad_id", "response": "clicked"},
    responses={"0": "skip", "1": "click"},
)
def displays_without_time(path: Path) -> None:
    displays = [slate for slate in slates(9) if slate.chosen]
    as_csv(
        path,
        [
            {"display_id": number, "ad_id": 42_000 + item, "clicked": int(item == slate.chosen[0])}
            for number, slate in enumerate(displays)
            for item in slate.items
        ],
    )


@log(
    "hotels.csv",
    map={
        **{"session": "srch_id", "slate": "srch_id", "time": "date_time", "request_category": "srch_destination_id"},
        **{"position": "position", "item": "prop_id", "clicked": "click_bool", "bought": "booking_bool"},
    },
)
def hotel_searches(path: Path) -> None:
    rows = []
    for number, slate in enumerate(slates(10, 7)):
        for place, item in enumerate(slate.items):
            booked = slate.liked[place] and item % 3 == 0
            row = {"srch_id": number, "date_time": f"{slate.at:%Y-%m-%d %H:%M:%S}", "site_id": 12}
            row |= {"visitor_hist_starrating": "NULL", "prop_country_id": 219, "prop_id": 890 + item}
            row |= {"prop_starrating": 2 + item % 4, "prop_brand_bool": item % 2, "position": place + 1}
            row |= {"price_usd": 50.5 + item, "srch_destination_id": 23_246 + number % 6, "random_bool": number % 2}
            row |= {"click_bool": int(slate.liked[place]), "gross_bookings_usd": 99.5 if booked else "NULL"}
            rows.append(row | {"booking_bool": int(booked)})
    as_csv(path, rows)


@log(
    "ratings.csv",
    map={"session": "userId", "time": "timestamp", "item": "movieId", "response": "rating"},
    responses={f"{one / 2}": "click" if one >= 8 else "skip" for one in range(1, 11)},
)
def ratings(path: Path) -> None:
    rows = [
        {
            "userId": slate.user,
            "movieId": item,
            "rating": (1 + (item + slate.user) % 10) / 2,
            "timestamp": slate.time + n,
        }
        for slate in slates(11)
        for n, item in enumerate(slate.items)
    ]
    as_csv(path, rows)


@log(
    "browsing.csv",
    drop_without_item=True,
    map={
        **{"session": "session_id_hash", "time": "server_timestamp_epoch_ms", "item": "product_sku_hash"},
        **{"response": "product_action"},
    },
    responses={"detail": "click", "add": "click", "purchase": "buy", "remove": "drop"},
    time_unit="ms",
)
def browsing(path: Path) -> None:
    rows = []
    for slate in slates(12):
        row: Row = {"session_id_hash": f"{slate.visit:08x}s", "event_type": "pageview", "product_action": None}
        row |= {"product_sku_hash": None, "server_timestamp_epoch_ms": 1000 * slate.time, "hashed_url": "ab12"}
        rows.append(row)
        for item in slate.chosen:
            action = "purchase" if item % 9 == 0 else "add" if item % 5 == 0 else "remove" if item == 7 else "detail"
            more = {"event_type": "event_product", "product_action": action, "product_sku_hash": f"{item:04x}p"}
            rows.append(row | more | {"server_timestamp_epoch_ms": 1000 * slate.time + 5 + item})
    as_csv(path, rows)


@log(
    "searches.csv",
    map={
        **{"session": "session_id_hash", "time": "server_timestamp_epoch_ms"},
        **{"items": "product_skus_hash", "clicked": "clicked_skus_hash"},
    },
    time_unit="ms",
)
def searches_with_lists(path: Path) -> None:
    rows = []
    for slate in slates(13, 8):
        row = {"session_id_hash": f"{slate.visit:08x}s", "query_vector": "[0.25, -0.5, 0.125]"}
        row |= {"clicked_skus_hash": [f"{item:04x}p" for item in slate.chosen] or None}
        row |= {"product_skus_hash": [f"{item:04x}p" for item in slate.items]}
        rows.append(row | {"server_timestamp_epoch_ms": 1000 * slate.time})
    as_csv(path, rows)


@log(
    "cosmetics.csv",
    map={
        **{"session": "user_session", "user": "user_id", "time": "event_time", "item": "product_id"},
        **{"category": "category_id", "response": "event_type"},
    },
    responses={"view": "click", "cart": "click", "purchase": "buy"},
    time_format="%Y-%m-%d %H:%M:%S UTC",
)
def shop_events(path: Path) -> None:
    rows = []
    for slate in slates(14):
        for item in slate.chosen:
            kind = "purchase" if item % 9 == 0 else "cart" if item % 5 == 0 else "view"
            row = {
                "event_time": f"{slate.at:%Y-%m-%d %H:%M:%S} UTC",
                "event_type": kind,
                "product_id": 3_900_000 + item,
            }
            row |= {"category_id": 2053013552326770905 + int(CATEGORY[item]), "category_code": None, "brand": "b"}
            rows.append(
                row | {"price": 1.5, "user_id": 535 + slate.user, "user_session": str(uuid.UUID(int=slate.visit))}
            )
    as_csv(path, rows)


@log(
    "listening.csv",
    map={"session": "session_id", "step": "session_position", "item": "track_id_clean", "response": "not_skipped"},
    responses={"true": "click", "false": "skip"},
)
def listening(path: Path) -> None:
    rows: list[Row] = []
    for slate in slates(15, 12):
        if slate.number:
            continue
        for place, item in enumerate(slate.items):
            liked = slate.liked[place]
            row: Row = {"session_id": f"0_{slate.visit:05}", "session_position": place + 1, "session_length": 12}
            row |= {"track_id_clean": f"t_{item}", "skip_1": str(not liked and item % 2 == 0).lower()}
            row |= {"skip_2": str(not liked).lower(), "not_skipped": str(liked).lower(), "premium": "true"}
            rows.append(row | {"date": "2018-07-15", "hour_of_day": 16, "context_type": "charts"})
    as_csv(path, rows)


@log(
    "plays.tsv",
    columns=["column1", "column2", "column3", "column4", "column5", "column6"],
    map={"session": "column1", "time": "column2", "item": "column5"},
    every="click",
)
def plays_without_header(path: Path) -> None:
    rows = []
    for slate in slates(16):
        for item in slate.chosen:
            artist = int(CATEGORY[item])
            row = {"a": f"user_{slate.user:06}", "b": f"{slate.at:%Y-%m-%dT%H:%M:%SZ}", "c": str(uuid.UUID(int=artist))}
            rows.append(
                row | {"d": f"Artist {artist}", "e": str(uuid.UUID(int=9 + item)), "f": f"Song {item % 31} live"}
            )
    as_csv(path, sorted(rows, key=lambda row: (row["a"], row["b"])), "\t", header=False)


@log(
    "reviews.json.gz",
    map={"session": "reviewerID", "time": "unixReviewTime", "item": "asin", "response": "overall"},
    responses={"1.0": "skip", "2.0": "skip", "3.0": "skip", "4.0": "click", "5.0": "click"},
)
def reviews(path: Path) -> None:
    rows = []
    for slate in slates(17):
        for item in slate.items:
            row: Row = {"reviewerID": f"A{slate.user}", "asin": f"B{item:04}", "reviewerName": "x y", "helpful": [0, 1]}
            row |= {"reviewText": "a nice thing", "overall": 1.0 + (item + slate.user) % 5, "summary": "good"}
            rows.append(row | {"unixReviewTime": slate.time + item, "reviewTime": "09 13, 2009"})
    as_lines(path, rows)


STREAM = {"product_impression": "skip", "product_click": "click", "order_completed": "buy"}


@log(
    "stream.csv",
    attribution=True,
    map={
        **{"session": "session_id", "user": "anonymous_id", "time": "timestamp", "slate": "timestamp"},
        **{"position": "list_position", "item": "product_id", "response": "event"},
    },
    responses=STREAM,
)
def stream_of_events(path: Path) -> None:
    rows = []
    for slate in slates(18, 6):
        row = {"event_id": f"e{len(rows)}", "anonymous_id": f"anon-{slate.user}", "session_id": f"s{slate.visit}"}
        for place, item in enumerate(slate.items):
            more = {"timestamp": f"{slate.at:%Y-%m-%dT%H:%M:%SZ}", "event": "product_impression"}
            rows.append(row | more | {"product_id": f"P{item}", "list_position": place + 1})
        for item in slate.chosen:
            more = {"timestamp": f"{slate.at:%Y-%m-%dT%H:%M}:59Z", "event": "product_click", "product_id": f"P{item}"}
            rows.append(row | more | {"list_position": None})
            if item % 6 == 0:
                rows.append(rows[-1] | {"event": "order_completed"})
    as_csv(path, sorted(rows, key=lambda row: row["timestamp"]))


@log(
    "stream.jsonl",
    attribution=True,
    map={
        **{"session": "uid", "time": "ts", "slate": "request_id", "position": "slot", "item": "item"},
        **{"response": "type"},
    },
    responses={"impression": "skip", "click": "click"},
    time_unit="ms",
)
def stream_with_requests(path: Path) -> None:
    rows = []
    for slate in slates(31):
        row = {"ts": 1000 * slate.time, "type": "impression", "request_id": f"{slate.visit}-{slate.number}"}
        shown = [row | {"uid": slate.user, "item": f"x{item}", "slot": place} for place, item in enumerate(slate.items)]
        clicks = [one | {"ts": one["ts"] + 2500, "type": "click"} for one in shown if slate.liked[one["slot"]]]
        rows += [*shown, *clicks]
    as_lines(path, rows)


@log(
    "analytics.jsonl",
    attribution=True,
    map={
        **{"session": "ga_session_id", "time": "event_timestamp", "items": "items.item_id"},
        **{"category": "items.item_category", "response": "event_name"},
    },
    responses={"view_item_list": "skip", "select_item": "click", "add_to_cart": "click", "purchase": "buy"},
    time_unit="us",
)
def analytics(path: Path) -> None:
    def things(items: list[int]) -> list[Row]:
        return [
            {
                "item_id": f"SKU_{item}",
                "item_name": f"Thing {item}",
                "item_category": f"C{CATEGORY[item]}",
                "price": 9.5,
            }
            for item in items
        ]

    def events(slate: Slate) -> Iterator[tuple[str, list[int]]]:
        if not slate.number:
            yield "session_start", []
        yield "view_item_list", slate.items
        for item in slate.chosen:
            yield "select_item", [item]
            if item % 4 == 0:
                yield "add_to_cart", [item]
            if item % 8 == 0:
                yield "purchase", [item]

    rows = []
    for slate in slates(19):
        for place, (name, items) in enumerate(events(slate)):
            row = {"event_date": f"{slate.at:%Y%m%d}", "user_pseudo_id": f"{slate.user}.{7 * slate.user}"}
            row |= {"ga_session_id": 1_600_000 + slate.visit, "event_name": name, "items": things(items)}
            rows.append(row | {"event_timestamp": 10**6 * slate.time + place})
    as_lines(path, rows)


@log(
    "flags.csv",
    map={
        **{"session": "visitor", "time": "shown_at", "slate": "request_id", "position": "rank", "item": "product"},
        **{"category": "dept", "clicked": "was_clicked", "bought": "was_purchased"},
    },
)
def yes_and_no(path: Path) -> None:
    rows = []
    for slate in slates(20):
        for place, item in enumerate(slate.items):
            liked = slate.liked[place]
            row = {"request_id": f"r{slate.visit}-{slate.number}", "visitor": f"v{slate.user}", "rank": place}
            row |= {"shown_at": f"{slate.at:%Y-%m-%d %H:%M:%S}", "product": f"p{item}", "dept": f"d{CATEGORY[item]}"}
            rows.append(row | {"was_clicked": liked, "was_purchased": liked and item % 4 == 0})
    as_csv(path, rows)


@log(
    "server.jsonl",
    map={
        **{"session": "user.visit", "user": "user.id", "time": "ts", "slate": "request.id"},
        **{"items": "results.id", "clicked": "clicks"},
    },
)
def server_log(path: Path) -> None:
    rows = []
    for slate in slates(21):
        results = [{"id": f"i{item}", "pos": place, "score": 0.5} for place, item in enumerate(slate.items)]
        row: Row = {"ts": slate.at.isoformat(), "request": {"id": f"{slate.visit}-{slate.number}", "page": "home"}}
        row |= {"user": {"id": f"u{slate.user}", "visit": f"v{slate.visit}"}, "results": results}
        rows.append(row | {"clicks": [f"i{item}" for item in slate.chosen]})
    as_lines(path, rows)


@log(
    "frame.csv",
    whole_ids=True,
    map={"session": "session", "time": "ts", "slate": "ts", "position": "rank", "item": "item", "response": "clicked"},
    responses={"0.0": "skip", "1.0": "click"},
)
def whole_numbers_as_fractions(path: Path) -> None:
    rows: list[Row] = []
    for slate in slates(22):
        for place, item in enumerate(slate.items):
            row: Row = {"": len(rows), "session": float(slate.visit), "item": float(item)}
            rows.append(row | {"clicked": float(slate.liked[place]), "ts": float(slate.time), "rank": place})
    as_csv(path, rows)


@log(
    "export.csv",
    delimiter=";",
    map={
        **{"session": "Sitzung", "time": "Zeitpunkt", "slate": "Zeitpunkt", "position": "Platz"},
        **{"item": "Artikelnummer", "category": "Warengruppe", "response": "Reaktion"},
    },
    responses={"angezeigt": "skip", "geklickt": "click", "gekauft": "buy"},
    time_format="%d.%m.%Y %H:%M:%S",
)
def german_export(path: Path) -> None:
    rows = []
    for slate in slates(23):
        for place, item in enumerate(slate.items):
            said = "angezeigt" if not slate.liked[place] else "gekauft" if item % 5 == 0 else "geklickt"
            row = {"Sitzung": f"S{slate.visit}", "Zeitpunkt": f"{slate.at:%d.%m.%Y %H:%M:%S}", "Platz": place + 1}
            row |= {"Artikelnummer": 4711 + item, "Warengruppe": f"Gruppe {CATEGORY[item]}", "Preis": f"{item},99"}
            rows.append(row | {"Reaktion": said})
    as_csv(path, rows, ";", bom=True)


@log(
    "banners.csv",
    map={
        **{"session": "customer_id", "time": "sent_at", "item": "banner", "propensity": "prob"},
        **{"response": "opened"},
    },
    responses={"0": "skip", "1": "click"},
)
def banners(path: Path) -> None:
    rows = []
    for slate in slates(24, 1, 300):
        row = {"customer_id": slate.user, "sent_at": slate.time, "banner": f"B{slate.items[0] % 12}", "prob": 1 / 12}
        rows.append(row | {"opened": int(slate.liked[0])})
    as_csv(path, rows)


@log(
    "tables",
    attribution=True,
    map={
        **{"session": "session_id", "user": "user_id", "time": "timestamp", "slate": "impression_id"},
        **{"position": "position", "item": "item_id"},
    },
    files={"impressions": "skip", "clicks": "click", "purchases": "buy"},
)
def two_tables(path: Path) -> None:
    path.mkdir()
    shown, clicks = [], []
    for slate in slates(25):
        for place, item in enumerate(slate.items):
            row = {"impression_id": f"{slate.visit}-{slate.number}", "user_id": slate.user, "session_id": slate.visit}
            shown.append(row | {"timestamp": slate.time, "item_id": item, "position": place})
            if slate.liked[place]:
                clicks.append(row | {"timestamp": slate.time + 3, "item_id": item})
    as_csv(path / "impressions.csv", shown)
    as_csv(path / "clicks.csv", clicks)
    as_csv(path / "purchases.csv", clicks[::5])


@log(
    "baskets.csv",
    map={"session": "order_id", "step": "add_to_cart_order", "item": "product_id"},
    every="click",
)
def baskets(path: Path) -> None:
    rows = [
        {"order_id": number, "product_id": item, "add_to_cart_order": place + 1, "reordered": (item + place) % 2}
        for number, slate in enumerate(slates(26))
        for place, item in enumerate(slate.items)
    ]
    as_csv(path, rows)


@log(
    "feed.csv",
    row_order=True,
    map={"session": "user_id", "item": "item_id", "category": "video_category", "response": "click"},
    responses={"0": "skip", "1": "click"},
)
def feed_without_time(path: Path) -> None:
    rows = []
    for slate in slates(28):
        for place, item in enumerate(slate.items):
            row = {"user_id": slate.user, "item_id": item, "click": int(slate.liked[place]), "follow": 0}
            rows.append(row | {"video_category": int(CATEGORY[item]), "gender": 1, "age": slate.user % 7})
    as_csv(path, rows)


@log(
    "websearch.tsv",
    map={
        **{"session": "SessionID", "time": "QueryTime", "slate": "QueryID", "request_category": "Query"},
        **{"position": "Rank", "item": "DocID", "response": "Click"},
    },
    responses={"0": "skip", "1": "click"},
)
def web_search(path: Path) -> None:
    rows = []
    for slate in slates(29, 7):
        for place, item in enumerate(slate.items):
            row = {"QueryID": f"{slate.visit}_{slate.number}", "Query": f"query {slate.visit % 9}"}
            row |= {"SessionID": slate.visit, "QueryTime": slate.time, "DocID": f"D{item}", "Rank": place + 1}
            rows.append(row | {"Click": int(slate.liked[place]), "DwellTime": 20 * slate.liked[place]})
    as_csv(path, rows, "\t")


@log(
    "visits.csv",
    map={
        **{"session": "customer+visit_number", "user": "customer", "time": "time", "slate": "time"},
        **{"position": "pos", "item": "item", "response": "event"},
    },
    responses={"impression": "skip", "click": "click"},
)
def visits_of_customers(path: Path) -> None:
    rows, last, count = [], dict[int, int](), dict[int, int]()
    for slate in slates(30):
        if last.get(slate.user) != slate.visit:
            last[slate.user] = slate.visit
            count[slate.user] = count.get(slate.user, 0) + 1
        for place, item in enumerate(slate.items):
            row = {"customer": f"c{slate.user}", "visit_number": count[slate.user], "time": slate.time}
            rows.append(row | {"item": f"x{item}", "pos": place, "event": ("impression", "click")[slate.liked[place]]})
    as_csv(path, rows)


@log(
    "array.json",
    map={"session": "visit", "time": "at", "slate": "at", "item": "sku", "response": "action"},
    responses={"shown": "skip", "click": "click"},
)
def one_array(path: Path) -> None:
    rows = [
        {"visit": f"v{slate.visit}", "at": slate.at.isoformat(), "sku": f"s{item}", "action": ("shown", "click")[liked]}
        for slate in slates(32)
        for item, liked in zip(slate.items, slate.liked, strict=True)
    ]
    path.write_text(json.dumps(rows))


@log(
    "mails.csv",
    map={
        **{"session": "recipient", "time": "sent_at", "slate": "mail_id", "position": "slot", "item": "product_code"},
        **{"clicked": "clicked_at"},
    },
)
def newsletters(path: Path) -> None:
    rows = []
    for number, slate in enumerate(slates(41, 4)):
        for place, item in enumerate(slate.items):
            row: Row = {"mail_id": f"m{number}", "recipient": f"r{slate.user}", "product_code": f"PC{item}"}
            row |= {"slot": place + 1, "sent_at": f"{slate.at:%Y-%m-%d %H:%M:%S}"}
            row |= {"opened_at": f"{slate.at:%Y-%m-%d %H}:59:59" if slate.chosen else None}
            rows.append(row | {"clicked_at": f"{slate.at:%Y-%m-%d %H}:59:59" if slate.liked[place] else None})
    as_csv(path, rows)


@log(
    "tracker.tsv",
    attribution=True,
    map={
        **{"session": "domain_sessionid", "user": "domain_userid", "time": "collector_tstamp"},
        **{"slate": "collector_tstamp", "item": "se_label", "response": "se_action"},
    },
    responses={"impression": "skip", "click": "click"},
)
def tracker(path: Path) -> None:
    rows = []
    for slate in slates(42):
        row: Row = {"domain_userid": f"{slate.user:06x}u", "domain_sessionid": f"{slate.visit:08x}-s"}
        for place, item in enumerate(slate.items):
            shown = {"collector_tstamp": f"{slate.at:%Y-%m-%d %H:%M:%S}.123", "se_action": "impression"}
            rows.append(row | shown | {"se_label": f"item-{item}", "se_property": place})
        for item in slate.chosen:
            click = {"collector_tstamp": f"{slate.at:%Y-%m-%d %H:%M}:59.456", "se_action": "click"}
            rows.append(row | click | {"se_label": f"item-{item}", "se_property": None})
    as_csv(path, rows, "\t")


@log(
    "wide.csv",
    places_from=1,
    map={"session": "user", "time": "time", "slate": "query_id", "items": "result_*", "clicked": "clicked_rank"},
)
def results_side_by_side(path: Path) -> None:
    rows = []
    for number, slate in enumerate(slates(43, 6)):
        row: Row = {"query_id": number, "user": slate.user, "time": slate.time}
        row |= {f"result_{place + 1}": item for place, item in enumerate(slate.items)}
        rows.append(row | {"clicked_rank": slate.liked.index(True) + 1 if slate.chosen else 0})
    as_csv(path, rows)


@log(
    "decisions.csv",
    row_sessions=True,
    map={"item": "action", "propensity": "prob", "response": "reward"},
    responses={"0.0": "skip", "1.0": "click"},
)
def bandit_without_sessions(path: Path) -> None:
    rows = []
    for number, slate in enumerate(slates(44, 1, 300)):
        row: Row = {"event_id": number, "context_age": slate.user % 5, "context_device": ("phone", "desk")[number % 2]}
        rows.append(row | {"action": slate.items[0] % 10, "prob": 0.1, "reward": float(slate.liked[0])})
    as_csv(path, rows)


@log(
    "served.jsonl",
    map={
        **{"session": "sessionId", "user": "userId", "time": "servedAt", "slate": "requestId", "items": "items.id"},
        **{"propensity": "items.propensity", "clicked": "items.clicked", "bought": "items.purchased"},
    },
)
def objects_with_answers(path: Path) -> None:
    rows = []
    for slate in slates(45):
        items = [
            {
                "id": f"a{item}",
                "rank": place,
                "clicked": liked,
                "purchased": liked and item % 7 == 0,
                "propensity": 0.025,
            }
            for place, (item, liked) in enumerate(zip(slate.items, slate.liked, strict=True))
        ]
        row: Row = {"requestId": f"{slate.visit}:{slate.number}", "sessionId": f"s{slate.visit}", "userId": slate.user}
        rows.append(row | {"servedAt": f"{slate.at:%Y-%m-%dT%H:%M:%S}Z", "surface": "home", "items": items})
    as_lines(path, rows)


@log(
    "spaces.csv",
    slates_by_position=True,
    map={
        **{"session": "Session ID", "time": "Date Time", "position": "Position", "item": "Item ID"},
        **{"response": "User Action"},
    },
    responses={"Viewed": "skip", "Clicked": "click", "Purchased": "buy"},
    time_format="%m/%d/%Y %H:%M",
)
def times_to_the_hour(path: Path) -> None:
    rows = []
    for slate in slates(46):
        for place, item in enumerate(slate.items):
            said = "Viewed" if not slate.liked[place] else "Purchased" if item % 7 == 0 else "Clicked"
            row: Row = {"Session ID": slate.visit, "Item ID": item, "Date Time": f"{slate.at:%m/%d/%Y %H}:00"}
            rows.append(row | {"User Action": said, "Position": place})
    as_csv(path, rows)


@log(
    "acciones.csv",
    delimiter=";",
    map={"session": "id_sesion", "time": "fecha", "slate": "fecha", "item": "id_producto", "response": "accion"},
    responses={"vista": "skip", "clic": "click", "compra": "buy"},
)
def spanish_export(path: Path) -> None:
    rows = []
    for slate in slates(47):
        for place, item in enumerate(slate.items):
            said = "vista" if not slate.liked[place] else "compra" if item % 7 == 0 else "clic"
            rows.append({"id_sesion": slate.visit, "id_producto": item, "fecha": f"{slate.at:%Y-%m-%d %H:%M:%S}"})
            rows[-1]["accion"] = said
    as_csv(path, rows, ";")


@log(
    "swipes.csv",
    map={"session": "swiper", "time": "swiped_at", "item": "profile_shown", "response": "direction"},
    responses={"pass": "skip", "like": "click", "superlike": "click"},
)
def swipes(path: Path) -> None:
    rows = []
    for slate in slates(48, 3):
        for place, item in enumerate(slate.items):
            said = "pass" if not slate.liked[place] else "superlike" if item % 7 == 0 else "like"
            row: Row = {"swiper": f"u{slate.user}", "profile_shown": f"p{item}", "swiped_at": slate.time + 5 * place}
            rows.append(row | {"direction": said})
    as_csv(path, rows)


@log(
    "funnel.csv",
    drop_without_item=True,
    attribution=True,
    map={"session": "sid", "time": "tms", "slate": "tms", "position": "rk", "item": "pid", "response": "ev"},
    responses={
        **{"list_impression": "skip", "pdp_view": "click", "add_to_cart": "click", "checkout": "buy"},
        **{"session_start": "drop"},
    },
    time_unit="ms",
)
def funnel(path: Path) -> None:
    rows: list[Row] = []
    for slate in slates(49):
        at, sid = 1000 * slate.time, f"s{slate.visit}"
        if not slate.number:
            rows.append({"ev": "session_start", "sid": sid, "pid": None, "tms": at - 1, "rk": None})
        rows += [
            {"ev": "list_impression", "sid": sid, "pid": item, "tms": at, "rk": place}
            for place, item in enumerate(slate.items)
        ]
        for item in slate.chosen:
            kinds = ["pdp_view", *(["add_to_cart"] if item % 3 == 0 else []), *(["checkout"] if item % 6 == 0 else [])]
            rows += [
                {"ev": kind, "sid": sid, "pid": item, "tms": at + 3000 + n, "rk": None} for n, kind in enumerate(kinds)
            ]
    as_csv(path, rows)


@log(
    "shelves.csv",
    map={
        **{"session": "visit", "user": "profile_id", "time": "rendered_ts", "slate": "rendered_ts"},
        **{"item": "title_id", "response": "play_begun"},
    },
    responses={"0": "skip", "1": "click"},
)
def shelves(path: Path) -> None:
    rows = []
    for slate in slates(61, 6):
        for place, item in enumerate(slate.items):
            row: Row = {"profile_id": slate.user, "visit": f"v{slate.visit}", "title_id": f"tt{item:05}"}
            row |= {"shelf": slate.number, "column": place, "rendered_ts": slate.time, "kids": slate.user % 2}
            rows.append(row | {"play_begun": int(slate.liked[place])})
    as_csv(path, rows)


@log(
    "refreshes.csv",
    map={"session": "member", "time": "at", "slate": "at", "item": "recipe", "response": "saved"},
    responses={"false": "skip", "true": "click"},
)
def numbers_that_begin_anew(path: Path) -> None:
    """The number of a refresh begins anew with each visit, and no column tells visits."""
    rows = []
    for slate in slates(62, 6):
        for place, item in enumerate(slate.items):
            row: Row = {"member": slate.user, "feed_refresh": slate.number, "recipe": item, "at": slate.time}
            rows.append(row | {"saved": str(slate.liked[place]).lower()})
    as_csv(path, rows)


@log(
    "exercises.csv",
    map={"session": "student_id", "time": "assigned_at", "item": "exercise_id", "clicked": "completed_at"},
)
def exercises(path: Path) -> None:
    rows = []
    for slate in slates(63, 4):
        for place, item in enumerate(slate.items):
            at = slate.time + 2 * place
            row: Row = {"student_id": slate.user, "exercise_id": item, "assigned_at": _text_of(at)}
            rows.append(row | {"completed_at": _text_of(at + 300) if slate.liked[place] else None, "score": 0.5})
    as_csv(path, rows)


def _text_of(time: int) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
