"""A model that sees: trained on rows with images, by rollouts of two pictures, served, and read again."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import httpx
import pytest

from synth.taskapp.sdk import Episode, TaskApp
from task_apps.colours.dataset import rows
from task_apps.colours.pictures import messages, picture
from tests.e2e.cli.terminal import on_terminal
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served, served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.soak]

MODEL = "tiny-qwen3-vl"
#: What a terminal says of its graphics, with the size of a cell, and how a picture begins there.
SIXELS = b"\x1b[?62;4c\x1b[6;20;10t", r"\x1bP[0-9;]*q"
KITTY = b"\x1b[?62c\x1b_Gi=1;OK\x1b\\\x1b[6;20;10t", r"\x1b_Gi=\d+,m=0,f=100"
SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "tiny-qwen3-vl"
[model]
max_images_per_message = 1
vision_processor_id = "tiny-qwen3-vl"
freeze_vision_tower = false
[training]
mode = "full_finetune"
[hyperparameters]
total_steps = 100
global_batch = 16
sequence_length = 64
learning_rate = 3e-3
packing = false
micro_batch_tokens = 1024
"""


def gallery() -> TaskApp:
    """Two pictures, one after the other in one conversation; pays by the length of what is said of them."""
    app = TaskApp("gallery", name="Gallery", description="Two pictures.", max_turns=2, keys=[KEY])

    @app.episode
    async def play(ep: Episode) -> None:
        assert ep.policy_config["supports_vision"] is True
        assert ep.policy_config["use_vision"] is True
        conversation: list[dict[str, object]] = []
        said = 0
        for k in range(2):
            conversation += messages(2 * ep.seed + k)
            reply = await ep.chat(conversation)
            # Whole, as it came: what a reply says beside its content is part of the conversation too.
            conversation.append({name: value for name, value in reply.message.items() if value is not None})
            said += len(reply.content)
        ep.step(reward=(said % 8) / 8, done=True)

    return app


@pytest.fixture(scope="module")
def gallery_app() -> Iterator[Served]:
    with served(gallery()) as app:
        yield app


@pytest.fixture(scope="module")
def taught(platform: Platform) -> str:
    """A model that was trained on pictures."""
    platform.shell.ok("models", "make", MODEL)
    file = platform.shell.folder / "colours.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows(64, seed=0)))
    job = platform.submit(SFT, "--dataset", str(file))
    model = platform.succeeded(job)["model"]
    losses = [step["loss"] for step in platform.steps(job)]
    assert losses[-1] < 0.5 * losses[0]
    [ready] = [file for file in platform.client.files.list() if file.filename == "colours.jsonl"]
    assert ready.images == 64
    return model


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_two_pictures_are_one_sequence_on_which_trainer_and_engine_agree(
    platform: Platform, gallery_app: Served, taught: str, mode: str
):
    rank = 8 if mode == "lora" else None
    job = platform.submit(rl(taught, gallery_app.url, env="gallery", turns=2, lora=rank, iterations=2))
    model = platform.succeeded(job)["model"]
    steps = platform.steps(job)
    for step in steps:
        assert step["groups_kept"] > 0
        assert step["branch_breaks"] == 0
        assert step["sequences"] == step["groups_kept"] * 4
        assert step["ppo_kl_first"] < 1e-8
    assert steps[0]["mismatch_max_lag0"] <= 1e-4
    assert all(step["mismatch_max_lag0"] <= 1e-4 for step in steps if "mismatch_max_lag0" in step)
    assert "base64" not in str(platform.log(job))
    [rollout, *_] = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 1}).json()["data"]
    detail = platform.api.get(f"/api/jobs/{job}/rollouts/{rollout['id']}")
    assert "base64" not in detail.text
    shown = [
        part["image"]
        for turn in detail.json()["transcript"]["turns"]
        for message in turn["messages"]
        for part in message["content"]
        if part["type"] == "image"
    ]
    assert len(shown) == 2
    digest = shown[0].rpartition("/")[2]
    assert platform.api.get(f"/api/images/{digest}").content.startswith(b"\x89PNG")
    command = [sys.executable, "-m", "synth.cli", "rollouts", "show", job, rollout["id"]]
    for says, begins in (SIXELS, KITTY):
        drawn = on_terminal(80, command, cwd=platform.shell.folder, says=says)
        assert drawn.code == 0, drawn.text
        assert f"[image {digest[:12]}]" in drawn.raw
        assert len(re.findall(begins, drawn.raw)) == 2
    reply = platform.api.post(
        "/v1/chat/completions", json={"model": model, "messages": messages(1), "max_tokens": 4, "temperature": 0}
    )
    assert reply.status_code == 200, reply.text


def test_an_evaluations_rollouts_are_rows_with_their_pictures(platform: Platform, gallery_app: Served, taught: str):
    toml = f'[eval]\nmodel = "{taught}"\nseeds = "0-3"\nmax_turns = 2\nmax_tokens = 8\nenv_name = "gallery"\n'
    job = platform.submit(toml, "--task-url", gallery_app.url, "--set", "eval.use_vision=true")
    platform.succeeded(job)
    report = platform.shell.json("filter", "--job", job, "--out", "seen.jsonl", "--upload")
    assert report["rows"] > 0
    assert report["dropped"] == {}
    file = platform.client.files.get(report["file"])
    assert (file.status, file.images) == ("ready", 2 * report["rows"])
    lines = (platform.shell.folder / "seen.jsonl").read_text().splitlines()
    asked = [m["role"] for m in json.loads(lines[0])["messages"]]
    assert asked[-4:] == ["user", "assistant", "user", "assistant"]
    trained = SFT.replace("total_steps = 100", "total_steps = 2").replace("per_message = 1", "per_message = 2")
    platform.succeeded(platform.submit(trained, "--dataset", report["file"]))


def test_thoughts_about_pictures_end_at_their_budget_and_trainer_and_engine_agree(
    platform: Platform, gallery_app: Served
):
    thinks = "tiny-qwen3-vl-thinking"
    platform.shell.ok("models", "make", MODEL, "--thinking", "--name", thinks)
    text = rl(thinks, gallery_app.url, env="gallery", turns=2, iterations=2)
    budget = ("--set", "rollout.policy_config.thinking_budget=4")
    refused = platform.shell.run(
        "config", "check", platform.write(text), "--set", 'rollout.policy_config.thinking_mode="no_think"'
    )
    assert refused.returncode == 2
    assert "always thinks" in refused.stderr
    job = platform.submit(text, *budget)
    platform.succeeded(job)
    steps = platform.steps(job)
    assert len(steps) == 2
    for step in steps:
        assert step["groups_kept"] > 0
        # The second turn's prompt has none of the first one's thoughts, so that each turn is a sequence.
        assert step["branch_breaks"] == 16
        assert step["sequences"] == step["groups_kept"] * 4 * 2
        assert step["mismatch_max_lag0"] <= 1e-4
    [rollout, *_] = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 1}).json()["data"]
    detail = platform.api.get(f"/api/jobs/{job}/rollouts/{rollout['id']}").json()
    for turn in detail["transcript"]["turns"]:
        assert "think>" not in turn["reply"]["content"]


def test_pictures_are_for_models_that_see(platform: Platform, gallery_app: Served, taught: str):
    refused = platform.api.post("/v1/chat/completions", json={"model": "tiny-qwen3", "messages": messages(1)})
    assert refused.status_code == 400
    assert "sees no images" in refused.json()["error"]["message"]
    bad: httpx.Response = platform.api.post(
        "/v1/chat/completions",
        json={
            "model": taught,
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture(1)[:90]}}]}],
        },
    )
    assert bad.status_code == 400
    assert "messages[0].content[0]" in bad.json()["error"]["message"]
    text = rl("tiny-qwen3", gallery_app.url, env="gallery")
    asked = platform.shell.run("submit", platform.write(text), "--set", "rollout.use_vision=true")
    assert asked.returncode == 2
    assert "sees no images" in asked.stderr
