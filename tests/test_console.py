"""What a person sees: tables that fit the page with names whole, and progress where there is no terminal."""

import time

import pytest
from rich.table import Table

from bcd4rec import console

POLICIES = ("bcd4rec", "a-policy-with-a-long-name", "logged order")
NAMES = ("policy", "AUC", "MRR", "nDCG@5", "top 1", "AUC − ctr", "AUC, first", "AUC, later", "tied %")


def wide() -> Table:
    table = Table(title="How they rank", title_justify="left")
    for name in NAMES:
        table.add_column(name, justify="right")
    for policy in POLICIES:
        table.add_row(policy, *(f"0.{number}12 [0.{number}01, 0.{number}23]" for number in range(1, len(NAMES))))
    return table


@pytest.mark.parametrize("columns", [60, 80, 120, 400])
def test_a_wide_table_keeps_names_and_numbers_whole(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    console.show(wide())
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= columns
    assert "…" not in told
    assert told.count("How they rank") == 1
    for number, name in enumerate(NAMES):
        assert told.count(name if number else "policy") >= 1
    parts = told.count("policy ")
    assert (parts == 1) == (columns == 400)
    for policy in POLICIES:
        assert told.count(policy) == parts
    for number in range(1, len(NAMES)):
        assert told.count(f"0.{number}12 [0.{number}01, 0.{number}23]") == len(POLICIES)


def test_progress_is_lines_where_there_is_no_terminal(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.progress() as tick:
        for second in range(40):
            now[0] = float(second)
            tick("reading" if second < 20 else "writing", second % 20 / 20)
    told = capsys.readouterr().err.splitlines()
    assert told == ["reading: 15 %", "reading: 70 %", "writing", "writing: 55 %"]


def test_short_work_is_quiet(capsys):
    with console.progress() as tick:
        tick("reading", 0.5)
    assert capsys.readouterr() == ("", "")
