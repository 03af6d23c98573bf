"""Whether a job's model may be told not to think."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.errors import UserError
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.local.tiny_models.tokenizer import chat_template
from synth.methods.eval import EvalJob
from synth.methods.rl import RlJob
from synth.models import Registry

RL = """
[services]
task_url = "http://127.0.0.1:1"
[model]
base = "{model}"
[training]
iterations_per_epoch = 1
[rollout.policy_config]
thinking_mode = "{mode}"
thinking_budget = 64
"""
EVAL = """
[eval]
task_app_url = "http://127.0.0.1:1"
model = "{model}"
seeds = [0]
thinking_mode = "{mode}"
thinking_budget = 64
"""
THINKS = "Qwen/Qwen3-VL-2B-Thinking"


def resolved(text: str, models: Path | None = None) -> RlJob | EvalJob:
    job = resolve_job(read_toml(text, name="j.toml"), overrides=Overrides(), registry=Registry(models)).job
    assert isinstance(job, RlJob | EvalJob)
    return job


@pytest.mark.parametrize(("text", "line"), [(RL, "j.toml:9 [rollout.policy_config]"), (EVAL, "j.toml:6 [eval]")])
def test_what_always_thinks_cannot_be_told_not_to(text: str, line: str) -> None:
    with pytest.raises(UserError) as refused:
        resolved(text.format(model=THINKS, mode="no_think"))
    [problem] = refused.value.problems
    assert problem.where == f"{line}.thinking_mode"
    assert f"{THINKS!r} always thinks" in problem.what
    assert "thinking_budget" in problem.fix
    assert "Instruct" in problem.fix


@pytest.mark.parametrize(("text", "line"), [(RL, "j.toml:9 [rollout.policy_config]"), (EVAL, "j.toml:6 [eval]")])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-4B-Instruct-2507"])
def test_what_never_thinks_cannot_be_told_to(text: str, line: str, model: str) -> None:
    with pytest.raises(UserError) as refused:
        resolved(text.format(model=model, mode="think"))
    [problem] = refused.value.problems
    assert problem.where == f"{line}.thinking_mode"
    assert f"{model!r} never thinks" in problem.what


@pytest.mark.parametrize("text", [RL, EVAL])
@pytest.mark.parametrize(
    ("model", "mode", "thinks"),
    [
        (THINKS, "think", True),
        ("Qwen/Qwen3-4B", "no_think", False),
        ("Qwen/Qwen3-4B", "think", True),
        ("Qwen/Qwen3-VL-2B-Instruct", "no_think", False),
    ],
)
def test_every_other_wish_holds(text: str, model: str, mode: str, thinks: bool) -> None:
    sampling = resolved(text.format(model=model, mode=mode)).rollout.sampling
    assert (sampling.thinking, sampling.thinking_budget) == (thinks, 64)


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
@pytest.mark.parametrize("always", [True, False])
def test_the_template_of_a_folder_says_whether_its_model_always_thinks(tmp_path: Path, file: str, always: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    template = chat_template(vision=True, thinking=always)
    (folder / file).write_text(template if file.endswith("jinja") else json.dumps({"chat_template": template}))
    assert Registry(tmp_path).find("mine").thinking is always
    text = RL.format(model="mine", mode="no_think")
    if not always:
        assert resolved(text, tmp_path).rollout.sampling.thinking is False
        return
    with pytest.raises(UserError, match="always thinks"):
        resolved(text, tmp_path)


def test_named_templates_and_files_that_are_none(tmp_path: Path) -> None:
    for name, body in (
        ("named", {"chat_template": [{"name": "default", "template": chat_template(thinking=True)}]}),
        ("none", {}),
        ("odd", ["no object"]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen3"}')
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(body))
    assert [Registry(tmp_path).find(name).thinking for name in ("named", "none", "odd")] == [True, False, False]
