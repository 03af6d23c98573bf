"""An agent in the plain openai SDK, `examples/maze.py`, plays and trains: the calls of a rollout are one sequence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.maze import maze
from examples.maze_rows import rows
from tests.e2e.platform import Platform
from tests.e2e.task_apps import KEY, Served, served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

CONFIGS = Path(__file__).parents[2] / "configs" / "maze"


@pytest.fixture(scope="module")
def maze_app() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVIRONMENT_API_KEY", KEY)
        with served(maze) as app:
            yield app


def test_the_turns_of_a_tool_agent_train_as_one_sequence(platform: Platform, maze_app: Served):
    """That it learns the way out is seen where its page is run, in tests/docs."""
    walks = platform.shell.folder / "maze.jsonl"
    walks.write_text("".join(f"{json.dumps(row)}\n" for row in rows(600, seed=0)))
    few = ("--set", "hyperparameters.total_steps=150")
    taught = platform.submit((CONFIGS / "sft.toml").read_text(), "--dataset", str(walks), *few)
    model = platform.succeeded(taught)["model"]
    small = ("iterations_per_epoch=2", "batch_size=4", "group_size=4")
    flags = [part for key in small for part in ("--set", f"training.{key}")]
    job = platform.submit((CONFIGS / "rl.toml").read_text(), "--model", model, "--task-url", maze_app.url, *flags)
    platform.succeeded(job)
    steps = platform.steps(job)
    assert [step["branch_breaks"] for step in steps] == [0, 0]
    assert [step["sequences"] for step in steps] == [4 * step["groups_kept"] for step in steps]
    played = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 100}).json()["data"]
    assert {rollout["calls"] for rollout in played} >= {2}, played
