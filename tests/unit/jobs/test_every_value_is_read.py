"""Every value of a resolved job is read by what runs the job: a key that is accepted and read by nobody is a lie."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.judging import settings as judging
from synth.methods import base, distillation, dpo, eval, rewards, rl, rollouts, sft

ROOT = Path(__file__).parents[3]
#: The parts of a resolved job, and the names by which code holds each.
PARTS: dict[type[msgspec.Struct], set[str]] = {
    rl.RlJob: {"job"},
    sft.SftJob: {"job"},
    dpo.DpoJob: {"job"},
    eval.EvalJob: {"job"},
    rollouts.RolloutSettings: {"rollout", "rollout_settings", "r"},
    rollouts.Sampling: {"sampling", "asked"},
    rollouts.GradedRows: {"graded", "graded_rows"},
    rollouts.EvaluationSettings: {"evaluation"},
    rl.WatchSettings: {"watch", "settings"},
    base.LoraSettings: {"lora"},
    rl.CorrectionSettings: {"correction"},
    dpo.DpoSettings: {"dpo"},
    base.VisionSettings: {"vision"},
    base.Parallelism: {"parallelism"},
    rewards.RewardSettings: {"rewards"},
    rewards.StepRewards: {"steps", "settings"},
    rewards.RewardWeights: {"weights"},
    judging.Judging: {"judging"},
    distillation.DistillationSettings: {"distillation", "teacher"},
}
#: What the file says of GPUs is checked and resolved into `parallelism`; the job keeps it as it was said.
KEPT_AS_SAID = {(rl.RlJob, "topology")}
#: The rules of the collapse watch name their thresholds by texts.
BY_NAME = "services/synth/trainer/collapse/"
#: Code that resolves jobs, writes them as files, or shows them: it reads every value, and acts on none.
SHOWING = (
    "shared/synth/jobs/resolve/",
    "shared/synth/jobs/schema/",
    "shared/synth/jobs/parse/",
    "services/synth/cli/tui/",
)
SHOWING += ("services/synth/cli/comparison", "services/synth/cli/jobs")


def _holder(node: ast.expr) -> str:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")


def _reads(file: Path) -> Iterator[tuple[str, str]]:
    """(holder, attribute) of every attribute that a file reads."""
    inside = file.parent.name == "methods"
    named = str(file.relative_to(ROOT)).startswith(BY_NAME)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            holder = _holder(node.value)
            # A method of a part reads its own fields.
            yield ("job" if inside and holder == "self" else holder), node.attr
        if named and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "watch", node.value


@pytest.fixture(scope="module")
def reads() -> set[tuple[str, str]]:
    files = [file for source in ("shared", "services") for file in (ROOT / source).rglob("*.py")]
    acting = [file for file in files if not str(file.relative_to(ROOT)).startswith(SHOWING)]
    return {read for file in acting for read in _reads(file)}


FIELDS = [(part, field.name) for part in PARTS for field in msgspec.structs.fields(part)]


@pytest.mark.parametrize(("part", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_value_of_a_job_is_read(part: type[Any], field: str, reads: set[tuple[str, str]]):
    assert (part, field) in KEPT_AS_SAID or any((holder, field) in reads for holder in PARTS[part]), (
        f"{part.__name__}.{field} is read by nobody"
    )
