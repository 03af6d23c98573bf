"""What ends a text in vLLM's own way of looking for it."""

from __future__ import annotations

from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.vllm.engine import VllmEngine
from tests.unit.inference.engines.completions import complete, prompt

_SPECIAL = 1


async def test_a_stop_string_that_the_tokenizer_holds_as_a_special_token_ends_the_text(lora: VllmEngine) -> None:
    others = tuple(token for token in range(320) if token != _SPECIAL)
    params = SamplingParams(max_tokens=5, banned=others, stop=("<|im_start|>",))
    result = await complete(lora, prompt(1, 9), params)
    assert (result.token_ids, result.finish_reason, result.stop_text) == ([_SPECIAL], "stop", "<|im_start|>")
