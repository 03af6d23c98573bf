"""A reinforcement job of the OpenAI API whose grader asks models: who they are asked of."""

from __future__ import annotations

from typing import Any

from synth.api.fine_tuning.request import FineTuningRequest
from synth.api.fine_tuning.translate import translate_request


def _judges(*models: str, provider: str = "synth") -> Any:
    parts = {
        f"g{n}": {"type": "score_model", "name": "g", "model": model, "input": [{"role": "user", "content": "x"}]}
        for n, model in enumerate(models)
    }
    grader = {"type": "multi", "name": "m", "graders": parts, "calculate_output": "g0"}
    body: dict[str, Any] = {"model": "tiny-qwen3", "training_file": "file_1"}
    body["method"] = {"type": "reinforcement", "reinforcement": {"grader": grader}}
    request = FineTuningRequest.model_validate(body)
    return translate_request(request, {"training_file": 8}, judge_provider=provider).config["judge"]["judges"]


def test_a_model_is_asked_of_the_clusters_judge_provider_once():
    assert _judges("gpt", "gpt") == [{"model": "gpt", "provider": "synth"}]
    assert _judges("gpt", "mini", provider="openai") == [
        {"model": "gpt", "provider": "openai"},
        {"model": "mini", "provider": "openai"},
    ]


def test_a_model_that_was_fine_tuned_here_is_asked_here():
    tuned = "ft:tiny-qwen3:job_0123456789abcdef"
    assert _judges(tuned, provider="openai") == [{"model": tuned, "provider": "synth"}]
