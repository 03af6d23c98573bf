"""A new environment whose tool has a bug: what `synthctl rollouts` shows is enough to find it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from rich.cells import cell_len

from synth.console.errors import NotFound
from synth.taskapp.sdk import Episode, TaskApp
from tests.e2e.cli.terminal import synthctl
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served, served

pytestmark = pytest.mark.timeout(1200)

GROUP = 4
TREASURES = {"0": "sand", "1": "gold", "2": "a shell"}


def look(place: int) -> dict[str, Any]:
    """The tool. Its bug: places are texts, and a number is never among them."""
    try:
        return {"found": TREASURES[place]}  # type: ignore[index]
    except KeyError as error:
        return {"error": f"KeyError: {error}"}


def weigh(found: dict[str, Any]) -> float:
    """The other tool. Its bug: nothing was found, so it divides by zero."""
    return 1 / sum(thing == "gold" for thing in found.values())


def treasure() -> TaskApp:
    """Two turns: dig somewhere, hear what the tool found, dig again; gold pays.

    The first group weighs the treasure before it digs, the second one after it has dug once.
    """
    app = TaskApp("treasure", name="Treasure", description="Dig for gold.", max_turns=2, keys=[KEY])

    @app.episode
    async def play(ep: Episode) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Dig for gold."},
            {"role": "user", "content": f"Island {ep.seed}: where do you dig?"},
        ]
        group = int(ep.request.run_id.rsplit("_", 1)[1]) // GROUP if ep.request.mode == "rl" else None
        if group == 0:
            ep.step(obs={"beach": "empty"}, reward=0.0)
            weigh({})
        for turn in range(2):
            reply = await ep.chat(messages)
            place = len(reply.content) % 3
            found = look(place)
            ep.step(
                obs=found,
                tool_calls=[{"name": "look", "arguments": {"place": place}}],
                reward=float(found.get("found") == "gold"),
                done=turn == 1,
                info={"digs_left": 1 - turn, "picture": "data:image/png;base64,iVBORw0KGgo" + "A" * 64},
            )
            if group == 1:
                weigh(found)
            messages += [reply.message, {"role": "user", "content": f"You found: {json.dumps(found)}"}]

    return app


@pytest.fixture(scope="module")
def app() -> Iterator[Served]:
    with served(treasure()) as running:
        yield running


@pytest.fixture(scope="module")
def job(platform: Platform, app: Served) -> str:
    """One iteration of 4 groups of 4, the first of which fails."""
    settings = "rollout_timeout_s = 20.0\nmax_retries = 1"
    job = platform.submit(rl("tiny-qwen3", app.url, env="treasure", turns=2, iterations=1, rollout=settings))
    platform.outcome(job)
    return job


def test_the_list_says_that_no_rollout_earned_anything_and_which_failed(platform: Platform, job: str):
    rollouts = platform.shell.json("rollouts", "ls", job)
    assert len(rollouts) == 16
    assert {r["reward"] for r in rollouts} == {0.0, None}
    failed = platform.shell.json("rollouts", "ls", job, "--failed")
    assert {r["index"] for r in failed} == set(range(2 * GROUP))
    assert {r["outcome"] for r in failed if r["group"] == 0} == {"failed"}
    [first] = platform.shell.json("rollouts", "ls", job, "--best", "--limit", "1")
    assert first["reward"] == 0.0
    assert platform.shell.json("rollouts", "ls", job, "--iteration", "7") == []
    seeds = {r["seed"] for r in rollouts}
    of_one = platform.shell.json("rollouts", "ls", job, "--seed", str(min(seeds)))
    assert len(of_one) == GROUP


def test_a_rollout_shows_what_the_tool_really_answered_and_why_nothing_was_learnt(platform: Platform, job: str):
    screen = platform.shell.ok("rollouts", "show", job, "t1_9")
    assert '"error": "KeyError: ' in screen
    assert "look(place=" in screen
    assert "You found: " in screen
    assert "reward 0" in screen
    assert "all rewards of its group are equal" in screen
    assert "[image/png, " in screen or '"image": "image/png"' in screen
    assert "AAAA" not in screen
    assert screen.index("turn 1") < screen.index("step 1") < screen.index("turn 2") < screen.index("step 2")
    shown = platform.shell.json("rollouts", "show", job, f"{job}_t1_9")
    assert shown["training"]["reason"] == "no_signal"
    turns, steps = shown["transcript"]["turns"], shown["transcript"]["answer"]["steps"]
    assert [turn["continues"] for turn in turns] == [None, 0]
    assert [message["role"] for message in turns[1]["messages"]] == ["user"]
    assert [step["reward"] for step in steps] == [0.0, 0.0]
    assert sum(turn["sampled_tokens"] for turn in turns) == shown["completion_tokens"]
    assert turns[0]["versions"] == [0, 0]


@pytest.mark.parametrize("columns", [120, 80, 44])
def test_on_a_terminal_of_any_width_nothing_is_lost(platform: Platform, job: str, columns: int):
    asked = (("show", job, "t1_9"), ("ls", job))
    looked = [synthctl(columns, "rollouts", *words, cwd=platform.shell.folder) for words in asked]
    assert [(found.code, max(map(cell_len, found.lines)) <= columns) for found in looked] == [(0, True)] * 2
    shown, listed = (found.text for found in looked)
    assert '{"error":"KeyError:' in "".join(shown.split())
    assert all(f"t1_{index}" in listed for index in range(16))
    assert "…" not in shown.replace("…[", "")


def test_a_failed_rollout_shows_its_exception_its_tries_and_what_came_before(platform: Platform, job: str):
    screen = platform.shell.ok("rollouts", "show", job, "t1_0")
    assert "ZeroDivisionError: division by zero (" in screen
    assert "test_rollouts.py:" in screen
    assert "in weigh" in screen
    assert "failed all of its tries" in screen
    assert '{"beach": "empty"}' in screen, "the step before it"
    shown = platform.rollout(job, "t1_0")
    assert (shown["tries"], len(shown["failed_tries"])) == (2, 1)
    assert "ZeroDivisionError" in shown["failed_tries"][0]["problem"]["what"]


def test_an_exception_after_a_reply_shows_the_reply_and_whose_failure_it_counts_as(platform: Platform, job: str):
    screen = platform.shell.ok("rollouts", "show", job, "t1_5")
    assert "ZeroDivisionError: division by zero (" in screen
    assert "test_rollouts.py:" in screen
    assert "where do you dig?" in screen
    assert '"error": "KeyError: ' in screen
    shown = platform.rollout(job, "t1_5")
    [turn] = shown["transcript"]["turns"]
    # A reply that was cut off is the policy's failure, whatever the environment makes of it.
    if turn["finish_reason"] == "length":
        assert shown["outcome"] == "policy_failure"
        assert "counts as the policy's" in screen
    else:
        assert shown["outcome"] == "failed"


def test_the_rollouts_of_an_evaluation_are_read_the_same_way(platform: Platform, app: Served):
    toml = '[eval]\nmodel = "tiny-qwen3"\nseeds = "0-2"\nenv_name = "treasure"\nmax_turns = 2\nmax_tokens = 8\n'
    job = platform.submit(toml, "--task-url", app.url)
    platform.succeeded(job)
    rollouts = list(platform.client.jobs.rollouts(job, limit=20))
    assert sorted((r.id.removeprefix(job), r.mode) for r in rollouts) == [(f"_e0_{i}", "eval") for i in range(3)]
    screen = platform.shell.ok("rollouts", "show", job, "e0_1")
    assert "evaluation, seed 1" in screen
    assert "KeyError" in screen
    said = platform.shell.ok("jobs", "events", job, "--type", "rollout.completed")
    assert "seed 1: reward 0 ok" in said


def test_another_organisation_finds_neither_the_list_nor_the_rollout(platform: Platform, job: str):
    made = platform.api.post("/api/organisations", json={"name": "diggers"}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {made['first_key']['key']}"}
    with httpx.Client(base_url=platform.api.base_url, headers=headers, timeout=60) as stranger:
        for path in ("", "/t1_9", f"/{job}_t1_9"):
            reply = stranger.get(f"/api/jobs/{job}/rollouts{path}")
            unknown = stranger.get(f"/api/jobs/job_nowhere/rollouts{path}")
            assert reply.status_code == unknown.status_code == 404
            assert reply.json()["error"]["code"] == unknown.json()["error"]["code"] == "job_not_found"


def test_a_rollout_that_is_not_there_is_said_so(platform: Platform, job: str):
    for name in ("t9_0", "t1_99"):
        with pytest.raises(NotFound, match="there is no rollout"):
            platform.client.jobs.rollout(job, name)
    done = platform.shell.run("rollouts", "show", job, "nonsense")
    assert done.returncode == 6
    assert "there is no rollout" in done.stderr
