"""The example logs of `examples/`: made-up people, one small file for each kind of log, the same bytes every time.

Run as:  python scripts/make_examples.py [FOLDER]
"""

import gzip
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

BEGIN = datetime(2024, 3, 1, 8, tzinfo=UTC)
SECTIONS = ("world", "sport", "money", "food")
CITIES = ("Lisbon", "Oslo", "Vienna")
BRANDS = ("arno", "bele", "cori")


class People:
    """Each has a taste for some of the kinds of items, which shows in what she clicks; higher places are seen more."""

    def __init__(self, seed: int, kinds: int, items: int):
        self.rng = np.random.default_rng(seed)
        self.kind = np.arange(items) % kinds
        self.quality = self.rng.normal(0, 0.7, items)
        self.kinds = kinds

    def taste(self) -> np.ndarray:
        return np.where(np.arange(self.kinds) == self.rng.integers(self.kinds), 1.6, -0.8)

    def clicks(self, items: np.ndarray, taste: np.ndarray, hurdle: float) -> np.ndarray:
        score = taste[self.kind[items]] + self.quality[items] - 0.25 * np.arange(len(items)) - hurdle
        return self.rng.random(len(items)) < 1 / (1 + np.exp(-score))


def shop() -> Iterator[dict[str, object]]:
    """A shop with lists: one JSON object per result page, with lists of what was shown, clicked and bought."""
    people = People(1, len(BRANDS), 36)
    for visit in range(60):
        taste, when = people.taste(), BEGIN + timedelta(hours=2 * visit)
        for page in range(int(people.rng.integers(1, 5))):
            items = people.rng.permutation(36)[:6]
            clicked = items[people.clicks(items, taste, 0.4)]
            bought = clicked[people.rng.random(len(clicked)) < 0.2]
            row = {"visit": f"v{visit:03d}", "customer": f"c{visit % 25:02d}", "at": when.isoformat()[:19]}
            row |= {"query": str(people.rng.choice(BRANDS)), "shown": [f"sku{one:02d}" for one in items]}
            yield (
                row
                | {name: [f"sku{one:02d}" for one in some] for name, some in (("clicked", clicked), ("bought", bought))}
                | {"page": page}
            )
            when += timedelta(minutes=3)


def shop_items() -> Iterator[dict[str, object]]:
    """What the shop knows of its items, also of some that were never shown."""
    rng = np.random.default_rng(2)
    for item in range(40):
        row = {"sku": f"sku{item:02d}", "price": round(float(rng.lognormal(3, 0.5)), 2), "brand": BRANDS[item % 3]}
        yield row | {"text": [round(float(one), 3) for one in rng.normal(size=4)], "category": f"aisle {item % 5}"}


def news() -> Iterator[list[str]]:
    """A news front page: one row per impression, its history and what was shown with -0 or -1, without a header."""
    people, number = People(3, len(SECTIONS), 48), 0
    for reader in range(50):
        taste, when = people.taste(), BEGIN + timedelta(minutes=40 * reader)
        history = [f"N{one}" for one in people.rng.permutation(48)[: people.rng.integers(0, 4)]]
        for _ in range(int(people.rng.integers(1, 4))):
            number += 1
            items = people.rng.permutation(48)[: people.rng.integers(4, 9)]
            clicks = people.clicks(items, taste, 1.0)
            shown = " ".join(f"N{item}-{int(click)}" for item, click in zip(items, clicks, strict=True))
            yield [str(number), f"U{reader}", f"{when:%m/%d/%Y %I:%M:%S %p}", " ".join(history), shown]
            when += timedelta(minutes=11)


def travel() -> Iterator[list[str]]:
    """A travel search: each search is a session of its own, the destination is what was asked for, hotels return."""
    people = People(4, len(CITIES), 30)
    yield ["search", "time", "destination", "rank", "hotel", "city", "outcome"]
    for search in range(90):
        city = int(people.rng.integers(len(CITIES)))
        taste = np.where(np.arange(len(CITIES)) == city, 0.5, -1.0)
        items = people.rng.permutation(np.flatnonzero(people.kind == city))[:6]
        clicks = people.clicks(items, taste, 0.5)
        for rank, (hotel, click) in enumerate(zip(items, clicks, strict=True)):
            outcome = "book" if click and people.rng.random() < 0.3 else "look" if click else "pass"
            when = BEGIN + timedelta(minutes=17 * search)
            hotels = [f"h{hotel}", f"{CITIES[people.kind[hotel]]}|hotel"]
            yield [str(9000 + search), f"{when.timestamp():.0f}", CITIES[city], str(rank), *hotels, outcome]


def feed() -> Iterator[list[str]]:
    """A feed of single items, with the probability of each, and videos that people searched for themselves."""
    people = People(5, 4, 24)
    yield ["viewer", "ms", "video", "p", "event"]
    for viewer in range(40):
        taste, when = people.taste(), BEGIN + timedelta(minutes=25 * viewer)
        chance = np.exp(people.quality) / np.exp(people.quality).sum()
        for step in range(int(people.rng.integers(4, 12))):
            when += timedelta(seconds=int(people.rng.integers(5, 90)))
            item = int(people.rng.choice(24, p=chance))
            stamp, seen = f"{when.timestamp() * 1000:.0f}", people.clicks(np.array([item]), taste, 0.0)[0]
            if step % 5 == 4:
                yield [f"w{viewer}", stamp, str(item), "", "search"]
            else:
                yield [f"w{viewer}", stamp, str(item), f"{chance[item]:.6f}", "watch" if seen else "swipe"]


def events() -> Iterator[list[str]]:
    """A stream of events: what was shown and what was clicked or ordered are rows of their own, in order of time."""
    people = People(7, len(BRANDS), 36)
    yield ["session_id", "user_id", "timestamp", "event", "product_id", "list_position"]
    for visit in range(60):
        taste, when = people.taste(), BEGIN + timedelta(hours=2 * visit)
        who = [f"s{visit:03d}", f"c{visit % 25:02d}"]
        for _ in range(int(people.rng.integers(1, 5))):
            items = people.rng.permutation(36)[:6]
            clicked = items[people.clicks(items, taste, 0.4)]
            for place, item in enumerate(items):
                yield [*who, f"{when:%Y-%m-%dT%H:%M:%SZ}", "Product Impression", f"p{item:02d}", str(place + 1)]
            when += timedelta(seconds=20)
            if people.rng.random() < 0.2:  # found by herself, as by a link from elsewhere
                clicked = np.append(clicked, people.rng.integers(36))
            for item in clicked:
                yield [*who, f"{when:%Y-%m-%dT%H:%M:%SZ}", "Product Clicked", f"p{item:02d}", ""]
                when += timedelta(seconds=30)
                if people.rng.random() < 0.2:
                    yield [*who, f"{when:%Y-%m-%dT%H:%M:%SZ}", "Order Completed", f"p{item:02d}", ""]
            when += timedelta(minutes=1)


def clicks() -> Iterator[list[str]]:
    """Clicks only: who read what and when; nobody logged what was shown."""
    people = People(6, 4, 30)
    yield ["reader", "day", "page", "article"]
    for reader in range(70):
        taste, when = people.taste(), BEGIN + timedelta(hours=3 * reader)
        weight = np.exp(taste[people.kind] + people.quality)
        for page, item in enumerate(
            people.rng.choice(30, int(people.rng.integers(2, 8)), False, weight / weight.sum())
        ):
            yield [f"r{reader}", f"{when:%Y-%m-%d}", str(page), f"a{item}"]


def write(path: Path, text: str) -> None:
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("shop.jsonl", shop()), ("shop-items.jsonl", shop_items())):
        write(folder / name, "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "news.tsv.gz", "".join("\t".join(row) + "\n" for row in news()))
    tables = {"travel.csv": travel(), "feed.csv": feed(), "events.csv": events(), "clicks.csv": clicks()}
    for name, table in tables.items():
        write(folder / name, "".join(",".join(row) + "\n" for row in table))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "examples")
