"""Every way from one model to the next, through the whole cluster: each ends in a model that serves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synth.blobs import BlobStore
from synth.events import BlobRef
from synth.trajectories import RolloutBatch
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import Served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

RANK = 8
#: What each RL job starts from, the rank of its adapter (None: full), and what is special about it.
ROUTES: dict[str, tuple[str, int | None, Mapping[str, Any]]] = {
    "full from full": ("full", None, {"tail": "[evaluation]\nevery_n_iters = 2\ninstances = 4"}),
    "lora from base": ("base", RANK, {}),
    "lora from full": ("full", RANK, {"training": "async_level = 1", "iterations": 4}),
    "lora on the same lora": ("lora", RANK, {}),
    "lora on another rank": ("lora", RANK // 2, {}),
    "full from lora": ("lora", None, {}),
    "qlora on the same qlora": ("qlora", RANK, {"four_bits": True}),
    "three turns": ("full", None, {"env": "countdown", "turns": 3, "iterations": 2}),
}


@dataclass(frozen=True)
class Made:
    """jobs: by what they do; models: by the same, once they are made."""

    platform: Platform
    models: dict[str, str]
    jobs: dict[str, str]

    def model(self, name: str) -> str:
        """The id of the model that a job makes; waits for it."""
        if name not in self.models:
            self.models[name] = self.platform.succeeded(self.jobs[name])["model"]
        return self.models[name]


@pytest.fixture(scope="module")
def made(platform: Platform, rows: Path, letters_app: Served, countdown_app: Served) -> Made:
    """Three SFT jobs, then every RL job at once: they share one trainer."""
    data = ("--dataset", rows.name)
    files = {"full": sft(), "lora": sft(lora=RANK), "qlora": sft(lora=RANK, four_bits=True)}
    jobs = {name: platform.submit(file, *data) for name, file in files.items()}
    made = Made(platform, {"base": "tiny-qwen3"}, jobs)
    for name, (source, lora, options) in ROUTES.items():
        url = (countdown_app if options.get("env") else letters_app).url
        jobs[name] = platform.submit(rl(made.model(source), url, lora=lora, **options))
    return made


@pytest.mark.parametrize("name", ROUTES)
def test_an_rl_job_starts_on_policy_agrees_with_its_engine_and_ends_in_a_model_that_talks(made: Made, name: str):
    model = made.model(name)
    steps = made.platform.steps(made.jobs[name])
    assert len(steps) == ROUTES[name][2].get("iterations", 3)
    for step in steps:
        assert step["groups_kept"] > 0
        assert step["ppo_kl_first"] < 1e-8
        assert step["clipped_first"] == 0
        if "mismatch_max_lag0" in step:
            assert step["mismatch_max_lag0"] <= 1e-4
    assert "mismatch_max_lag0" in steps[0]
    assert model.startswith("rl:tiny-qwen3:job_")
    reply = made.platform.greedy(model, "What is 1 + 2?")
    assert reply == made.platform.greedy(model, "What is 1 + 2?")


def test_all_their_models_are_listed_and_one_of_each_kind_is_evaluated(made: Made, letters_app: Served):
    platform = made.platform
    models = [made.model(name) for name in made.jobs]
    listed = {m["id"] for m in platform.api.get("/v1/models").raise_for_status().json()["data"]}
    assert listed >= {"tiny-qwen3", *models}
    evaluated = [made.model(name) for name in ("full from full", "lora from base", "qlora on the same qlora")]
    flags = ("--seeds", "1000000-1000007", "--task-url", letters_app.url, "--env-name", "letters", "--max-tokens", "12")
    jobs = [platform.shell.ok("eval", "--model", model, *flags, "--detach").strip() for model in evaluated]
    for job in jobs:
        ended = platform.succeeded(job)
        assert ended["eval"]["rollouts"] == 8
        assert 0 < ended["eval"]["reward_mean"] <= 1


def test_an_adapter_is_published_as_one_and_a_full_model_as_one(made: Made):
    kinds = {m.id: m.kind for m in made.platform.client.models.list()}
    assert kinds["tiny-qwen3"] == "base"
    for name in made.jobs:
        is_lora = name in ("lora", "qlora") or (name in ROUTES and ROUTES[name][1] is not None)
        assert kinds[made.model(name)] == ("lora" if is_lora else "full"), name


def test_an_adapter_that_goes_on_stays_on_its_base_and_another_one_stands_on_the_merged_model(made: Made):
    def base(name: str) -> str:
        [published] = made.platform.events(made.jobs[name], "model.published")
        return published["model"]["base"]["id"]

    assert base("lora on the same lora") == "tiny-qwen3"
    assert base("lora on another rank") == made.model("lora")


def test_a_base_in_four_bits_is_trained_on_served_and_named_as_one(made: Made):
    """Every step of the RL job agrees with its engine to 1e-4, as above: both have the rounded base."""
    assert made.model("qlora").startswith("qft:tiny-qwen3:job_")
    losses = [step["loss"] for step in made.platform.steps(made.jobs["qlora"])]
    assert losses[-1] < 0.9 * losses[0]
    for name in ("qlora", "qlora on the same qlora"):
        made.model(name)
        [published] = made.platform.events(made.jobs[name], "model.published")
        base = published["model"]["base"]
        assert (published["model"]["kind"], base["id"], base["rounded"]) == ("lora", "tiny-qwen3", "nf4")
    [validated] = made.platform.events(made.jobs["qlora"], "job.validated")
    [warned] = [w for w in validated["warnings"] if "4 bits" in w]
    assert "is also served" in warned


def test_an_evaluation_inside_a_job_judges_the_source_and_is_stamped_with_the_step_that_it_judged(made: Made):
    made.model("full from full")
    job = made.jobs["full from full"]
    judged = made.platform.events(job, "eval.completed")
    assert [(e["step"], e["instances"]) for e in judged] == [(0, 4), (2, 4), (3, 4)]
    points = made.platform.client.jobs.metrics(job, name="eval.reward_mean")
    assert [p.step for p in points] == [0, 2, 3]
    # The source, the version of step 2, and the final version, which is evaluated although step 3 is not due.
    rollouts = [e for e in made.platform.events(job, "rollout.completed") if e["mode"] == "eval"]
    judged = sorted((e["iteration"], e["versions"]) for e in rollouts)
    assert judged == [(k, [k, k]) for k in (0, 2, 3) for _ in range(4)]


def test_rollouts_ahead_of_training_are_one_version_behind_at_most_and_say_so(made: Made):
    made.model("lora from full")
    stale = [step["staleness_max"] for step in made.platform.steps(made.jobs["lora from full"])]
    assert stale[0] == 0
    assert max(stale) == 1
    for step in made.platform.steps(made.jobs["full from full"]):
        assert step["staleness_max"] == 0


async def test_a_rollout_of_three_turns_is_one_sequence_in_which_every_reply_is_trained(made: Made):
    made.model("three turns")
    blobs = BlobStore.open(f"file:{made.platform.shell.folder / '.synth' / 'blobs'}")
    for event in made.platform.events(made.jobs["three turns"], "rollout.batch"):
        batch = RolloutBatch.from_bytes(await blobs.get_bytes(BlobRef(**event["batch"])))
        replies = [
            int(np.count_nonzero(np.diff(batch.loss_mask[start:end].astype(int), prepend=0) == 1))
            for start, end in itertools.pairwise(batch.cu_seqlens)
        ]
        rollouts = 4 * event["groups_kept"]
        assert sum(replies) == 3 * rollouts
        # A policy that babbles may say </think>, and what the template takes away cannot be gone on from.
        assert replies.count(3) >= rollouts - event["values"]["branch_breaks"] > rollouts / 2


def test_jobs_that_share_a_trainer_wait_for_it_and_are_told_so(made: Made):
    for name in ROUTES:
        made.model(name)
    told = [w for name in ROUTES for w in made.platform.events(made.jobs[name], "queue.waiting")]
    assert {w["need"] for w in told} <= {"trainer", "inference"}
    assert any(w["need"] == "trainer" and w["seconds"] >= 2 for w in told)
    attempts = {name: len(made.platform.events(made.jobs[name], "job.started")) for name in ROUTES}
    assert attempts == dict.fromkeys(ROUTES, 1)


@pytest.mark.parametrize("name", ["full", "full from full", "lora", "lora from full"])
def test_a_downloaded_model_says_in_transformers_what_the_cluster_says(made: Made, name: str):
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = made.model(name)
    flags = ["--with-base"] if name == "lora from full" else []
    folder = made.platform.shell.folder / made.platform.shell.ok("models", "download", model, *flags).strip()
    loads: Any = AutoPeftModelForCausalLM if "lora" in name else AutoModelForCausalLM
    local: Any = loads.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(local.config.name_or_path if "lora" in name else folder)
    for question in ("What is 58 + 67?", "Letters, please: 3"):
        messages = [{"role": "user", "content": question}]
        asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        ids = asked["input_ids"]
        said = local.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(said, skip_special_tokens=True).strip() == made.platform.greedy(model, question).strip()


def test_a_streamed_reply_is_the_reply(made: Made):
    api = made.platform.api
    for model in ("tiny-qwen3", made.model("lora"), made.model("full from full")):
        body = {"model": model, "temperature": 0, "max_tokens": 16, "messages": [{"role": "user", "content": "3 + 4?"}]}
        whole = api.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
        pieces: list[str] = []
        with api.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
            lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        for line in lines[:-1]:
            for choice in json.loads(line)["choices"]:
                pieces.append(choice["delta"].get("content") or "")
        assert "".join(pieces) == whole["content"]
