"""What every page has to be: well nested, with unique ids that resolve, and complete without anything else."""

import re
from html.parser import HTMLParser


class Structure(HTMLParser):
    """Tags must nest; ids, attributes and visible text are collected."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def assert_loads_nothing(page: str) -> None:
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    structure = Structure(page)
    assert not any(structure.all(tag) for tag in ("script", "img", "iframe", "object", "embed", "audio", "video"))
    assert [link["href"] for link in structure.all("link")] == ["data:,"]
    for _, attributes in structure.tags:
        assert not any(name.startswith("on") for name in attributes)
        target = attributes.get("xlink:href") or attributes.get("href") or "#"
        assert target.startswith("#") or target == "data:,"
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def assert_references_resolve(page: str) -> None:
    ids = [attributes["id"] for _, attributes in Structure(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    found = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)
    assert found
    assert {first or second for first, second in found} <= set(ids)
