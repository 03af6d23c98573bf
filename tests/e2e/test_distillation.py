"""On-policy distillation through the front door: a model learns from a served teacher, and no reward counts.

The policy works out some sums and estimates the others; its teacher was trained to work all of them out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.demo.math import dataset
from tests.e2e.platform import Platform
from tests.e2e.task_apps import app_process

pytestmark = [pytest.mark.timeout(1200), pytest.mark.soak]

ROOT = Path(__file__).parents[2]
ROWS = 16_000


@pytest.fixture(scope="module")
def math_url() -> Iterator[str]:
    with app_process("synth.demo.math") as url:
        yield url


def trained(platform: Platform, name: str, *, worked_share: float, steps: int) -> str:
    """A model that SFT made of sums, of which this share was worked out."""
    file = platform.shell.folder / f"{name}.jsonl"
    rows = dataset.rows(ROWS, seed=0, worked_share=worked_share)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = (ROOT / "configs/demo/sft.toml").read_text().replace("total_steps = 1000", f"total_steps = {steps}")
    return platform.succeeded(platform.submit(text, "--dataset", str(file)))["model"]


def test_a_model_learns_from_its_teacher_what_nobody_pays(platform: Platform, math_url: str):
    policy = trained(platform, "some", worked_share=dataset.WORKED_SHARE, steps=1000)
    teacher = trained(platform, "all", worked_share=1.0, steps=1000)
    text = (ROOT / "configs/demo/distill.toml").read_text()
    text = text.replace('teacher = "tiny-qwen3"', f'teacher = "{teacher}"')
    job = platform.submit(text, "--model", policy, "--task-url", math_url)
    platform.succeeded(job)
    kl = [values["teacher_kl"] for values in platform.steps(job)]
    paid = [e["values"]["reward_mean"] for e in platform.events(job, "eval.completed")]
    figures = f"teacher_kl {' '.join(f'{x:.3f}' for x in kl)}; held-out exact {' '.join(f'{x:.3f}' for x in paid)}"
    sys.stdout.write(f"{figures}\n")
    assert sum(kl[-3:]) / 3 < kl[0] / 3
    assert paid[-1] > paid[0] + 0.2
    assert not platform.events(job, "train.warned")


def test_a_teacher_with_another_tokenizer_ends_its_job_before_anything_runs(platform: Platform, math_url: str):
    platform.shell.ok("models", "make", "tiny-qwen3-vl", "--name", "another-tokenizer")
    text = (ROOT / "configs/demo/distill.toml").read_text()
    text = text.replace('teacher = "tiny-qwen3"', 'teacher = "another-tokenizer"')
    job = platform.submit(text, "--task-url", math_url)
    code, found = platform.outcome(job)
    assert (code, found["state"]) == (3, "failed")
    [problem] = found["problems"]
    assert "the teacher 'another-tokenizer' has another tokenizer than the policy: token" in problem["what"]
    assert platform.events(job, "rollout.completed") == []


def test_a_teacher_that_is_not_there_is_refused_where_it_is_named(platform: Platform, math_url: str):
    text = (ROOT / "configs/demo/distill.toml").read_text()
    missing = text.replace('teacher = "tiny-qwen3"', 'teacher = "fft:tiny-qwen3:job_00000000000000000000000000"')
    job = platform.submit(missing, "--task-url", math_url, "--no-preflight")
    code, found = platform.outcome(job)
    assert code != 0
    assert any("[distillation].teacher" in problem["where"] for problem in found["problems"]), found["problems"]
