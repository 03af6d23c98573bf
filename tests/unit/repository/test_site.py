"""The documentation site has every page, its links lead to sections that are pages, and nothing broken passes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from contracts.site.pages import ROOT, BrokenLink, Site, parts_of, slug, sources
from contracts.site.sequence import draw


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    Site(ROOT).write(target)
    return target


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with docs that a test may change."""
    root = tmp_path / "copy"
    root.mkdir()
    for entry in ROOT.iterdir():
        if entry.name[0] != "." and entry.name != "docs":
            (root / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", root / "docs")
    return root


def test_every_page_of_docs_has_one_place_in_the_navigation():
    listed = sources()
    assert len(listed) == len(set(listed))
    assert {page for page in listed if page.startswith("docs/")} == {
        str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")
    }


def test_the_home_page_lists_every_page():
    home = (ROOT / "docs/index.md").read_text()
    missing = [
        page for page in sources() if f"({page.removeprefix('docs/')}" not in home and f"(../{page})" not in home
    ]
    assert missing == ["docs/index.md"]


def test_a_section_of_a_long_page_is_a_page_with_its_headings_raised():
    text = "# Title\n\nAbout.\n\n## One `thing`\n\n```text\n## no heading\n```\n\n### Part\n\n## Two\n\nEnd.\n"
    overview, one, two = parts_of("docs/operations.md", text)
    assert (overview.path, overview.text) == ("operations/index.md", "# Title\n\nAbout.\n\n")
    assert (one.path, one.title) == ("operations/one-thing.md", "One thing")
    assert one.text == "# One `thing`\n\n```text\n## no heading\n```\n\n## Part\n\n"
    assert one.anchors == {"one-thing": "One `thing`", "part": "Part"}
    assert (two.path, two.text) == ("operations/two.md", "# Two\n\nEnd.\n")


def test_a_link_to_a_section_leads_to_its_page_and_has_its_title(pages: Path):
    quickstart = (pages / "quickstart.md").read_text()
    assert "([Where `synthctl` sends a key](security/credentials.md#where-synthctl-sends-a-key))" in quickstart
    assert "[Datasets](datasets.md)" in quickstart
    upgrades = (pages / "operations/upgrades.md").read_text()
    assert not re.search(r"\]\((?!https?:|\.\./|[\w-]+\.md)", upgrades)


def test_a_link_to_code_leads_to_a_page_with_it(pages: Path):
    page = (pages / "code/shared/synth/ids.py.md").read_text()
    assert (ROOT / "shared/synth/ids.py").read_text().rstrip() in page
    assert "`sweep.py`" in (pages / "code/shared/synth/erasure/index.md").read_text()


def test_marks_of_blocks_and_escapes_for_other_hosts_are_left_out(pages: Path):
    texts = [page.read_text() for page in pages.rglob("*.md") if "code" not in page.relative_to(pages).parts]
    assert not any(re.search("^ *<!-- ", text, re.MULTILINE) for text in texts)
    assert "| `<|im_end|>` |" in (pages / "models.md").read_text()


@pytest.mark.parametrize("link", ["no-such.md", "quickstart.md#no-such", "../shared/no_such.py", "#no-such"])
def test_a_broken_link_ends_the_build_with_its_page(link: str, copy: Path, tmp_path: Path):
    page = copy / "docs/rewards.md"
    page.write_text(page.read_text() + f"\n[broken]({link})\n")
    with pytest.raises(BrokenLink, match=re.escape(f"docs/rewards.md links to {link}")):
        Site(copy).write(tmp_path / "site")


def test_an_anchor_is_made_as_hosts_of_repositories_make_it():
    assert slug("RL: `[training.lora]`") == "rl-traininglora"
    assert slug("57. Each service has an account, and more") == "57-each-service-has-an-account-and-more"


def test_a_sequence_diagram_is_drawn_with_every_message():
    text = "sequenceDiagram\n participant A as User\n participant B as gateway\n A->>B: POST <job>\n loop each k\n"
    svg = draw(f"{text} B-->>A: reply\n Note over B: done\n end\n")
    assert svg.startswith('<figure class="sequence"><svg ')
    for shown in ("User", "gateway", "POST &lt;job&gt;", "reply", "done", "loop: each k"):
        assert f">{shown}</text>" in svg
    assert "\n\n" not in svg


@pytest.mark.parametrize("line", ["A-xB: lost", "alt one", "Note left of A: x"])
def test_a_line_of_a_diagram_that_cannot_be_drawn_is_refused(line: str):
    with pytest.raises(ValueError, match=re.escape(line)):
        draw(f"sequenceDiagram\n participant A as User\n participant B as B\n {line}\n")


def test_pictures_of_terminals_load_no_font_from_another_host():
    pictures = sorted((ROOT / "docs/pictures").glob("*.svg"))
    assert pictures
    harmless = {
        picture.name for picture in pictures if not re.search(r"url\((?!#)|@font-face|@import", picture.read_text())
    }
    assert harmless == {picture.name for picture in pictures}
