"""What the pages say is so: links lead somewhere, commands exist with their options, job files are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from synth.jobs.parse.validate import load_job
from synth.taskapp.llm import ChatClients
from synth.taskapp.sdk import TaskApp
from tests.unit.repository.citations import command_line
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
_FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(page.read_text()) if kind == language]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the hosts of repositories make them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(page.read_text())
    }


def shell_lines() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                yield name(page), line.partition("  #")[0].strip()


def documented_commands() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for page, line in shell_lines():
        inner = re.search(r"\$\((synthctl .*?)( \||\))", line)
        command = inner[1] if inner else line
        if command.startswith(("synthctl ", "synthd ")):
            found.append((page, shlex.split(re.split(r" [|>] ", command)[0])))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path):
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(
    ("page", "words"), documented_commands(), ids=lambda v: " ".join(v) if isinstance(v, list) else v
)
def test_every_command_exists_with_its_options(page: str, words: list[str]):
    program, *rest = words
    command = command_line(program)
    while hasattr(command, "commands"):
        # `synthctl eval FILE` is `synthctl eval run FILE`.
        name_given = rest.pop(0) if rest[0] in command.commands else "run"
        command = command.commands[name_given]
    # Parsing alone: nothing runs, and no id is looked up.
    command.make_parser(command.context_class(command)).parse_args(rest)


def test_every_make_target_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for _, line in shell_lines() if line.startswith("make ")}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_job_file_that_a_page_shows_is_accepted(page: Path):
    for block in blocks(page, "toml"):
        assert load_job(block, name=name(page)).kind in ("rl", "sft", "filter")


async def test_the_task_app_that_the_page_shows_plays_its_game(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "k")
    shown: dict[str, object] = {"__name__": "guess"}
    exec(compile(blocks(ROOT / "docs/task-apps.md", "python")[0], "guess.py", "exec"), shown)
    guess = shown["guess"]
    assert isinstance(guess, TaskApp)
    llm = ScriptedLlm(completion("1"), completion("none"), completion("38"))
    monkeypatch.setattr(guess, "_clients", ChatClients(transport=llm.transport()))
    body = {
        "run_id": "r",
        "env": {"env_name": "guess", "seed": 1},
        "policy": {"config": {"inference_url": "http://llm/v1/chat/completions?cid=trace_a", "max_llm_calls": 7}},
    }
    transport = httpx.ASGITransport(guess.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://app", headers={"X-API-Key": "k"}) as client:
        reply = await client.post("/rollout", json=body)
    # No number, then a far one, then the number itself.
    assert reply.json()["metrics"]["outcome_score"] == pytest.approx((1 - 37 / 200) / 3 + 0 + 1 / 3)
    assert [m["content"] for m in llm.bodies[-1]["messages"][1:]] == ["1", "Higher.", "none", "Not a number."]


def test_pages_say_what_is_and_nothing_of_how_it_was_built():
    for page in PAGES:
        text = page.read_text().lower()
        assert not re.search(r"\b(todo|tbd|roadmap|coming soon|not yet (implemented|supported))", text), page


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
