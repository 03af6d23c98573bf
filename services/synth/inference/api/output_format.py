"""The JSON that a reply must be: `response_format`, and the parameters of functions whose call is forced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from synth.chat.tools import functions_of
from synth.errors import UserError
from synth.inference.api.requests import ChatRequest, offered_tools, tools_field
from synth.inference.chat.prompts import ChatFormat
from synth.inference.grammar.calls import answer_or_calls, xml_arguments
from synth.inference.grammar.compiler import SchemaLimits, check_schema_size
from synth.inference.grammar.tokens import Grammar

_FORMATS = ("text", "json_object", "json_schema")
_SCHEMA = "response_format.json_schema.schema"


@dataclass(frozen=True, slots=True)
class OutputGrammars:
    """answer: the grammar of the reply outside its reasoning: JSON, or that or calls of the offered tools.

    arguments: the grammar of a forced call's arguments, by function. warnings: the parts of the schemas that are not
    enforced.
    """

    answer: Grammar | None = None
    arguments: Mapping[str, Grammar] = field(default_factory=dict[str, Grammar])
    warnings: tuple[str, ...] = ()


async def compile_output_grammars(
    request: ChatRequest,
    must_call: tuple[str, ...],
    chat: ChatFormat,
    *,
    vocabulary: int,
    limits: SchemaLimits,
    org: str,
) -> OutputGrammars:
    """Compile the output format of a request. must_call: the functions of which the reply has to call one.

    org: the owner of the request. Raises `UserError`, whose `where` is the place, for an unknown format and for a
    schema that cannot be enforced.
    """
    schema, strict = _answer_schema(request)
    # A forced call is no answer, and text after it is not read.
    answer = None if must_call else schema
    compiler, warnings, arguments = chat.grammars, list[str](), dict[str, Grammar]()
    grammar = None
    if answer is not None:
        compiled = await compiler.compile(
            answer,
            strict=strict,
            vocabulary=vocabulary,
            where=_SCHEMA,
            limits=limits,
            org=org,
            around=answer_or_calls(chat.family, tuple(functions_of(offered_tools(request)))),
        )
        grammar = compiled.grammar
        warnings += [f"{_SCHEMA} is not enforced in full: {warning}" for warning in compiled.warnings]
    for place, function in _functions(request, must_call):
        where, strict = f"{place}.parameters", function.get("strict") is True
        schema = {"type": "object", **_object(function.get("parameters") or {}, where)}
        check_schema_size(schema, where=where, limits=limits)
        around, loose = xml_arguments(schema, where) if chat.family.calls and chat.family.calls.xml else (None, [])
        if loose and strict:
            raise UserError(
                f"{loose[0]} cannot be enforced: this model writes the arguments of its calls as XML",
                expected="strict false, or a schema without it",
                where=loose[0],
            )
        compiled = await compiler.compile(
            schema, strict=strict, vocabulary=vocabulary, where=where, limits=limits, org=org, around=around
        )
        arguments[function["name"]] = compiled.grammar
        warnings += [f"{where} is not enforced in full: {warning}" for warning in compiled.warnings]
        warnings += [f"{place} is not enforced: this model's calls are XML" for place in loose]
    return OutputGrammars(grammar, arguments, tuple(warnings))


def _answer_schema(request: ChatRequest) -> tuple[dict[str, Any] | None, bool]:
    """Return the schema of the answer, None for free text, and whether all of it has to be enforced."""
    requested = request.response_format
    kind = "text" if requested is None else requested.get("type", "text")
    if kind not in _FORMATS:
        raise UserError(
            f"response_format.type is {str(kind)[:60]!r}",
            expected=", ".join(_FORMATS),
            where="response_format.type",
        )
    if requested is None or kind == "text":
        return None, False
    if kind == "json_object":
        return {"type": "object"}, True
    described = _object(requested.get("json_schema"), "response_format.json_schema")
    strict = described.get("strict") or False
    if not isinstance(strict, bool):
        raise UserError(
            f"strict is {str(strict)[:60]!r}",
            expected="true or false",
            where="response_format.json_schema.strict",
        )
    return _object(described.get("schema", {}), _SCHEMA), strict


def _functions(request: ChatRequest, must_call: tuple[str, ...]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the functions of `must_call`, each with its place in the request."""
    functions: list[tuple[str, Mapping[str, Any]]] = []
    for i, tool in enumerate(request.tools or ()):
        place = f"{tools_field(request)}[{i}]" + (".function" if "function" in tool else "")
        functions += [(place, f) for name, f in functions_of([tool]).items() if name in must_call]
    return functions


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{str(value)[:60]!r} is no object", expected="a JSON object", where=where)
    return value
