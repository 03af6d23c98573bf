"""A job has one model, in however many places its file names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.errors import UserError
from synth.jobs.resolve.job import Overrides
from synth.methods.eval import EvalJob
from synth.methods.rl import RlJob
from synth.models import Registry
from tests.unit.jobs.test_resolving_jobs import RL, registry, resolved, rl

__all__ = ["registry"]


@pytest.mark.parametrize(
    "beside",
    [
        '[policy]\nmodel_name = "tiny-qwen3"',
        '[policy]\nmodel = "TINY-qwen3"',
        '[policy]\nmodel_name = "tiny-qwen3"\nmodel = "tiny-qwen3"\n[rollout.policy_config]\nmodel = "tiny-qwen3"',
    ],
)
def test_a_model_that_is_named_twice_alike_is_one_statement(beside: str, registry: Registry) -> None:
    found = resolved(
        RL.replace("[rollout]", f"{beside}\n[rollout]" if "[rollout" not in beside else "[rollout]")
        + ("" if "[rollout" not in beside else f"{beside}\n"),
        registry,
    )
    assert isinstance(found.job, RlJob)
    assert found.job.model == "tiny-qwen3"
    assert not [w for w in found.warnings if "model" in w]
    assert found.origins["model"] == "job.toml:4 [model].base"


def test_an_evaluation_of_two_models_is_refused_and_of_one_that_is_named_twice_is_not(registry: Registry) -> None:
    text = '[eval]\nmodel = "tiny-qwen3"\nseeds = [1]\ntask_app_url = "http://x"\n[eval.policy_config]\nmodel = "{}"\n'
    found = resolved(text.format("tiny-qwen3"), registry)
    assert isinstance(found.job, EvalJob)
    assert (found.job.model, found.warnings) == ("tiny-qwen3", [])
    with pytest.raises(
        UserError, match=r"\[eval\].model = 'tiny-qwen3' and \[eval.policy_config\].model = 'b' are two"
    ):
        resolved(text.format("b"), registry)
    flag = resolved(text.format("b"), registry, Overrides(model="fft:tiny-qwen3:job_1")).job
    assert isinstance(flag, EvalJob)
    assert flag.model == "fft:tiny-qwen3:job_1"


@pytest.mark.parametrize("config", ['{"model_type": "qwen3", "max_position_embeddings": 64}', "{text_config}"])
def test_max_tokens_beyond_the_context_is_refused_and_of_a_stand_in_a_warning(tmp_path: Path, config: str) -> None:
    (tmp_path / "small").mkdir()
    config = config.replace("{text_config}", '{"model_type": "qwen3", "text_config": {"max_position_embeddings": 64}}')
    (tmp_path / "small" / "config.json").write_text(config)
    registry = Registry(tmp_path)
    asks = RL.replace("tiny-qwen3", "small") + "[rollout.policy_config]\nmax_tokens = {}\n"
    with pytest.raises(UserError) as raised:
        rl(asks.format(64), registry)
    [problem] = raised.value.problems
    assert problem.what == "max_tokens = 64, and the context of 'small' has 64 tokens, for the prompt and its reply"
    assert (problem.expected, problem.where) == ("less than 64", "job.toml:10 [rollout.policy_config].max_tokens")
    assert rl(asks.format(63), registry).rollout.sampling.max_tokens == 63
    registry.alias("Qwen/Qwen3-0.6B", "small")
    found = resolved(asks.format(64).replace("small", "Qwen/Qwen3-0.6B"), registry)
    assert (
        "job.toml:10 [rollout.policy_config].max_tokens = 64, and the context of the stand-in 'small' has 64 tokens"
        in (found.warnings)
    )
