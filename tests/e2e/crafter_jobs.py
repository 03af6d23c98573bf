"""Jobs of Crafter from pictures: SFT on the scripted expert's episodes, then RL, whichever engine serves them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from task_apps.crafter.dataset import rows
from tests.e2e.platform import Platform

TURNS = 3
GROUPS, GROUP = 4, 4
#: Worlds in which something is within a few steps: random actions unlock something in half of their episodes.
SEEDS = [1, 2, 6, 11, 15, 26, 33, 49, 52, 59, 72, 80, 81, 89, 94, 97]
#: A small world is made in 30 ms; a picture of 32 pixels is one token of Qwen3-VL.
ENV: dict[str, Any] = {"area": 24, "difficulty": "easy", "max_actions": 5, "image_size": 32}
#: So large that an engine which went on with the weights before would be far from the trainer.
_LEARNING_RATE = {"lora": 2e-3, "full": 2e-4}
#: Pictures and no text; actions as text, which are 4 tokens where a call is 40.
POLICY: dict[str, Any] = {"image_only_mode": True, "action_format": "text"}


def submit_sft(platform: Platform, base: str, *, episodes: int = 64, steps: int = 60) -> str:
    """Teach a base how the expert plays, in the very pictures and words that the app shows; returns the job."""
    file = platform.shell.folder / "crafter.jsonl"
    shown = rows(range(episodes), turns=TURNS, env_config=ENV, policy_config=POLICY)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in shown))
    text = f"""
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "{base}"
[model]
max_images_per_message = 1
[training]
mode = "full_finetune"
[hyperparameters]
total_steps = {steps}
global_batch = 4
sequence_length = 2048
learning_rate = 3e-3
packing = false
"""
    return platform.submit(text, "--dataset", str(file))


def submit_rl(
    platform: Platform, app_url: str, source: str, *, mode: Literal["full", "lora"], iterations: int = 3
) -> str:
    """Let a model play from pictures alone, a picture in each of TURNS turns; returns the job.

    lora: on the language model's linear layers and the projector's.
    """
    table = '[lora]\nr = 8\nalpha = 16\ntarget_modules = ["all-linear", "mm_projector"]' if mode == "lora" else ""
    text = f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "{app_url}"
[model]
source = "{source}"
trainer_mode = "{mode}"
max_images_per_message = 1
[rollout]
env_name = "crafter"
policy_name = "crafter-react"
max_turns = {TURNS}
use_vision = true
image_only_mode = true
[rollout.env_config]
{_lines(ENV)}
[rollout.policy_config]
action_format = "text"
temperature = 0.8
max_tokens = 24
[training]
iterations_per_epoch = {iterations}
batch_size = {GROUPS}
group_size = {GROUP}
learning_rate = {_LEARNING_RATE[mode]}
warmup_ratio = 0.0
minibatches = 2
packing = false
async_level = 0
[data]
seeds = {SEEDS}
{table}
"""
    return platform.submit(text)


@dataclass(frozen=True)
class Figures:
    """What a job of `submit_rl` says of itself. mismatch, canary: the largest of all steps and versions, in nats."""

    reward_mean: list[float]
    reward_std: list[float]
    groups_kept: list[float]
    trained_tokens: list[float]
    branch_breaks: float
    mismatch: float
    canary: float


def figures_of(platform: Platform, job: str) -> Figures:
    """The figures of a job that has succeeded, for whoever reads the test's report."""
    steps = platform.steps(job)
    return Figures(
        reward_mean=[step["reward_mean"] for step in steps],
        reward_std=[step["reward_std"] for step in steps],
        groups_kept=[step["groups_kept"] for step in steps],
        trained_tokens=[step["trained_tokens"] for step in steps],
        branch_breaks=sum(step["branch_breaks"] for step in steps),
        mismatch=max(step["mismatch_max_lag0"] for step in steps),
        canary=max(e["canary_error"] for e in platform.events(job, "policy.loaded") if e["version"]),
    )


def assert_each_token_is_trained_once(platform: Platform, job: str) -> None:
    """What was sampled in the turns of a rollout is what it trained, and no step trained anything else.

    A rollout is one sequence, and one more for each reply that ends a thought: the template shows later turns what
    stands behind `</think>` alone, which a model of random weights says now and then.
    """
    for number, step in enumerate(platform.steps(job), 1):
        listed = platform.api.get(f"/api/jobs/{job}/rollouts", params={"iteration": number, "limit": 100}).json()
        trained: list[int] = []
        sequences = 0
        for rollout in listed["data"]:
            told = platform.api.get(f"/api/jobs/{job}/rollouts/{rollout['id']}").json()
            training, turns = told["training"], told["transcript"]["turns"]
            if training["state"] != "trained":
                assert training["reason"] in ("no_signal", "mean_reward"), training
                assert training["trained_tokens"] == 0
                # Its advantage is 0, in a batch that it is part of.
                sequences += training["sequences"] if training["reason"] == "mean_reward" else 0
                continue
            images = [_images(turn) for turn in turns]
            assert images == [1] * len(turns), "each turn shows a picture of its own"
            assert [turn.get("continues") for turn in turns] == [None, *range(len(turns) - 1)]
            thoughts = sum("</think>" in (turn["reply"].get("content") or "") for turn in turns[:-1])
            assert (training["sequences"], training["sequences_too_old"]) == (1 + thoughts, 0)
            sequences += training["sequences"]
            assert all(turn["sampled_tokens"] > 0 for turn in turns)
            assert training["trained_tokens"] == sum(turn["sampled_tokens"] for turn in turns)
            trained.append(training["trained_tokens"])
        assert sum(trained) == step["trained_tokens"]
        assert sequences == step["sequences"]


def _images(turn: dict[str, Any]) -> int:
    contents = [message["content"] for message in turn["messages"]]
    return sum(part["type"] == "image" for content in contents if isinstance(content, list) for part in content)


def _lines(table: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
