"""Agents with a tool, trained: one in the plain openai SDK, and one of a framework in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.maze_rows import rows
from synth.bus.server.embedded import free_port
from tests.clients.conftest import BASE, ENVIRONMENT_KEY, venv_of
from tests.e2e.cli.conftest import OURS, eventually
from tests.e2e.platform import Platform
from tests.unit.repository.test_docs import ROOT, blocks

pytestmark = pytest.mark.timeout(900)

#: The maze's tool as Pydantic AI describes it.
FRAMEWORK_TOOL: dict[str, Any] = {
    "name": "go",
    "description": "",
    "parameters": {
        "additionalProperties": False,
        "properties": {"to": {"enum": ["left", "right"], "type": "string"}},
        "required": ["to"],
        "type": "object",
    },
    "strict": True,
}
PLAIN, FRAMEWORK = "plain", "pydantic-ai"


@pytest.fixture(scope="session")
def walker(platform: Platform) -> str:
    """A model that calls the tool, as either agent describes it, and walks at random."""
    walks = list(rows(2000, seed=0))
    for row in walks[::2]:
        row["tools"] = [{"type": "function", "function": FRAMEWORK_TOOL}]
    file = platform.shell.folder / "maze.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in walks))
    flags = ("--dataset", str(file), "--model", BASE, "--detach")
    job = platform.shell.ok("submit", str(ROOT / "configs/maze/sft.toml"), *flags).strip()
    return platform.succeeded(job)["model"]


@contextmanager
def app_of(kind: str, folder: Path) -> Iterator[str]:
    """The address of an agent's task app, a process of the Python that has its client."""
    shown = {True: "pydantic_ai", False: 'TaskApp("maze"'}[kind == FRAMEWORK]
    [block] = [b for b in blocks(ROOT / "docs/agents.md", "python") if shown in b and (kind != PLAIN or "OpenAI(" in b)]
    (folder / "agent.py").write_text(block)
    python = str(venv_of(FRAMEWORK) / "bin" / "python") if kind == FRAMEWORK else sys.executable
    port = free_port()
    code = f"import agent; from synth.taskapp.sdk import serve; serve(agent.maze, port={port})"
    env = {k: v for k, v in os.environ.items() if k not in OURS}
    env |= {"PYTHONPATH": f"{ROOT / 'shared'}", "ENVIRONMENT_API_KEY": ENVIRONMENT_KEY}
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen([python, "-c", code], cwd=folder, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(url), timeout=60)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("kind", [PLAIN, FRAMEWORK])
def test_a_tool_agent_is_trained_as_one_sequence_a_rollout(platform: Platform, walker: str, tmp_path: Path, kind: str):
    config = (ROOT / "configs/maze/rl.toml").read_text()
    turns = 3 if kind == FRAMEWORK else 2
    config = config.replace("iterations_per_epoch = 12", "iterations_per_epoch = 3")
    config = config.replace("max_turns = 2", f"max_turns = {turns}")
    with app_of(kind, tmp_path) as url:
        job = platform.submit(config, "--model", walker, "--task-url", url)
        ended = platform.succeeded(job)
    assert ended["rollouts"]["failed"] == 0, (tmp_path / "agent.log").read_text()
    steps = platform.steps(job)
    assert [step["branch_breaks"] for step in steps] == [0.0] * 3
    assert all(step["groups_kept"] > 0 for step in steps)
    assert all(0 < step["reward_mean"] < 1 for step in steps)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/").status_code == 200
    except httpx.TransportError:
        return False
