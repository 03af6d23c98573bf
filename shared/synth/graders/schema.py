"""Graders as OpenAI documents them: string_check, text_similarity, and multi, which combines them by a formula.

Every field of these types is honoured. The types that this server does not run are refused, each with its reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synth.errors import Problem, UserError
from synth.graders.formula import FormulaWrong, parse_formula
from synth.graders.template import Template, TemplateWrong, parse_template

_Name = Annotated[str, Field(min_length=1)]

#: How text_similarity compares. Each is 0 for nothing in common, and 1 for the same.
Metric = Literal["fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
_METRICS_REFUSED = {
    "cosine": "it compares embeddings, and no embedding model is served here",
    "meteor": "it compares by the synonyms of WordNet, which this server does not have",
}
_TYPES = "string_check, text_similarity or multi"
_TYPES_REFUSED = {
    "score_model": "it asks a model, which this server does by rubrics: a task app with [rubric] and [judge]",
    "label_model": "it asks a model, which this server does by rubrics: a task app with [rubric] and [judge]",
    "python": "this server runs no code that is sent to it: pay the rollouts in a task app of your own",
}


class _Grader(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StringCheck(_Grader):
    """1 where the operation holds, else 0. like: `input` contains `reference`; ilike: in any case of the letters."""

    type: Literal["string_check"]
    name: _Name
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]


class TextSimilarity(_Grader):
    """How alike `input` and `reference` are, from 0 to 1."""

    type: Literal["text_similarity"]
    name: _Name
    input: str
    reference: str
    evaluation_metric: Metric


class Multi(_Grader):
    """What the formula makes of the scores of its graders, by their keys."""

    type: Literal["multi"]
    name: _Name
    graders: Annotated[dict[str, StringCheck | TextSimilarity], Field(min_length=1)]
    calculate_output: str


_T = TypeVar("_T", bound=_Grader)

Simple = StringCheck | TextSimilarity
Grader = StringCheck | TextSimilarity | Multi


def parse_grader(data: Any, *, where: str = "grader") -> Grader:
    """The grader that JSON data describes. where: what the problems name. Raises `UserError` with every problem."""
    if not isinstance(data, dict):
        raise UserError(Problem(what="a grader is a JSON object", expected=f"one of type {_TYPES}", where=where))
    table = cast(dict[str, Any], data)
    return _multi(table, where) if table.get("type") == "multi" else _simple(table, where)


def templates_of(grader: Grader, *, where: str = "grader") -> dict[str, Template]:
    """The templates of a grader by their places, in its order. It has to be one that `parse_grader` made."""
    if isinstance(grader, Multi):
        parts = [templates_of(part, where=f"{where}.graders.{key}") for key, part in grader.graders.items()]
        return {place: template for part in parts for place, template in part.items()}
    return {f"{where}.{field}": parse_template(getattr(grader, field)) for field in ("input", "reference")}


def _simple(table: dict[str, Any], where: str) -> Simple:
    kind = table.get("type")
    if kind not in ("string_check", "text_similarity"):
        why = _TYPES_REFUSED.get(str(kind), "it is not known")
        raise UserError(
            Problem(what=f"a grader of type {str(kind)[:40]!r}: {why}", expected=_TYPES, where=f"{where}.type")
        )
    metric = str(table.get("evaluation_metric"))
    if kind == "text_similarity" and metric in _METRICS_REFUSED:
        raise UserError(
            Problem(
                what=f"the metric {metric!r} is not computed here: {_METRICS_REFUSED[metric]}",
                expected="fuzzy_match, bleu, gleu, rouge_1 to rouge_5, or rouge_l",
                where=f"{where}.evaluation_metric",
            )
        )
    grader = _validated(StringCheck if kind == "string_check" else TextSimilarity, table, where)
    problems: list[Problem] = []
    for field in ("input", "reference"):
        try:
            parse_template(getattr(grader, field))
        except TemplateWrong as wrong:
            problems.append(Problem(what=str(wrong), expected=wrong.expected, where=f"{where}.{field}"))
    if problems:
        raise UserError(problems)
    return grader


def _multi(table: dict[str, Any], where: str) -> Multi:
    written = table.get("graders")
    given = cast(dict[str, Any], written) if isinstance(written, dict) else {}
    if isinstance(given.get("type"), str):
        # One grader without a key, as the types of the openai SDK have it: its name is its key.
        given = {str(given.get("name")): given}
    if not given:
        raise UserError(
            Problem(what="multi combines graders, and has none", expected="a table of them", where=f"{where}.graders")
        )
    problems: list[Problem] = []
    parts: dict[str, Simple] = {}
    for key, part in given.items():
        place = f"{where}.graders.{key[:80]}"
        if not key.isidentifier():
            problems.append(Problem(what=f"{key[:80]!r} is no name", expected="letters, digits and _", where=place))
            continue
        try:
            if not isinstance(part, dict):
                raise UserError(Problem(what="a grader is a JSON object", expected=_TYPES, where=place))
            parts[key] = _simple(cast(dict[str, Any], part), place)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    multi = _validated(Multi, {**table, "graders": {key: part.model_dump() for key, part in parts.items()}}, where)
    try:
        formula = parse_formula(multi.calculate_output)
    except FormulaWrong as wrong:
        raise UserError(Problem(what=str(wrong), expected=wrong.expected, where=f"{where}.calculate_output")) from wrong
    if unknown := sorted(formula.names - set(parts)):
        raise UserError(
            Problem(
                what=f"{unknown[0]!r} is not one of its graders",
                expected=f"one of {', '.join(parts)}",
                where=f"{where}.calculate_output",
            )
        )
    return multi


def _validated(kind: type[_T], table: dict[str, Any], where: str) -> _T:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise UserError(
            [
                Problem(
                    what="this field is not known" if e["type"] == "extra_forbidden" else e["msg"],
                    expected=f"the fields {', '.join(kind.model_fields)}",
                    where=".".join([where, *map(str, e["loc"])]),
                )
                for e in error.errors(include_url=False, include_input=False)
            ]
        ) from error
