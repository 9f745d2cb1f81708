"""A small shop's log by days, for tests: slates of three, users who come back, and items that are new each day."""

from pathlib import Path

import numpy as np
import polars as pl

MIDNIGHT = 1_760_400_000  # 2025-10-14, in seconds


def day_of_log(day: int, sessions: int = 12, seed: int = 0) -> pl.DataFrame:
    """The rows of the sessions that begin on one day, in time order of the sessions."""
    rng = np.random.default_rng([seed, day])
    rows = []
    for number, start in enumerate(np.sort(rng.integers(0, 86_000, sessions))):
        for request in range(int(rng.integers(1, 5))):
            # Later days have items with smaller and with larger ids than those before.
            for position, item in enumerate(rng.choice(20 + 3 * day, 3, replace=False) * 7 % 53 + 1000):
                chance = rng.random()
                rows.append(
                    {
                        "session_id": f"{day}-{number}",
                        "timestamp": MIDNIGHT + day * 86_400 + int(start) + 20 * request,
                        "request_id": f"{day}-{number}-{request}",
                        "position": position,
                        "item_id": int(item),
                        "category": f"c{item % 4}" if item % 9 else None,
                        "user_id": f"u{rng.integers(40)}" if not position + request else None,
                        "response": "skip" if chance < 0.7 else "click" if chance < 0.95 else "buy",
                        "propensity": 0.1,
                    }
                )
    frame = pl.DataFrame(rows, schema_overrides={"category": pl.String})
    return frame.with_columns(pl.col("user_id").drop_nulls().first().over("session_id"))


def write_days(folder: Path, days: int) -> list[Path]:
    """One file for each day: `day=2025-10-14/part-0.parquet`."""
    files = []
    for day in range(days):
        date = np.datetime64(MIDNIGHT + 86_400 * day, "s").astype("datetime64[D]")
        file = folder / f"day={date}" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        day_of_log(day).write_parquet(file)
        files.append(file)
    return files
