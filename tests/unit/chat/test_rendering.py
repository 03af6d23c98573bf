"""A template renders alike here and in transformers, from a tokenizer or from the files of its folder."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from synth.chat.messages import Conversation, FunctionCall, Message, MessageToolCall, TrainingMessage, TrainingRow
from synth.chat.rendering import Renderer
from synth.chat.template_source import TemplateSource
from synth.errors import UserError
from synth.inference.api.errors import error_response
from synth.inference.tokenizers import NoChatTemplate, load_tokenizer
from synth.models.template_source import read_template_source
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.sft_dataset import RowEncoder, cache_key
from tests.unit.chat.templates import FAMILIES, PLAIN, save_tokenizer

TALK = Conversation([Message(role="user", content="hi <b>"), Message(role="assistant", content="yo")])
DATED = "{{ strftime_now('%d %b %Y %H') }}" + PLAIN
ROW = TrainingRow(
    messages=[TrainingMessage(role="user", content="hi"), TrainingMessage(role="assistant", content="yo")]
)


@pytest.fixture(scope="module", params=[False, True], ids=["plain marks", "special marks"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("chat"), PLAIN, special_marks=request.param)


@pytest.fixture
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def test_a_folder_is_read_as_its_tokenizer_is(folder: Path, tokenizer: Any, tmp_path: Path):
    assert read_template_source(folder) == TemplateSource.of(tokenizer)
    old = shutil.copytree(folder, tmp_path / "old")
    (old / "chat_template.jinja").unlink()
    config = json.loads((old / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": "TOOLS" + PLAIN}]
    config |= {"chat_template": named, "bos_token": {"__type": "AddedToken", "content": "<|im_start|>"}}
    (old / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_template_source(old) == TemplateSource.of(AutoTokenizer.from_pretrained(old))


@pytest.mark.parametrize(
    "template",
    [
        *FAMILIES.values(),
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson(indent=2) }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}\n{% endgeneration %}{% endfor %}\n",
        "{{ eos_token }}{{ pad_token }}{{ bos_token }}{{ tools }}{{ documents }}{% if tools is none %}x{% endif %}",
        "  {% set ns = namespace(a=1) %}\n{{ ns.a }}{{ messages | map(attribute='role') | join(',') }}",
        "{{ messages[0].items() | list }}{{ messages[0].missing is defined }}{{ messages[0]['role'] }}",
        "{% macro say(m) %}{{ m.role }} {{ strftime_now('%Y') }}{% endmacro %}{{ say(messages[0]) }}",
    ],
)
def test_a_template_renders_as_transformers_renders_it(tokenizer: Any, template: str):
    tokenizer.chat_template = template
    for tools in ((), [{"type": "function", "function": {"name": "f", "description": "<é>"}}]):
        renderer = Renderer(TemplateSource.of(tokenizer))
        prepared = renderer.prepare(Conversation(TALK.messages, tools))
        expected = tokenizer.apply_chat_template(
            prepared.messages, tools=prepared.tools, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        assert renderer.render(prepared, thinking=True, add_generation_prompt=True) == expected


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('never') }}", "{{ messages[7].x }}", "{{ 1 / 0 }}", "{{ ", ""]
)
def test_a_template_that_cannot_render_is_an_error_of_the_messages(tokenizer: Any, template: str):
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="cannot render these messages"):
        Renderer(TemplateSource.of(tokenizer)).prompt(TALK)


def test_a_template_cannot_reach_python(tokenizer: Any):
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(UserError):
        Renderer(TemplateSource.of(tokenizer)).prompt(TALK)


def text_of(tokenizer: Any, day: date | None) -> str:
    encoder = RowEncoder(tokenizer, 512, None, day=day)
    return "".join(piece.text for sequence in encoder.render(ROW) for piece in sequence.pieces)


def test_a_jobs_rows_have_the_date_of_the_job_and_so_has_the_key_of_their_tokens(tokenizer: Any, tmp_path: Path):
    tokenizer.chat_template = DATED
    file = DatasetFile(tmp_path / "x.jsonl", sha256="0")
    first, second = date(2027, 1, 1), date(2027, 1, 2)
    assert text_of(tokenizer, first).startswith("01 Jan 2027 00")
    assert text_of(tokenizer, first) == text_of(tokenizer, first)
    assert text_of(tokenizer, first) != text_of(tokenizer, second)
    assert cache_key("x", file, tokenizer, (), None, first) == cache_key("x", file, tokenizer, (), None, first)
    assert cache_key("x", file, tokenizer, (), None, first) != cache_key("x", file, tokenizer, (), None, second)
    tokenizer.chat_template = PLAIN
    assert cache_key("x", file, tokenizer, (), None, first) == cache_key("x", file, tokenizer, (), None, second)


def test_a_chat_has_todays_date(tokenizer: Any):
    tokenizer.chat_template = DATED
    around = [datetime.now(UTC).strftime("%d %b %Y %H")]
    prompt = Renderer(TemplateSource.of(tokenizer)).prompt(TALK)
    around.append(datetime.now(UTC).strftime("%d %b %Y %H"))
    assert prompt.startswith(tuple(around))


@pytest.mark.parametrize("role", ["bos_token", "pad_token", "sep_token"])
def test_the_key_of_tokens_holds_the_special_tokens_that_a_template_writes(tokenizer: Any, tmp_path: Path, role: str):
    file = DatasetFile(tmp_path / "x.jsonl", sha256="0")
    before = cache_key("x", file, tokenizer, (), None)
    setattr(tokenizer, role, "<|im_start|>")
    assert cache_key("x", file, tokenizer, (), None) != before


def test_a_chat_with_a_model_without_a_template_is_a_conflict(folder: Path, tmp_path: Path):
    bare = shutil.copytree(folder, tmp_path / "base")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(NoChatTemplate, match=r"'base' has no chat template.*chat_template\.jinja") as refused:
        load_tokenizer(bare)
    response = error_response(refused.value)
    assert (response.status_code, json.loads(bytes(response.body))["error"]["code"]) == (409, "no_chat_template")


_CALLS = "{% for m in messages %}{{ m.role }}:{% for c in m.tool_calls or [] %}ARGS{% endfor %}\n{% endfor %}"
#: How the templates of the families write a call's arguments.
ARGUMENTS = {
    "qwen3": "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    "{{ c.function.arguments | tojson }}{% endif %}",
    "llama3": "{{ c.function.arguments | tojson }}",
    "mistral": "{% if c.id is undefined or c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "{{ c.function | tojson }}",
    "qwen3-coder": "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}",
    "qwen3.5": "{% for k in c.function.arguments %}<{{ k }}>{{ c.function.arguments[k] }}{% endfor %}",
    "objects": "{% if c.function.arguments is mapping %}{{ c.function.arguments | tojson }}{% endif %}",
    "strict": "{% if c.function.arguments is not mapping %}{{ raise_exception('object') }}{% endif %}"
    "{{ c.function.arguments.items() | list }}",
}


@pytest.mark.parametrize("arguments", ['{"city": "Rome"', "Rome", '["Rome"]', '"Rome"', '{"city": "Rome\\ud800"}'])
@pytest.mark.parametrize("written", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_are_no_object_render_in_every_family(written: str, arguments: str):
    renderer = Renderer(TemplateSource({"default": _CALLS.replace("ARGS", written)}, {}, []))
    call = MessageToolCall(id="abcdefghi", function=FunctionCall("f", arguments))
    whole = MessageToolCall(id="abcdefghi", function=FunctionCall("f", '{"city": "Oslo"}'))
    history = [Message(role="user", content="x"), Message(role="assistant", tool_calls=[call, whole])]
    text = renderer.prompt(Conversation(history))
    assert "Rome" in text
    assert "Oslo" in text
