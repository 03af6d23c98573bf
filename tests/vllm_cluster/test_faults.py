"""Faults of vLLM that are not worked around: each ends the job that it would have served wrong tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.platform import rl
from tests.e2e.task_apps import Served
from tests.vllm_cluster.conftest import Tell, running
from tests.vllm_cluster.results import ended

pytestmark = pytest.mark.timeout(900)


def test_a_fault_of_vllm_that_is_not_worked_around_ends_the_job_with_the_numbers(
    letters_app: Served, tmp_path: Path, tell: Tell
):
    """One fault that is detected when the engine starts, and one that is detected at the first swap of weights."""
    with running(tmp_path, SYNTH_VLLM_WORKAROUNDS=json.dumps(["tied_head"])) as platform:
        at_start = platform.submit(rl("tiny-qwen3", letters_app.url, lora=8))
        at_swap = platform.submit(rl("tiny-qwen3", letters_app.url))
        for job, said in ((at_start, "adapter"), (at_swap, "prefix cache")):
            found = ended(platform, job)
            assert (found["state"], found["code"]) == ("failed", "cannot_serve")
            [problem] = found["problems"]
            tell(problem["what"])
            assert said in str(problem)
            assert re.search(r"\d\.\d", str(problem))
