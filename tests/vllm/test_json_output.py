"""JSON output over vLLM: what is asked of the transformers engine, asked again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.errors import UserError
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from synth.inference.grammar.compiler import GrammarCompiler, SchemaLimits
from synth.inference.grammar.tokens import Grammar
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.chat.test_json_output import *  # noqa: F403
from tests.unit.inference.engines.completions import complete, prompt
from tests.unit.inference.memorised_replies import teach
from tests.unit.inference.tiny_model import save_tiny_model
from tests.vllm.conftest import SETTINGS


@pytest.fixture(scope="module")
def memorised_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memorised-qwen3")
    save_tiny_model(path, head_dim=32)
    teach(path)
    return path


@pytest.fixture(scope="module")
async def engine(memorised_dir: Path) -> AsyncIterator[VllmEngine]:
    host = await VllmHost.start(memorised_dir, SETTINGS, max_lora_rank=None)
    loaded = await VllmEngine.load(host)
    yield loaded
    await loaded.close()
    await host.close()


async def compiled(folder: Path, engine: VllmEngine, items: int) -> Grammar:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": items, "maxItems": items}
    compiler = GrammarCompiler(load_tokenizer(folder).full)
    limits = SchemaLimits()
    made = await compiler.compile(
        schema, strict=True, vocabulary=engine.vocabulary, where="schema", limits=limits, org="org_1"
    )
    return made.grammar


async def test_a_reply_ends_only_where_its_grammar_does_or_at_its_length(
    memorised_dir: Path, engine: VllmEngine
) -> None:
    endless = await compiled(memorised_dir, engine, 100_000)
    room = engine.max_context - 8
    cut = await complete(engine, prompt(0, 8), SamplingParams(max_tokens=room, grammar=endless))
    assert (len(cut.token_ids), cut.finish_reason) == (room, "length")
    three = await compiled(memorised_dir, engine, 3)
    whole = await complete(engine, prompt(0, 8), SamplingParams(max_tokens=room, grammar=three))
    assert whole.finish_reason == "stop"
    assert len(json.loads(load_tokenizer(memorised_dir).full.decode(whole.token_ids[:-1]))) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_vllms_grammar_ends_too_early_is_an_error(
    memorised_dir: Path, engine: VllmEngine, stream: bool
) -> None:
    one = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 1}
    four = await compiled(memorised_dir, engine, 4)
    # vLLM's matcher gives up after one item, as it does at a limit of its parser: the turn may only end.
    gives_up = Grammar(json.dumps(one), "json", four.start, four.vocabulary)
    with pytest.raises(UserError, match=r"the JSON schema cannot be followed any further: it ended after \d+ tokens"):
        await complete(engine, prompt(0, 8), SamplingParams(max_tokens=60, grammar=gives_up), stream=stream)
