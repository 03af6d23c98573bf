"""A conversation as text, by a model's own chat template, without its tokenizer's library.

Training, both engines, and the check of a job's files render with this class, so that a row which the check renders is
rendered by the trainer too. The environment of the template is the one of transformers: the same filters, tags and
functions. The result depends on nothing but `TemplateSource`, the conversation and the date.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, ClassVar, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from synth.chat.families import Family, family_of
from synth.chat.literals import Literals
from synth.chat.messages import Conversation, template_messages, template_tools
from synth.chat.template_source import DEFAULT, WITH_TOOLS, TemplateSource
from synth.errors import UserError

_OF_DICTS = frozenset(dir(dict))


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The messages and tools of a conversation in the template's form, without literals of special tokens."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class Renderer:
    """Renders conversations.

    sees: whether the model is shown images; each is one token in the text. day: the date that the template is given;
    None for the current time.
    """

    def __init__(self, source: TemplateSource, *, sees: bool = False, day: date | None = None) -> None:
        self.source = source
        self.sees = sees
        self.day = day

    @functools.cached_property
    def family(self) -> Family:
        """How this model writes reasoning and tool calls."""
        return family_of(self.source.text)

    def prepare(self, conversation: Conversation) -> TemplateInput:
        """Return the conversation in the template's form. Raises `UserError` if the model cannot take it."""
        try:
            messages = template_messages(
                conversation.messages, thinks=self.family.thinks, sees=self.sees, one_text=self.family.one_text
            )
            self._wrap_texts(messages)
            tools = template_tools(conversation.tools)
            return TemplateInput(self._literals.escape(messages), self._literals.escape(tools))
        except RecursionError as error:
            raise _not_renderable("they are nested too deeply") from error

    def render(
        self, prepared: TemplateInput, *, thinking: bool, add_generation_prompt: bool, upto: int | None = None
    ) -> str:
        """Return the first `upto` messages as text. Raises `UserError` if the template cannot render them."""
        messages = prepared.messages[:upto]
        if not messages:
            raise _not_renderable("there is no message before the assistant's first one")
        try:
            return self._template(prepared.tools).render(
                self.source.tokens,
                messages=messages,
                tools=prepared.tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinking,
                strftime_now=self._strftime_now,
            )
        # A template's own code raises any error.
        except Exception as error:
            raise _not_renderable(str(error) or type(error).__name__) from error

    def prompt(self, conversation: Conversation) -> str:
        """Return the rendered text after which the assistant's next turn is sampled. Raises `UserError`."""
        return self.render(self.prepare(conversation), thinking=conversation.thinking, add_generation_prompt=True)

    def assistant_turn(self, prepared: TemplateInput, index: int) -> tuple[str, str]:
        """Return the prompt before the assistant's message `index`, and the text from the start to its end.

        The prompt is one that inference samples after: without thinking if the turn continues that one (its template
        may put an empty `<think>` block there, which the model does not write), else with thinking. Raises `UserError`
        if the template renders a turn that continues neither.
        """
        prompt = ""
        for thinking in (False, True):
            prompt = self.render(prepared, thinking=thinking, add_generation_prompt=True, upto=index)
            whole = self.render(prepared, thinking=thinking, add_generation_prompt=False, upto=index + 1)
            if whole.startswith(prompt):
                return prompt, whole
        raise UserError(
            "the chat template renders an assistant turn that does not continue its own generation prompt "
            f"({prompt[-40:]!r})",
            expected="the conversation to start with the prompt",
            fix="check the template",
        )

    def _wrap_texts(self, messages: list[dict[str, Any]]) -> None:
        """Wrap arguments that are not an object as `{"arguments": …}`, for a template that takes only objects."""
        functions = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        texts = [function for function in functions if not isinstance(function["arguments"], dict)]
        if texts and not self._takes_text_arguments:
            for function in texts:
                function["arguments"] = {"arguments": function["arguments"]}

    @functools.cached_property
    def _takes_text_arguments(self) -> bool:
        """Whether the template shows the arguments of a call that are a text: it is tried, as llama.cpp tries it."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": '{"half": '}}
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            text = self.render(TemplateInput(turns, None), thinking=False, add_generation_prompt=False)
        except UserError:
            return False
        return "half" in text

    def _template(self, tools: list[dict[str, Any]] | None) -> Template:
        templates = self.source.templates
        name = WITH_TOOLS if tools is not None and WITH_TOOLS in templates else DEFAULT
        if not templates.get(name):
            raise TemplateError("the model has none")
        return _compiled(templates[name])

    def _strftime_now(self, format: str) -> str:
        now = datetime.now(UTC) if self.day is None else datetime(self.day.year, self.day.month, self.day.day)
        return now.strftime(format)

    @functools.cached_property
    def _literals(self) -> Literals:
        return Literals(self.source.controls)


class _Generation(Extension):
    """The tags around the text that an assistant generates: here they only bound a scope."""

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of transformers' templates, but faster at reading a key of a message."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Jinja tries the attribute of an object first and its key after the exception: most of the time of rendering.
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return cast(dict[str, Any], obj)[attribute]
        return super().getattr(obj, attribute)


@functools.lru_cache(maxsize=64)
def _compiled(template: str) -> Template:
    environment: Any = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML's characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _not_renderable(reason: str) -> UserError:
    return UserError(
        f"the model's chat template cannot render these messages: {reason}",
        expected="roles and an order of turns that the template knows",
        where="messages",
    )
