"""The gallery of `docs/gallery.md`: three made-up logs, `bcd4rec start` on each, and pictures of its pages.

Run as:  python scripts/make_gallery.py [WORK [PICTURES]]   (needs Chromium; a log and its page stay in WORK)
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import CHROMIUM, browser

SIZES = {"desk": (1280, 1360), "phone": (390, 1750)}  # what a picture shows: the top of the page
BEGIN = 1_709_280_000  # 1 March 2024, 8 o'clock


def played(folder: Path, *given: str) -> pl.DataFrame:
    log = folder / "played.parquet"
    command = [sys.executable, "-m", "bcd4rec.cli", "simulate", *given, "--logs", str(log), "--force"]
    subprocess.run(command, check=True)  # noqa: S603
    return pl.read_parquet(log)


def clock(unit: int = 1) -> pl.Expr:
    """Sessions begin forty seconds apart, steps follow each other by thirty."""
    return (BEGIN + 40 * pl.col("session_id").cast(pl.Int64) + 30 * pl.col("step").cast(pl.Int64)) * unit


def shop(folder: Path) -> pl.DataFrame:
    """Result pages of a shop, five items each, without propensities."""
    log = played(folder, "--env", "shop", "--preset", "pages-biased", "--users", "3000").filter(~pl.col("organic"))
    words = {"skip": "view", "click": "click", "buy": "order"}
    return log.select(
        pl.format("v{}", "session_id").alias("visit"),
        clock().alias("ts"),
        pl.col("request_id").alias("result_page"),
        pl.col("position").alias("slot"),
        pl.format("sku{}", "item_id").alias("sku"),
        pl.format("aisle {}", "category").alias("department"),
        pl.col("response").replace_strict(words).alias("event"),
    )


def feed(folder: Path) -> pl.DataFrame:
    """A feed of single videos, drawn at random with known chances."""
    log = played(folder, "--env", "recsim", "--preset", "single", "--users", "1500")
    return log.select(
        pl.format("w{}", "session_id").alias("viewer"),
        clock(1000).alias("ms"),
        pl.format("video{}", "item_id").alias("video"),
        pl.format("genre {}", "category").alias("genre"),
        pl.col("propensity").alias("prob"),
        pl.col("response").replace_strict({"skip": "swipe", "click": "watch"}).alias("event"),
    )


def reads(folder: Path) -> pl.DataFrame:
    """Clicks only: what people read, and nothing about what else they were shown."""
    log = played(folder, "--env", "shop", "--preset", "pages", "--users", "4000").filter(pl.col("response") != "skip")
    return log.select(
        pl.format("r{}", "session_id").alias("reader"),
        clock().alias("time"),
        pl.format("article{}", "item_id").alias("article"),
        pl.format("section {}", "category").alias("section"),
    )


LOGS: dict[str, Callable[[Path], pl.DataFrame]] = {"shop": shop, "feed": feed, "reads": reads}


def take(page: Path, picture: Path, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(Path(profile)) as window:
        window.size(width, height, touch=width < 600)
        window.open(page.resolve().as_uri())
        overflow = window.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if overflow > 0:
            raise SystemExit(f"{page} is {overflow} pixels wider than a screen of {width}.")
        window.screenshot(picture, whole=False)


def main(work: Path, pictures: Path) -> None:
    if CHROMIUM is None:
        raise SystemExit("There is no Chromium to take pictures with.")
    pictures.mkdir(parents=True, exist_ok=True)
    for name, make in LOGS.items():
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        make(folder).write_csv(folder / f"{name}.csv")
        command = [sys.executable, "-m", "bcd4rec.cli", "start", f"{name}.csv", "--yes"]
        subprocess.run(command, check=True, cwd=folder)  # noqa: S603
        for size, (width, height) in SIZES.items():
            take(folder / f"start-{name}" / "start.html", pictures / f"{name}-{size}.png", width, height)


if __name__ == "__main__":
    given = [Path(one) for one in sys.argv[1:]]
    here = Path(__file__).parents[1] / "docs" / "gallery"
    with tempfile.TemporaryDirectory() as spare:
        main(given[0] if given else Path(spare), given[1] if len(given) > 1 else here)
