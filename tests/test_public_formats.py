"""Logs in the forms in which people and public data sets keep them: the right mapping, which reads them whole."""

from pathlib import Path
from typing import Any

import pytest

from bcd4rec.data.proposals.proposing import propose
from bcd4rec.data.proposals.sampling import sample_of
from public_formats import FORMATS
from test_cli import result


@pytest.mark.parametrize("name", FORMATS)
def test_the_mapping_is_right_and_reads_the_log(tmp_path: Path, name: str) -> None:
    make, expected = FORMATS[name]
    log = make(tmp_path)
    found = propose(sample_of(log))
    assert found.options == {"repeats": "merge", **expected}
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(found.to_toml("about"))
    checked = result("check", log, "--map", mapping, "--sort")
    assert checked["sessions"] >= 20
    liked = sum(count for response, count in checked["responses"].items() if response != "skip")
    assert liked > 50
    assert (checked["responses"]["skip"] > liked / 2) == _tells_skips(expected)


def _tells_skips(options: dict[str, Any]) -> bool:
    rules = {**options.get("responses", {}), **options.get("files", {})}
    return "skip" in rules.values() or "clicked" in options["map"]
