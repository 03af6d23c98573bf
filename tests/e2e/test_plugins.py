"""A loss and an advantage that the operator has installed and allowed, and what their mistakes do to a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli.conftest import Shell
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import KEY, Served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

ROOT = Path(__file__).parents[2]
MISTAKES = """
from dataclasses import replace
from synth.trainer.learner.losses.grpo import grpo_loss

def nan_later(inputs, *, clip):
    out = grpo_loss(inputs, clip=clip)
    return replace(out, loss=out.loss * float("nan")) if len(inputs.logp_N) > 6 else out

def shapeless(inputs, *, clip):
    return replace(grpo_loss(inputs, clip=clip), loss=inputs.logp_N)

def forgets_one(rewards):
    return [r - sum(rewards) / len(rewards) for r in rewards][1:]
"""


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A cluster whose operator has installed two modules and allows them."""
    shell = Shell(tmp_path_factory.mktemp("plugins"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    (shell.folder / "acme_mistakes.py").write_text(MISTAKES)
    path = ":".join(map(str, (ROOT / "shared", ROOT / "services", ROOT, shell.folder)))
    settings = {"SYNTH_PLUGINS": "examples.plugins,acme_mistakes", "PYTHONPATH": path}
    shell.ok("up", "--detach", "--port", str(shell.port), **settings)
    try:
        shell.make_model()
        yield Platform(shell)
    finally:
        shell.run("down")
    assert shell.alive() == []


def job(app: Served, lines: str) -> str:
    return rl("tiny-qwen3", app.url, training=f"async_level = 0\n{lines}")


def test_a_job_trains_with_the_operators_loss_and_advantage(allowed: Platform, letters_app: Served):
    lines = 'loss = "examples.plugins:tapered"\nadvantage = "examples.plugins:by_rank"'
    made = allowed.submit(job(letters_app, lines))
    allowed.succeeded(made)
    steps = allowed.steps(made)
    assert [step["optimizer_moves"] > 0 for step in steps] == [True] * 3
    # The best of a group has 1, the worst -1, unless two share the place.
    assert all(0 < step["advantage_max"] <= 1 for step in steps)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('loss = "acme_mistakes:nan_later"', "the loss 'acme_mistakes:nan_later' is at fault: its loss is nan"),
        ('loss = "acme_mistakes:shapeless"', "its loss is torch.float32 [6]; expected a scalar"),
        ('advantage = "acme_mistakes:forgets_one"', "it gives 3 numbers for 4 rewards"),
    ],
)
def test_a_mistake_ends_its_job_with_the_one_reason(allowed: Platform, letters_app: Served, lines: str, what: str):
    made = allowed.submit(job(letters_app, lines))
    code, found = allowed.outcome(made)
    assert (code, found["state"], found["code"]) == (3, "failed", "plugin_failed")
    [problem] = found["problems"]
    assert what in problem["what"]


def test_a_module_that_is_not_allowed_is_refused_when_the_job_is_submitted(allowed: Platform, letters_app: Served):
    file = allowed.write(job(letters_app, 'loss = "os:system"'))
    refused = allowed.shell.run("submit", file, "--detach")
    assert (refused.returncode, refused.stdout) == (2, "")
    said = " ".join(refused.stderr.split())
    assert "'os' is no module that this cluster runs code of" in said
    assert "acme_mistakes, examples.plugins" in said
