"""The page on Kubernetes: its YAML can be read, its parts name each other, and the options are those of the server."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from test_cli import run

PAGE = Path(__file__).parents[1] / "docs" / "kubernetes.md"


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = list(yaml.safe_load_all(block))
    assert all(one["apiVersion"] and one["metadata"]["name"] for one in found)
    return {one["kind"]: one for one in found}


def test_the_parts_name_each_other(objects: dict[str, dict[str, Any]]) -> None:
    assert objects.keys() == {"Secret", "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"}
    spec = objects["Deployment"]["spec"]
    labels, pod = spec["template"]["metadata"]["labels"], spec["template"]["spec"]
    for selector in (
        spec["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (container,) = pod["containers"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes.keys()
    assert (
        volumes["policies"]["persistentVolumeClaim"]["claimName"]
        == objects["PersistentVolumeClaim"]["metadata"]["name"]
    )
    secret = objects["Secret"]
    assert volumes["keys"]["secret"]["secretName"] == secret["metadata"]["name"]
    named = {one["key"] for one in volumes["keys"]["secret"]["items"]}
    named |= {one["valueFrom"]["secretKeyRef"]["key"] for one in container["env"]}
    assert named == secret["stringData"].keys()
    (port,) = container["ports"]
    assert {one["httpGet"]["port"] for name, one in container.items() if name.endswith("Probe")} == {port["name"]}
    assert f"--port={port['containerPort']}" in container["args"]
    mounts = [Path(one["mountPath"]) for one in container["volumeMounts"]]
    for path in (Path(word.rpartition("=")[2]) for word in container["args"] if "/" in word and "://" not in word):
        if path.is_absolute():
            assert any(path.is_relative_to(mount) for mount in mounts), path


def test_the_options_are_those_of_the_server(objects: dict[str, dict[str, Any]]) -> None:
    help_text = run("serve", "--help").stdout
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text))
    words = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[:2] == ["bcd4rec", "serve"]
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE.read_text(encoding="utf-8"))) - {"--help"}
    assert {"--workers", "--shared", "--database"} <= options
    assert options <= known
    assert mentioned <= known


def test_the_probes_are_routes(objects: dict[str, dict[str, Any]]) -> None:
    from bcd4rec.serving.middleware import PROBES

    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    probes = {one["httpGet"]["path"] for name, one in container.items() if name.endswith("Probe")}
    assert probes == set(PROBES)
