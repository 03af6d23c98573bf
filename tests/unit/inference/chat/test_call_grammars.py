"""The grammars of calls, in the syntax of each family, by the compiler that both engines use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher, grammar_from

from synth.chat.families import family_of
from synth.inference.grammar.calls import ONE_LINE, answer_or_calls, fill, xml_arguments
from synth.inference.grammar.compiler import _special_id  # pyright: ignore[reportPrivateUsage]
from synth.inference.grammar.tokens import build_lexicon
from synth.inference.tokenizers import load_tokenizer

SCHEMA = json.dumps({"type": "object", "x-guidance": ONE_LINE})
JSON = '{"z": 1}'
XML = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "x"}, "n": {"type": "integer"}, "e": {"enum": ["u", "v"]}},
    "required": ["n"],
}


def accepts(model_dir: Path, grammar: str, text: str) -> bool:
    tokenizer = load_tokenizer(model_dir).full
    lexicon = build_lexicon(tokenizer, 320)
    filled = fill(grammar, SCHEMA, lambda mark: _special_id(mark, tokenizer, lexicon))
    matcher = LLMatcher(lexicon, grammar_from("grammar", filled), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("template", "answer", "calls"),
    [
        ("<tool_call>", JSON, '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'),
        ("<function=", JSON, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"),
        ("[TOOL_CALLS]", JSON, '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'),
        ("[TOOL_CALLS][ARGS]", JSON, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
        ('<|start_header_id|>"parameters": tool_calls', JSON, '{"name": "f", "parameters": {}}'),
        (
            "<|channel|><|message|>functions.",
            "<|channel|>final<|message|>" + JSON,
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        ),
    ],
)
def test_a_reply_is_the_json_or_calls(model_dir: Path, template: str, answer: str, calls: str):
    grammar = answer_or_calls(family_of(template), ("f", "g"))
    assert grammar is not None
    assert accepts(model_dir, grammar, answer)
    assert accepts(model_dir, grammar, calls)
    assert not accepts(model_dir, grammar, "hello")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("<parameter=n>\n3\n</parameter>\n", True),
        ("<parameter=a>\nhi\n</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=e>\nu\n</parameter>\n", True),
        ("<parameter=n>\nthree\n</parameter>\n", False),
        ("<parameter=a>\nhi\n</parameter>\n", False),
        ("<parameter=n>\n3\n</parameter>\n<parameter=e>\nw\n</parameter>\n", False),
    ],
)
def test_parameters_of_xml_fit_the_schema(model_dir: Path, text: str, fits: bool):
    grammar, unenforced = xml_arguments(XML, "tools[0]")
    assert unenforced == ["tools[0].properties.a.pattern"]
    assert accepts(model_dir, grammar, text) is fits
