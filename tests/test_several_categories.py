"""Several categories of an item: what is alike, what they let expect of new items, and how logs tell them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sparse
from safetensors.numpy import load_file

import bcd4rec
from bcd4rec.data.content import MOST_TAGS, Content
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.foresight import SCALINGS, additive_lifts
from bcd4rec.errors import InputError
from bcd4rec.models.content_evidence import OWN
from bcd4rec.models.evidence import Evidence
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from test_appending import STABLE, contents, prepare
from test_evidence import SESSIONS, A, states_of
from test_item_features import with_content
from test_proposing import proposed, rows_of
from tests.several_categories import TagShop

# ---- what is alike, and what is foreseen


def test_tags_are_alike_by_the_cosine_of_what_they_share() -> None:
    rng = np.random.default_rng(4)
    tags = [rng.choice(6, rng.integers(0, 5), replace=False).tolist() for _ in range(A)]
    frame = pl.DataFrame({"tags": [[f"t{one}" for one in mine] or None for mine in tags], "x": rng.normal(size=A)})
    frame = frame.with_columns(pl.Series("brand", rng.integers(3, size=A)).cast(pl.String))
    kinds = {"tags": "tags", "brand": "category", "x": "number"}
    content = Content.encode(frame, kinds)
    assert content.rows.tolist() == [0, 4, 5]
    known = with_content()
    assert known.content is not None
    known = Evidence(known.knowledge, known.neighbours.sequences, type(known.content)(content, known.content.foreseen))
    states, told = states_of(SESSIONS), known.content
    assert told is not None
    out = np.zeros((len(states), A, OWN + 3 * content.features), np.float32)
    told.rows(states.positives, states.skips, np.tile(np.arange(A, dtype=np.int32), (len(states), 1)), out)

    def alike(one: int, other: int) -> float:
        both = len(tags[one]) * len(tags[other])
        return len(set(tags[one]) & set(tags[other])) / both**0.5 if both else 0.0

    for b in range(len(states)):
        liked, skipped = ([int(one) for one in half[b] if one >= 0] for half in (states.positives, states.skips))
        for item in range(A):
            plain = [np.mean([alike(one, item) for one in some] or [0.0]) for some in (liked, liked[-1:], skipped)]
            np.testing.assert_allclose(out[b, item, OWN + 3 : OWN + 6], plain, atol=1e-6)
    weights = rng.normal(size=(2, out.shape[2])).astype(np.float32)
    sums = np.zeros((2, len(states), A), np.float32)
    told.add_sums(states.positives, states.skips, weights, sums)
    rows = np.einsum("rc,bac->rba", weights[:, OWN:], out[..., OWN:])
    np.testing.assert_allclose(sums, rows, atol=1e-5)


def test_lifts_that_add_up_by_a_plain_loop() -> None:
    rng, items, values, fits = np.random.default_rng(5), 11, 4, 3
    has = (rng.random((items, values)) < 0.5).astype(float)
    n, mean = rng.poisson(4.0, items).astype(float), rng.uniform(1, 6, items)
    learned = (rng.random((items, fits)) < 0.7).astype(float)
    strengths = (30.0, 2.0)
    found = list(additive_lifts(sparse.csr_matrix(has), n, mean, learned, strengths))
    most = has.sum(axis=1).max()
    lifts = np.zeros((values, fits))
    for drawn, mine in zip(strengths, found, strict=True):
        for _ in range(SCALINGS):
            before = lifts.copy()
            for fit in range(fits):
                for value in range(values):
                    counted, expected = drawn, drawn * np.exp(before[value, fit])
                    for item in range(items):
                        if has[item, value] and learned[item, fit]:
                            counted += n[item]
                            expected += mean[item] * np.exp(sum(has[item] * before[:, fit]))
                    lifts[value, fit] += np.log(counted / expected) / most
        np.testing.assert_allclose(mine, lifts, rtol=1e-9)


# ---- a shop whose second category decides


@pytest.fixture(scope="module")
def shop() -> TagShop:
    return TagShop(0)


@pytest.fixture(scope="module")
def data(shop: TagShop) -> dict[str, Dataset]:
    return shop.datasets()


@pytest.fixture(scope="module")
def policies(data: dict[str, Dataset]) -> dict[str, Policy]:
    return {name: bcd4rec.train("response", one) for name, one in data.items()}


def test_new_items_by_their_second_category(shop: TagShop, policies: dict[str, Policy]) -> None:
    found = {name: shop.auc_of_new_items(policy) for name, policy in policies.items()}
    assert found["all"] > 0.65
    assert found["all"] > found["first"] + 0.1


def test_a_loaded_bundle_scores_tags_the_same(
    data: dict[str, Dataset], policies: dict[str, Policy], tmp_path: Path
) -> None:
    policy, states = policies["all"], data["all"].states[:30]
    policy.save(tmp_path / "policy")
    again = bundle.load(tmp_path / "policy")
    scores = again.scorer.scores(states)
    assert scores.tobytes() == policy.scorer.scores(states).tobytes()
    assert np.ptp(scores, axis=1).min() > 0
    assert data["all"].content is not None
    arrays = data["all"].content.arrays()
    saved = load_file(tmp_path / "policy" / bundle.ARRAYS)
    assert all(np.array_equal(saved[f"evidence.{name}"], one) for name, one in arrays.items())
    for name, value in (("content.rows", 99), ("content.shares", None)):
        strange = arrays[name].copy()
        strange = strange[:-1] if value is None else np.append(strange[:-1], value)
        with pytest.raises(ValueError, match=name):
            Content.restore(arrays | {name: strange}, arrays["content.axes"].shape[0])


# ---- logs


def day(number: int, order: int = 1, more: str = "") -> pl.DataFrame:
    """Three sessions; item 2 has its categories in another order by `order`."""
    names = {0: "shoes|red", 1: "coats", 2: "|".join(["hats", "blue", "wool"][::order]) + more, 3: "coats|red"}
    rows = [
        (f"{number}-{one}", number * 86_400 + 60 * step, item, ("skip", "click")[(one + step + item) % 2], names[item])
        for one in range(3)
        for step in range(4)
        for item in ((step + one) % 4, (step + one + 1) % 4)
    ]
    columns = ["session_id", "timestamp", "item_id", "response", "category"]
    return pl.DataFrame(rows, schema=columns, orient="row")


SEPARATED = ("--map", "session=session_id,time=timestamp,item=item_id,response=response,category=category")
SEPARATED = (*SEPARATED, "--set", "category_separator=|")


def test_appended_categories_are_those_of_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for number, order in ((0, 1), (1, -1), (2, 1)):
        day(number, order).write_csv(tmp_path / "days" / f"{number}.csv")
    found = prepare(tmp_path / "days", "--out", tmp_path / "whole", *STABLE, *SEPARATED)
    prepare(tmp_path / "days" / "0.csv", "--out", tmp_path / "grown", *STABLE, *SEPARATED)
    for number in (1, 2):
        prepare(tmp_path / "days" / f"{number}.csv", "--append", tmp_path / "grown", *SEPARATED)
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")
    items = Dataset.load(tmp_path / "whole").items
    assert items["categories"].to_list() == [["shoes", "red"], ["coats"], ["hats", "blue", "wool"], ["coats", "red"]]
    assert items["category"].to_list() == ["shoes", "coats", "hats", "coats"]
    assert found["items_of_several_categories"] == 3
    before = contents(tmp_path / "grown")
    day(3, more="|new").write_csv(tmp_path / "3.csv")
    with pytest.raises(InputError) as refused:
        prepare(tmp_path / "3.csv", "--append", tmp_path / "grown", *SEPARATED)
    assert "column category: found ['hats', 'blue', 'wool', 'new'] for item 2, which has" in str(refused.value)
    assert str(refused.value).endswith("expected one category per item, or the same several in each of its rows.")
    assert contents(tmp_path / "grown") == before


def test_other_categories_in_one_log_are_refused() -> None:
    frame = pl.concat([day(0), day(1, more="|new")])
    frame = frame.with_columns(pl.col("category").str.split("|"))
    with pytest.raises(InputError, match=r"item 2, which had \['blue', 'hats', 'wool'\] before, expected one category"):
        Dataset.from_frame(frame, {"skip": 0, "click": 1})


def test_tags_that_no_model_looks_at_are_told() -> None:
    many = [[f"t{tag}" for tag in range(MOST_TAGS + more)] for more in (0, 2, 3, 1)]
    items = pl.DataFrame({"item_id": [0, 1, 2, 3], "tags": many})
    data = Dataset.from_frame(day(0).drop("category"), {"skip": 0, "click": 1}, items=items)
    (warned,) = [one for one in data.manifest["warnings"] if one["kind"] == "many tags"]
    assert warned["value"] == 1 + 2 + 2  # the third one's last value is its own, which tells nothing of others
    assert "Column tags of items.parquet: 3 items have more than 16 values" in warned["message"]
    few = Dataset.from_frame(day(0), {"skip": 0, "click": 1}, items=items.with_columns(pl.col("tags").list.head(16)))
    assert "many tags" not in [one["kind"] for one in few.manifest["warnings"]]


def test_list_columns_are_proposed() -> None:
    names = {"session": "session_id", "time": "timestamp", "item": "item_id", "response": "response"}
    frame = rows_of(names)
    item = pl.col("item_id").cast(pl.String)
    turned = pl.int_range(pl.len()) % 2 == 0  # the same several in another order
    lists = pl.when(turned).then(pl.concat_list(item, pl.lit("x"))).otherwise(pl.concat_list(pl.lit("x"), item))
    found = proposed(frame.with_columns(lists.alias("category")))
    assert found.map["category"] == "category"
    assert "category_separator" not in found.options
    (reason,) = [one.reason for one in found.choices if one.role == "category"]
    assert "the same several" in reason
    other = pl.concat_list(pl.int_range(pl.len()).cast(pl.String), pl.lit("x"))  # another one in each row
    assert "category" not in proposed(frame.with_columns(other.alias("category"))).map
