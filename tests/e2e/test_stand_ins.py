"""A machine without the real weights: a local model runs under a known id, and everything says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platform import Platform, sft

BASE = "Qwen/Qwen3-0.6B"


@pytest.fixture
def aliased(platform: Platform) -> Iterator[Platform]:
    platform.shell.ok("models", "alias", BASE, "tiny-qwen3")
    yield platform
    platform.shell.ok("models", "unalias", BASE)


@pytest.mark.timeout(1200)
def test_a_job_on_a_stand_in_says_so_wherever_its_model_is_named(aliased: Platform, rows: Path):
    job = aliased.succeeded(aliased.submit(sft(model="qwen/qwen3-0.6b", steps=4), "--dataset", str(rows)))
    assert (job["source_model"], job["stand_in"]) == (BASE, "tiny-qwen3")
    assert any("'tiny-qwen3' stands in for 'Qwen/Qwen3-0.6B'" in warning for warning in job["warnings"])
    (verified,) = aliased.events(job["id"], "job.verified")
    (published,) = aliased.events(job["id"], "model.published")
    assert (verified["source"]["stand_in"], published["model"]["stand_in"]) == ("tiny-qwen3", "tiny-qwen3")
    assert job["model"] == f"fft:{BASE}:{job['id']}"
    shown = {m.id: m.stand_in for m in aliased.client.models.list()}
    assert {job["model"]: "tiny-qwen3", BASE: "tiny-qwen3", "tiny-qwen3": None}.items() <= shown.items()
    listed = {m["id"]: m["stand_in"] for m in aliased.api.get("/v1/models").json()["data"]}
    assert listed[job["model"]] == listed[BASE] == "tiny-qwen3"
    # A fine-tuned id is found in any case of its base, as the clients write it.
    assert aliased.greedy(f"fft:qwen/qwen3-0.6b:{job['id']}", "1 + 2?") == aliased.greedy(job["model"], "1 + 2?")


def test_without_a_stand_in_the_job_is_refused_before_anything_runs(platform: Platform, rows: Path):
    code, job = platform.outcome(platform.submit(sft(model=BASE), "--dataset", str(rows), "--no-preflight"))
    assert (code, job["state"]) == (3, "rejected")
    (problem,) = job["problems"]
    assert "no weights on this cluster" in problem["what"]
    assert f"synthctl models alias {BASE} tiny-qwen3" in problem["fix"]
