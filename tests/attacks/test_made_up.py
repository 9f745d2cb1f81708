"""Sessions and feedback that are made up: what nobody recommended, and no catalogue has, teaches nobody."""

import asyncio
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.serving.arms import Arms, load_arm
from bcd4rec.serving.messages import FeedbackRequest, RecommendRequest
from bcd4rec.serving.service import Service
from bcd4rec.serving.storage.export import export_log
from bcd4rec.serving.storage.queries import Selection
from bcd4rec.serving.storage.store import Store, open_store
from bcd4rec.serving.storage.urls import database_of
from serving_help import VOCABULARY, quantile_policy, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(quantile_policy("meanpool", "implicit"), tmp_path_factory.mktemp("policy"))


def other_folder(path: Path, rewards: dict[str, float]) -> Path:
    return saved(quantile_policy("meanpool", "implicit", seed=6), path, responses=Responses(rewards=rewards))


def recommend(service: Service, **asked: Any) -> dict[str, Any]:
    return asyncio.run(service.recommend(RecommendRequest.model_validate(asked)))


def feedback(service: Service, *responses: tuple[str, Any, str]) -> tuple[bool, int, list[dict[str, Any]]]:
    listed = [{"request_id": request, "item": item, "response": response} for request, item, response in responses]
    return asyncio.run(service.feedback(FeedbackRequest.model_validate({"responses": listed})))


def exported(store: Store, path: Path) -> pl.DataFrame:
    store.close()
    export_log(database_of(str(path)), path.with_suffix(".parquet"), Selection(), DIGINETICA)
    return pl.read_parquet(path.with_suffix(".parquet"))


@pytest.mark.parametrize("new_items", [False, True])
def test_items_of_no_catalogue_are_not_learned(folder: Path, tmp_path: Path, new_items: bool) -> None:
    store = open_store(str(tmp_path / "a.db"))
    service = Service(Arms([load_arm("a", folder, 1.0)]), store, new_items=new_items)
    for number in range(60):
        found = recommend(service, session_id=f"s{number}", session=["made-up", 3, "made-up"], k=2)
        assert found["unknown"] == ["made-up"]
    recommend(service, session=["made-up"], k=2)
    assert b"bcd4rec_unknown_items_total 121.0" in service.metrics.text()
    log = exported(store, tmp_path / "a.db")
    assert log.filter(pl.col("item_id") == "3", pl.col("organic")).height == 60
    assert log.filter(pl.col("item_id") == "made-up").height == (61 if new_items else 0)


def test_an_item_of_another_arm_is_of_the_catalogue(folder: Path, tmp_path: Path) -> None:
    other, store = tmp_path / "other", open_store(str(tmp_path / "a.db"))
    names = Vocabulary(pl.Series("item_id", [f"n{item}" for item in range(len(VOCABULARY))]))
    saved(quantile_policy("meanpool", "implicit"), other, vocabulary=names)
    service = Service(Arms([load_arm("a", folder, 1.0), load_arm("b", other, 0.0)]), store)
    assert recommend(service, session_id="s", session=["n3", 4], k=2)["unknown"] == ["n3"]
    store.submit([]).result(20)
    assert store.session("s").opening == [("n3", "click"), ("4", "click")]
    store.close()


def test_a_response_that_only_one_arm_knows_locks_nobody_out(folder: Path, tmp_path: Path) -> None:
    """The session is of arm a; somebody says `like`, which is a word of arm b."""
    other = other_folder(tmp_path / "other", {"skip": 0, "like": 1})
    store = open_store(str(tmp_path / "a.db"))
    service = Service(Arms([load_arm("a", folder, 1.0), load_arm("b", other, 0.0)]), store)
    first = recommend(service, session_id="anna", k=3)
    one, two, _ = (found["item"] for found in first["items"])
    assert feedback(service, (first["request_id"], one, "like"), (first["request_id"], two, "click"))[1] == 2
    after = recommend(service, session_id="anna", k=3)
    assert after["items"] == recommend(service, session=[two], k=3)["items"]  # as if `like` had not been said
    assert b"bcd4rec_unknown_responses_total 1.0" in service.metrics.text()
    given = recommend(service, session=[two, {"item": one, "response": "like"}], k=3)
    assert given["items"] == after["items"]
    with pytest.raises(Exception, match="response: found 'hate'"):
        recommend(service, session=[{"item": one, "response": "hate"}])
    store.close()


@pytest.mark.parametrize("local", [True, False])
def test_feedback_that_matches_nothing_is_answered_as_such(folder: Path, tmp_path: Path, local: bool) -> None:
    path = tmp_path / "a.db"
    store = open_store(str(path))
    service = Service(Arms([load_arm("a", folder, 1.0)]), store, local=local)
    shown = recommend(service, session_id="anna", k=3)
    one, two, three = (found["item"] for found in shown["items"])
    missing = next(item for item in range(20) if item not in (one, two, three))
    request = shown["request_id"]
    answers = [
        (request, one, "click"),
        (request, missing, "buy"),
        ("nobody", two, "click"),
        (request, "strange", "buy"),
    ]
    stored, accepted, unmatched = feedback(service, *answers)
    expected = [
        {"request_id": request, "item": missing, "reason": "not shown"},
        {"request_id": "nobody", "item": two, "reason": "no slate"},
        {"request_id": request, "item": "strange", "reason": "not shown"},
    ]
    assert (stored, accepted, unmatched) == (True, 2, expected)
    assert feedback(service, (request, missing, "buy"))[:2] == (True, 0)
    assert b"bcd4rec_unmatched_feedback_total 4.0" in service.metrics.text()
    store.close()
    store = open_store(str(path))  # known from the database, too
    service = Service(Arms([load_arm("a", folder, 1.0)]), store, local=local)
    assert feedback(service, *answers)[1:] == (2, expected)
    assert store.session("anna").slates == [[(str(one), "click"), (str(two), None), (str(three), None)]]
    store._drop_reader()  # as when the database does not answer: nothing is known, and nothing claimed
    assert feedback(service, ("elsewhere", one, "click"))[1:] == (1, [])
    store.close()


def test_made_up_feedback_does_not_empty_the_session_cache(folder: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a.db"))
    service = Service(Arms([load_arm("a", folder, 1.0)]), store)
    recommend(service, session_id="anna")
    assert service._cache.covers("anna")
    feedback(service, ("nobody", 3, "click"))
    assert service._cache.covers("anna")
    store.close()
