"""Random logs in the raw formats, and what a reader should make of them, worked out in plain loops."""

import random
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DAY = 86_400_000
QUERIES = "queryId;sessionId;userId;timeframe;duration;eventdate;searchstring.tokens;categoryId;items;is.test"
HEADERS = {
    "train-queries.csv": QUERIES,
    "train-clicks.csv": "queryId;timeframe;itemId",
    "train-purchases.csv": "sessionId;userId;timeframe;eventdate;ordernumber;itemId",
    "train-item-views.csv": "sessionId;userId;itemId;timeframe;eventdate",
    "product-categories.csv": "itemId;categoryId",
}


@dataclass
class Query:
    query: int
    timeframe: int
    answers: dict[int, str]  # item -> response, in rank order


@dataclass
class Session:
    session: int
    began: int  # milliseconds after the start of 2016
    queries: list[Query] = field(default_factory=list)
    views: list[tuple[int, int]] = field(default_factory=list)  # item, timeframe; beyond those of the clicks

    def day(self, timeframe: int) -> date:
        return date(2016, 1, 1) + timedelta(days=(self.began + timeframe) // DAY)

    def first_day(self) -> date:
        times = [query.timeframe for query in self.queries] + [time for _, time in self.views]
        return min(self.day(time) - timedelta(days=time // DAY) for time in times)


@st.composite
def diginetica_sessions(draw: st.DrawFn) -> list[Session]:
    """Up to four sessions; a purchase is preceded by a click, and an item is bought once in a session."""
    sessions, number = [], 0
    for place in range(draw(st.integers(1, 4))):
        session = Session(1000 - 7 * place, draw(st.integers(0, 130 * DAY)))
        timeframe, sold = 0, set()
        for _ in range(draw(st.integers(1, 4))):
            number += 1
            timeframe += draw(st.sampled_from([1, 950, 60_000, DAY + 5]))
            items = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
            answers = {}
            for item in items:
                response = draw(st.sampled_from(["skip", "skip", "click", "buy"]))
                answers[item] = "click" if response == "buy" and item in sold else response
                sold |= {item} if response == "buy" else set()
            session.queries.append(Query(number, timeframe, answers))
        view = st.tuples(st.integers(1, 9), st.sampled_from([0, 1, 2, 951, 60_000, DAY]))
        session.views = draw(st.lists(view, max_size=4))
        sessions.append(session)
    return sessions


def diginetica_rows(sessions: list[Session]) -> dict[str, list[str]]:
    """The lines of each raw file, without headers."""
    files: dict[str, list[str]] = {name: [] for name in HEADERS}
    for session in sessions:
        for query in session.queries:
            items, day = ",".join(map(str, query.answers)), session.day(query.timeframe)
            head = f"{query.query};{session.session};NA;{query.timeframe}"
            files["train-queries.csv"].append(f"{head};250;{day};11,12;0;{items};FALSE")
            for item, response in query.answers.items():
                if response != "skip":
                    files["train-clicks.csv"].append(f"{query.query};{query.timeframe};{item}")
                    files["train-item-views.csv"].append(f"{session.session};NA;{item};{query.timeframe};{day}")
                if response == "buy":
                    order = f"{session.session};NA;{query.timeframe};{day};{len(files['train-purchases.csv'])};{item}"
                    files["train-purchases.csv"].append(order)
        for item, time in session.views:
            files["train-item-views.csv"].append(f"{session.session};NA;{item};{time};{session.day(time)}")
    files["product-categories.csv"] = [f"{item};{category(item)}" for item in range(1, 9)]  # item 9 has none
    return files


def category(item: int) -> int | None:
    return 50 + item % 3 if item < 9 else None


def write_diginetica(folder: Path, rows: dict[str, list[str]], shuffle: int | None = None) -> Path:
    """Write the files; `shuffle` seeds another order of rows and of columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in rows.items():
        table = [HEADERS[name].split(";"), *(line.split(";") for line in lines)]
        if shuffle is not None:
            rng = random.Random(shuffle)
            order = rng.sample(range(len(table[0])), len(table[0]))
            body = rng.sample(table[1:], len(table) - 1)
            table = [[row[place] for place in order] for row in [table[0], *body]]
        (folder / name).write_text("".join(";".join(row) + "\n" for row in table))
    return folder


def diginetica_truth(sessions: list[Session], cut: str = "none") -> list[tuple[Any, ...]]:
    """(session, time in microseconds since 1970, item, response, query, position, category), in no order."""
    truth = []
    for session in sessions:
        midnight = (session.first_day() - date(1970, 1, 1)).days * DAY
        for query in session.queries:
            touched = [place for place, answer in enumerate(query.answers.values()) if answer != "skip"]
            end = {"none": 99, "last_touched": max(touched, default=-1)}.get(cut)
            end = int(cut) - 1 if end is None else end
            for place, (item, response) in enumerate(query.answers.items()):
                if place <= end:
                    time = (midnight + query.timeframe) * 1000
                    truth.append((session.session, time, item, response, query.query, place, category(item)))
    return truth


def diginetica_organic(sessions: list[Session], kept: set[int]) -> list[tuple[Any, ...]]:
    """(session, time in microseconds since 1970, item) of the views that nobody recommended in the kept sessions."""
    found = []
    for session in sessions:
        midnight = (session.first_day() - date(1970, 1, 1)).days * DAY
        known: set[int] = set()
        for item, time in sorted(session.views, key=lambda view: view[1]):
            shown = any(item in query.answers and query.timeframe <= time for query in session.queries)
            if session.session in kept and not shown and item not in known:
                found.append((session.session, (midnight + time) * 1000, item))
            known.add(item)
    return found


@st.composite
def trivago_events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Events of up to three sessions, in order; lists of items 1 to 9."""
    events = []
    for session in ("aa", "b7", "c")[: draw(st.integers(1, 3))]:
        time = 1_541_000_000 + draw(st.integers(0, 100_000))
        for step in range(1, draw(st.integers(1, 6)) + 1):
            time += draw(st.integers(0, 40))
            action = draw(st.sampled_from(["clickout item", "interaction item image", "search for poi"]))
            items = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True))
            reference = "Lake" if action == "search for poi" else str(items[-1])
            shown = "|".join(map(str, sorted(items))) if action == "clickout item" else None
            events.append(
                {
                    "user_id": f"U{session}",
                    "session_id": session,
                    "timestamp": time,
                    "step": step,
                    "action_type": action,
                    "reference": reference,
                    "platform": "DE",
                    "city": draw(st.sampled_from(["Köln, Germany", "Oslo, Norway"])),
                    "device": "mobile",
                    "current_filters": None,
                    "impressions": shown,
                    "prices": shown,
                }
            )
    return events


def trivago_truth(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(session, seconds, item, response, position), lists cut after the last touched place."""
    truth = []
    touched: dict[str, set[int]] = {}
    for event in events:
        before = touched.setdefault(event["session_id"], set())
        if event["action_type"] == "clickout item":
            items, target = [int(item) for item in event["impressions"].split("|")], int(event["reference"])
            answers = ["buy" if item == target else "click" if item in before else "skip" for item in items]
            end = max(place for place, answer in enumerate(answers) if answer != "skip")
            for place in range(end + 1):
                truth.append((event["session_id"], event["timestamp"], items[place], answers[place], place))
        if event["action_type"] != "search for poi":
            before.add(int(event["reference"]))
    return truth


def trivago_cities(events: list[dict[str, Any]]) -> dict[int, str]:
    """The city of the first list that shows an item, sessions in the order of their beginnings, lists as cut."""
    begin: dict[str, int] = {}
    for event in events:
        begin[event["session_id"]] = min(event["timestamp"], begin.get(event["session_id"], event["timestamp"]))
    cities: dict[int, str] = {}
    for session in sorted(begin, key=lambda name: (begin[name], name)):
        own = [event for event in events if event["session_id"] == session]
        for event in own:
            if event["action_type"] == "clickout item":
                for item in map(int, event["impressions"].split("|")):
                    if _kept(own, event, item):
                        cities.setdefault(item, event["city"])
    return cities


def _kept(events: list[dict[str, Any]], event: dict[str, Any], item: int) -> bool:
    """Whether the list of this very event, cut after the last touched place, still shows the item."""
    before = [one for one in events if one["step"] < event["step"]]
    rows = trivago_truth([*before, event])[len(trivago_truth(before)) :]
    return item in [row[2] for row in rows]
