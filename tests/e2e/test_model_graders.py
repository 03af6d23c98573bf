"""RL that a grader pays which asks a model, over HTTP, beside a check; and graders that are code, which are off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import JOB_S, Platform
from tests.e2e.test_judging import vowels_of
from tests.judge_server import JudgeCall, JudgeServer, Scripted, prose, said

pytestmark = pytest.mark.timeout(1200)

_HEAD = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"

[job]
data = "{data}"

[data]
seeds = "0-15"

[model]
base = "tiny-qwen3"

[training]
iterations_per_epoch = {iterations}
batch_size = 4
group_size = 4
learning_rate = 3e-3

[rollout]
rollout_timeout_s = 20.0

[rollout.policy_config]
max_tokens = 12
"""
_SCORED = """
[grader]
type = "multi"
name = "pays"
calculate_output = "score / 10 + 0.5 * worded"

[grader.graders.worded]
type = "string_check"
name = "worded"
operation = "ne"
input = "{{sample.output_text}}"
reference = ""

[grader.graders.score]
type = "score_model"
name = "score"
model = "a-judge"
range = [0, 10]
input = [
  {role = "developer", content = "How many vowels are in the reply to {{ item.messages[0].content }}"},
  {role = "user", content = "The reply: {{ sample.output_text }}"},
]
"""
_JUDGE = """
[[judge.judges]]
model = "a-judge"
url = "{url}"
"""


def vowels(call: JudgeCall) -> Scripted:
    """What a judge of vowels says, from 0 to 10."""
    return said(json.dumps({"reason": "counted", "score": 10 * vowels_of(json.loads(call.text))}))


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(vowels) as server:
        yield server


@pytest.fixture(scope="module")
def prompts(platform: Platform) -> Path:
    rows = [{"messages": [{"role": "user", "content": f"What is {n} + {n}?"}]} for n in range(16)]
    file = platform.shell.folder / "asked.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def _job(prompts: Path, judge: JudgeServer, *, iterations: int, judging: str = "", grader: str = _SCORED) -> str:
    head = _HEAD.format(data=prompts, iterations=iterations)
    return f"{head}{grader}[judge]\n{judging}\n{_JUDGE.format(url=judge.url)}"


def _judged(platform: Platform, job: str) -> list[dict[str, Any]]:
    return platform.events(job, "rollout.judged")


@pytest.mark.long
def test_the_policy_learns_what_a_model_in_a_multi_pays(platform: Platform, prompts: Path, judge: JudgeServer):
    made = platform.submit(_job(prompts, judge, iterations=45))
    log = platform.shell.folder / ".synth" / "logs" / "rollouts.log"
    told = log.read_text().count("judges are away")
    judge.wait_for_calls(4 * 16 + 1, timeout=JOB_S)
    judge.stop()
    eventually(lambda: log.read_text().count("judges are away") > told, timeout=JOB_S)
    judge.start()
    found = platform.succeeded(made)
    rollouts = found["rollouts"]["completed"]
    assert (found["step"], rollouts) == (45, 45 * 16)
    assert (found["judge"]["judged"], found["judge"]["unscored"]) == (rollouts, 0)
    # An empty reply is a check that fails, and a question like any other.
    assert found["judge"]["calls"] >= len({call.text for call in judge.calls if call.asked_again is None})
    rewards = [step["reward_mean"] for step in platform.steps(made)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1, rewards
    assert all(event["reward"] == event["environment"] for event in _judged(platform, made))


def test_a_judge_whose_answers_are_no_scores_ends_the_job_and_pays_nothing(
    platform: Platform, prompts: Path, judge: JudgeServer
):
    judge.script = prose
    made = platform.submit(_job(prompts, judge, iterations=2, judging="max_attempts = 2"))
    code, job = platform.outcome(made)
    assert (code, job["state"], job["code"]) == (3, "failed", "judge_failed")
    assert "no scores" in job["problems"][0]["what"]
    assert all(event["reward"] is None for event in _judged(platform, made))


def test_a_grader_that_nobody_would_answer_or_run_is_refused_before_the_job_starts(
    platform: Platform, prompts: Path, judge: JudgeServer
):
    text = _job(prompts, judge, iterations=2).replace(f'url = "{judge.url}"', 'provider = "nobody"')
    code, job = platform.outcome(platform.submit(text, "--no-preflight"))
    assert (code, job["code"]) == (3, "refused")
    assert "nobody" in job["problems"][0]["what"]
    python = '[grader]\ntype = "python"\nname = "p"\nsource = "def grade(sample, item): return 1"\n'
    code, job = platform.outcome(platform.submit(_HEAD.format(data=prompts, iterations=2) + python, "--no-preflight"))
    assert (code, job["state"]) == (3, "rejected")
    assert "runs no code" in job["problems"][0]["what"]
    assert judge.calls == []
