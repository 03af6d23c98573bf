"""The built site, which `make site` makes: three clicks to each page, search, and nothing from another host."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

from tests.docs.blocks import ROOT

HTML = ROOT / ".site/html"
_HREF = re.compile(r'<a\b[^>]*\bhref="?([^"#?\s>]+)')
_ASSET = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


@cache
def pages() -> dict[str, str]:
    """The text of each page, by its path."""
    assert HTML.is_dir(), "run `make site`"
    return {str(page.relative_to(HTML)): page.read_text() for page in HTML.rglob("*.html") if page.name != "404.html"}


def links(page: str) -> set[str]:
    folder = Path(page).parent
    return {os.path.normpath(folder / link) for link in _HREF.findall(pages()[page]) if "://" not in link}


def test_each_page_is_three_clicks_from_the_home_page():
    reached = {"index.html"}
    for _ in range(3):
        reached |= {link for page in reached for link in links(page) & pages().keys()}
    assert sorted(pages().keys() - reached) == []


def test_no_link_of_a_page_leads_nowhere():
    missing = {f"{page}: {link}" for page in pages() for link in links(page) if not (HTML / link).exists()}
    assert missing == set()


def test_nothing_is_loaded_from_another_host():
    assert {page: hosts for page, text in pages().items() if (hosts := _ASSET.findall(text))} == {}
    styles = "".join(file.read_text() for file in HTML.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import[^;]*;", styles) == []


def test_search_has_every_page_but_the_code():
    index = json.loads((HTML / "search/search_index.json").read_text())
    indexed = {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"]}
    assert {page for page in pages() if not page.startswith("code/")} == indexed
