"""Compiles the JSON schemas of requests, once each, off the event loop, within bounds.

A schema comes from anybody. It is first compiled in a process of its own (`schema_check`), in a sandbox, whose memory
and time are limited: only what came through is compiled here and, by vLLM, in the engine process.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, cast

from llguidance import LLMatcher, grammar_from

from synth.chat.json_text import is_too_deep
from synth.errors import Problem, UserError
from synth.fairness.slots import FairSlots
from synth.inference.grammar.calls import ONE_LINE, fill
from synth.inference.grammar.tokens import Grammar, build_lexicon
from synth.runtime.lines import split_lines
from synth.sandbox.decoders import DecoderEnded, Decoders
from synth.sandbox.modes import Mode

# Schemas that are kept compiled for each model.
_CACHED = 128
# Checks at one time for one model; each takes a core. Organisations share them by turns.
_CHECKS = 2
# Time for the interpreter to start on a busy machine, beyond the CPU seconds that a check may take, which the kernel
# bounds: this is for a process that hangs.
_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """The bounds of one JSON schema. size: bytes of its text. depth: levels of nesting.

    seconds: CPU time to compile it; memory: bytes that compiling it may take. checks: the process that compiles it
    first.
    """

    size: int = 64 << 10
    depth: int = 64
    seconds: float = 5.0
    memory: int = 512 << 20
    checks: Decoders = field(default_factory=lambda: schema_decoders("auto"), compare=False, repr=False)


@functools.cache
def schema_decoders(sandbox: Literal["auto"] | Mode) -> Decoders:
    """Return the processes of this service in which schemas are first compiled."""
    return Decoders("synth.inference.grammar.schema_check:check_schema", at_once=os.cpu_count() or 1, sandbox=sandbox)


class SchemaError(UserError):
    """A schema that cannot be enforced."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar, and the keywords of its schema that are not enforced, in llguidance's words."""

    grammar: Grammar
    warnings: tuple[str, ...]


class GrammarCompiler:
    """The compiled schemas of one model. tokenizer: the Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lexicon: asyncio.Task[Any] | None = None
        self._checks = FairSlots(_CHECKS, spare=1)
        self._compiled: OrderedDict[tuple[str, int, str | None], asyncio.Task[Compiled]] = OrderedDict()

    async def compile(
        self,
        schema: dict[str, Any],
        *,
        strict: bool,
        vocabulary: int,
        where: str,
        limits: SchemaLimits,
        org: str,
        around: str | None = None,
    ) -> Compiled:
        """Compile the grammar of the JSON values that fit a schema.

        around: the text of a grammar that holds it (`synth.inference.grammar.calls`), which is compiled in its place.
        strict: a keyword that cannot be enforced is an error; otherwise it is ignored, and named in the warnings.
        where: the place of the schema in the request. org: on whose behalf. Raises `SchemaError`, which
        names the place within the schema.
        """
        text = _with_options(schema, strict=strict, where=where, limits=limits)
        key = (text, vocabulary, around)
        task = self._compiled.get(key)
        if task is None:
            task = asyncio.create_task(
                self._compile(text, vocabulary, where, limits, around, org), name="compile a JSON schema"
            )
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._compiled[key] = task
            if len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        try:
            # Others may wait for the same schema.
            return await asyncio.shield(task)
        except SchemaError:
            raise
        except BaseException:
            if task.done() and self._compiled.get(key) is task:
                del self._compiled[key]  # the schema is not to blame
            raise

    async def _compile(
        self, text: str, vocabulary: int, where: str, limits: SchemaLimits, around: str | None, org: str
    ) -> Compiled:
        async with self._checks.hold(org):
            result = await _check(text, where, limits)
        if result["error"]:
            raise _refused(result["error"].strip(), where + result["path"])
        if self._lexicon is None:
            self._lexicon = asyncio.create_task(asyncio.to_thread(build_lexicon, self._tokenizer, vocabulary))
        lexicon = await asyncio.shield(self._lexicon)
        grammar, error = await asyncio.to_thread(_build, lexicon, text, "json", vocabulary)
        if around is not None and not error:
            text = fill(around, text, lambda mark: _special_id(mark, self._tokenizer, lexicon))
            grammar, error = await asyncio.to_thread(_build, lexicon, text, "lark", vocabulary)
        if error:
            raise _refused(error, where)
        return Compiled(grammar, tuple(result["warnings"]))


def _with_options(schema: dict[str, Any], *, strict: bool, where: str, limits: SchemaLimits) -> str:
    """Return the schema's text with our options for the compiler. Raises `SchemaError` beyond the limits."""
    check_schema_size(schema, where=where, limits=limits)
    if is_too_deep(schema, limits.depth):
        raise SchemaError(
            Problem(
                what="the JSON schema is nested too deeply",
                expected=f"at most {limits.depth} levels",
                fix="use `$defs` and `$ref`, or have the operator raise SYNTH_MAX_SCHEMA_DEPTH",
                where=where,
            )
        )
    options = {**ONE_LINE, "lenient": not strict, "coerce_one_of": not strict}
    text = json.dumps({**schema, "x-guidance": options})
    if len(text) > limits.size:
        raise _too_long(f"{len(text)} bytes", where, limits)
    return text


def check_schema_size(schema: Any, *, where: str, limits: SchemaLimits) -> None:
    """Refuse a schema whose text is certainly too long, in a time that does not depend on its size.

    Raises `SchemaError`.
    """
    size, waiting = 0, [schema]
    while waiting:
        value = waiting.pop()
        more: Iterable[Any] = ()
        # Characters around and between the items count: two bytes an item of a list, six an entry of an object, and
        # two brackets.
        if isinstance(value, dict):
            entries = cast(dict[str, Any], value)
            size, more = size + 2 + 6 * len(entries) + sum(map(len, islice(entries, limits.size))), entries.values()
        elif isinstance(value, list):
            more = cast(list[Any], value)
            size += 2 + 2 * len(more)
        else:
            size += len(value) if isinstance(value, str) else 1
        if size > limits.size:
            raise _too_long(f"more than {limits.size} bytes", where, limits)
        waiting += more


def _too_long(size: str, where: str, limits: SchemaLimits) -> SchemaError:
    fix = "shorten it, or have the operator raise SYNTH_MAX_SCHEMA_BYTES"
    what = f"the JSON schema has {size}"
    return SchemaError(Problem(what=what, expected=f"at most {limits.size}", fix=fix, where=where))


async def _check(text: str, where: str, limits: SchemaLimits) -> dict[str, Any]:
    """Return the answer of the process of `schema_check`. Raises `SchemaError` if it exceeded its memory or time."""
    seconds = max(1, math.ceil(limits.seconds))
    try:
        answer = await limits.checks.call(
            text.encode(), seconds=limits.seconds + _START_S, cpu_s=seconds, map_bytes=limits.memory
        )
    except DecoderEnded as ended:
        answer = ended.answer
    answers = split_lines(bytes(answer))
    if not answers:
        raise SchemaError(
            Problem(
                what="the JSON schema is too large to be compiled",
                expected=f"one that compiles in {limits.seconds:g} s and {limits.memory >> 20} MiB",
                fix="lower its counts (minItems, maxItems, …), enums and combinations",
                where=where,
            )
        )
    return json.loads(answers[-1])


def _special_id(mark: str, tokenizer: Any, lexicon: Any) -> int | None:
    """Return the id of a mark that is a special token of the model."""
    ids = tokenizer.encode(mark, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and lexicon.is_special_token(ids[0]) else None


def _build(lexicon: Any, text: str, kind: Literal["json", "lark"], vocabulary: int) -> tuple[Grammar, str]:
    source = LLMatcher.grammar_from_json_schema(text) if kind == "json" else grammar_from("grammar", text)
    matcher = LLMatcher(lexicon, source, log_level=0)
    grammar = Grammar(text, kind, matcher, vocabulary)
    if not matcher.is_error():
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            return grammar, "no value fits it"
    return grammar, matcher.get_error().partition("\n")[0]


def _refused(error: str, where: str) -> SchemaError:
    first, _, more = error.partition("\n")
    what = f"{first} {more.strip()}"[:300] if first.endswith(":") else first[:300]
    return SchemaError(
        Problem(
            what=f"the JSON schema cannot be enforced: {what}",
            expected="a JSON schema of the keywords that llguidance knows",
            fix="see docs/api.md#json",
            where=where,
        )
    )
