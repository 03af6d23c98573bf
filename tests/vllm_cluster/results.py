"""How jobs of a cluster with vLLM end, and whether the engine agreed with the trainer."""

from __future__ import annotations

from typing import Any

from tests.e2e.platform import Platform
from tests.vllm_cluster.conftest import Tell

JOB_S = 600.0


def ended(platform: Platform, job: str) -> dict[str, Any]:
    """The job as it is at its end."""
    return platform.outcome(job, timeout=JOB_S)[1]


def succeeded(platform: Platform, job: str) -> dict[str, Any]:
    found = ended(platform, job)
    assert found["state"] == "succeeded", (found["state"], found["code"], found["problems"])
    return found


def assert_agrees_with_its_trainer(platform: Platform, job: str, tell: Tell) -> None:
    """Every step's fresh tokens, and every version's canary, by the trainer and by vLLM: within 1e-4 nats."""
    mismatches = [step["mismatch_max_lag0"] for step in platform.steps(job)]
    errors = [e["canary_error"] for e in platform.events(job, "policy.loaded") if e["version"]]
    # The job may be over before its last version is loaded.
    assert len(mismatches) >= len(errors) >= max(2, len(mismatches) - 1)
    tell(f"trainer and vLLM are apart by {max(mismatches):.2g} on fresh tokens, by {max(errors):.2g} on the canary")
    assert max(mismatches) <= 1e-4
    assert max(errors) <= 1e-4
