"""How long `start` takes is said before the file is read: rows by bytes, for each kind of file."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from bcd4rec.commands.start import _estimate
from bcd4rec.data.row_estimate import about_rows, items_of_a_row
from test_cli import run


def lines(rows: int) -> str:
    return "visit,sku,event\n" + "".join(f"v{row // 7},sku{row * 7919 % 523},view\n" for row in range(rows))


@pytest.mark.parametrize("rows", [30, 200_000])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "csv.zst", "parquet", "folder"])
def test_rows_by_bytes(tmp_path: Path, kind: str, rows: int) -> None:
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        path.write_text(lines(rows))
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(lines(rows).encode()))
    elif kind == "csv.zst":
        import pyarrow as pa

        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(lines(rows).encode())
    elif kind == "parquet":
        pl.DataFrame({"sku": range(rows)}).write_parquet(path)
    else:
        path.mkdir()
        for day in range(3):
            (path / f"{day}.csv").write_text(lines(rows // 3))
    assert about_rows(path) == pytest.approx(rows, rel=0.2)  # packed files are read some way ahead


def test_rows_of_lists_are_several_impressions() -> None:
    frame = pl.DataFrame({"shown": [["a", "b"], ["c"]], "text": ["N1-0 N2-1 N3-0", "N1-0"], "item_1": 1, "item_2": 2})
    given = {"shown": 1.5, "text": 2.0, "item_*": 2.0, "gone": 1.0}
    assert {column: items_of_a_row(frame, {"items": column}) for column in given} == given
    assert items_of_a_row(frame, {"item": "item_1"}) == 1.0


def test_feeds_and_propensities_take_longer() -> None:
    assert _estimate(1_000_000, False, False) == "This takes about 30 seconds for 1,000,000 rows"
    assert _estimate(1_000_000, True, True) == "This takes about 3 minutes for 1,000,000 rows"


def test_it_is_said_before_the_file_is_read(tmp_path: Path) -> None:
    """A file that breaks while it is read: the estimate stands above."""
    log = tmp_path / "log.csv"
    log.write_text(
        "visit,sku,event,ts\n"
        + "".join(f"v{n // 4},s{n % 9},view,{1709280000 + n}\n" for n in range(400))
        + "v9,s1,,1709290000\n"
    )
    done = run("start", log, "--yes", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "This takes about 10 seconds for about 400 rows (by the size of the file)" in done.stderr
    assert done.stderr.index("This takes about") < done.stderr.index("Reading and checking")
