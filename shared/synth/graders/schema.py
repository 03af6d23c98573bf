"""Graders as OpenAI documents them: checks, comparisons, models that score or label, code, and formulas of them.

Every field of these types is honoured, or refused with the reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synth.errors import Problem, UserError
from synth.events.catalogue import MAX_EVENT_BYTES
from synth.graders.formula import FormulaWrong, parse_formula
from synth.graders.python.source import source_wrong
from synth.graders.template import Template, TemplateWrong, parse_template

_Name = Annotated[str, Field(min_length=1)]

#: How text_similarity compares. Each is 0 for nothing in common, and 1 for the same.
Metric = Literal["fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
_METRICS_REFUSED = {
    "cosine": "it compares embeddings, and no embedding model is served here",
    "meteor": "it compares by the synonyms of WordNet, which this server does not have",
}
_CONTENTS_REFUSED = ("input_image", "input_audio")


class _Grader(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StringCheck(_Grader):
    """1 if the operation holds, else 0. like: `input` contains `reference`; ilike: ignoring the case of letters."""

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


class InputText(_Grader):
    """A text of a message; both types are the same to a judge."""

    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(_Grader):
    """A message to a judge. Its texts are templates."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | InputText | list[str | InputText]

    def texts(self) -> list[str]:
        """Return its texts in order."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        return [part if isinstance(part, str) else part.text for part in parts]


class JudgeSampling(_Grader):
    """How a judge's answer is sampled; the judge's own settings are the defaults."""

    max_completions_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    seed: int | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class ScoreModel(_Grader):
    """A number in `range`, which a judge gives. model: the judge's."""

    type: Literal["score_model"]
    name: _Name
    model: _Name
    input: Annotated[list[InputMessage], Field(min_length=1)]
    range: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    sampling_params: JudgeSampling = JudgeSampling()


class LabelModel(_Grader):
    """1 if the label that a judge gives is in `passing_labels`, else 0. model: the judge's."""

    type: Literal["label_model"]
    name: _Name
    model: _Name
    input: Annotated[list[InputMessage], Field(min_length=1)]
    labels: Annotated[list[_Name], Field(min_length=1)]
    passing_labels: Annotated[list[_Name], Field(min_length=1)]


class Python(_Grader):
    """The result of the source's `grade(sample, item)`. It runs only if the operator has allowed it."""

    type: Literal["python"]
    name: _Name
    source: str


#: Bytes of a grader's code: as many as a job file may have (`synth.api.limits.MAX_CONFIG_BYTES`).
MAX_SOURCE_BYTES = MAX_EVENT_BYTES // 4
#: Graders of a `multi`: each may compare texts of up to `SYNTH_MAX_GRADED_CHARACTERS` characters, which takes a while.
MAX_GRADERS = 32


class Multi(_Grader):
    """The value of a formula of the scores of its graders, by their keys."""

    type: Literal["multi"]
    name: _Name = "multi"
    graders: Annotated[dict[str, StringCheck | TextSimilarity | ScoreModel | LabelModel | Python], Field(min_length=1)]
    calculate_output: str


_T = TypeVar("_T", bound=_Grader)

Simple = StringCheck | TextSimilarity | ScoreModel | LabelModel | Python
Grader = StringCheck | TextSimilarity | ScoreModel | LabelModel | Python | Multi
_KINDS: dict[str, type[StringCheck | TextSimilarity | ScoreModel | LabelModel | Python]] = {
    "string_check": StringCheck,
    "text_similarity": TextSimilarity,
    "score_model": ScoreModel,
    "label_model": LabelModel,
    "python": Python,
}
_TYPES = f"{', '.join(_KINDS)} or multi"


def parse_grader(data: Any, *, where: str = "grader", python: bool = True) -> Grader:
    """Read the grader that JSON data describes.

    where: the place for the problems. python: whether code is allowed; if not, it is refused before it is parsed,
    because parsing code costs more than reading it. Raises `UserError` with every problem.
    """
    if not isinstance(data, dict):
        raise UserError("a grader is a JSON object", expected=f"one of type {_TYPES}", where=where)
    table = cast(dict[str, Any], data)
    if sources := _sources(table):
        if not python:
            raise UserError(python_refused(where=where))
        _check_size(sources, where)
    return _multi(table, where) if table.get("type") == "multi" else _simple(table, where)


def names_python(data: Any) -> bool:
    """Whether the JSON data of a grader has a part of type `python`, read or not."""
    return isinstance(data, dict) and bool(_sources(cast(dict[str, Any], data)))


def _sources(table: dict[str, Any]) -> list[Any]:
    """What stands as the source of each part of type `python`."""
    inner = table.get("graders")
    parts = [table, *cast(dict[str, Any], inner).values()] if isinstance(inner, dict) else [table]
    tables = [cast(dict[str, Any], part) for part in parts if isinstance(part, dict)]
    return [part.get("source") for part in tables if part.get("type") == "python"]


def _check_size(sources: list[Any], where: str) -> None:
    """Raises `UserError` for more code than a job file can have: each megabyte of it takes seconds to parse."""
    size = sum(len(source.encode(errors="replace")) for source in sources if isinstance(source, str))
    if size > MAX_SOURCE_BYTES:
        raise UserError(
            f"the sources of its python graders have {size:,} bytes",
            expected=f"at most {MAX_SOURCE_BYTES:,}, as many as a job file",
            fix="pass data by `item`",
            where=where,
        )


def parts_of(grader: Grader) -> dict[str, Simple]:
    """Return the graders that give scores: a multi grader's parts by their keys, else the grader itself by its name."""
    return grader.graders if isinstance(grader, Multi) else {grader.name: grader}


def models_of(grader: Grader) -> list[str]:
    """Return the models that a grader calls, each once."""
    models = (part.model for part in parts_of(grader).values() if isinstance(part, ScoreModel | LabelModel))
    return list(dict.fromkeys(models))


def runs_python(grader: Grader) -> bool:
    """Return whether a grader runs code that its writer sent."""
    return any(isinstance(part, Python) for part in parts_of(grader).values())


def python_refused(*, where: str) -> Problem:
    """Return why a grader with code is refused if the operator has not allowed it."""
    return Problem(
        what="a grader of type 'python': this cluster runs no code that is sent to it",
        expected="a grader without python; or SYNTH_PYTHON_GRADERS=true of the operator",
        fix="pay the rollouts in a task app of your own",
        where=where,
    )


def templates_of(grader: Grader, *, where: str = "grader") -> dict[str, Template]:
    """Return the templates of a grader from `parse_grader` by their places, in order."""
    if isinstance(grader, Multi):
        parts = [templates_of(part, where=f"{where}.graders.{key}") for key, part in grader.graders.items()]
        return {place: template for part in parts for place, template in part.items()}
    return {f"{where}.{place}": parse_template(text) for place, text in _texts(grader).items()}


def _texts(grader: Simple) -> dict[str, str]:
    """Return the texts of a grader that are templates, by their places in it."""
    match grader:
        case Python():
            return {}
        case ScoreModel() | LabelModel():
            return {
                f"input[{m}].content" + (f"[{n}]" if isinstance(message.content, list) else ""): text
                for m, message in enumerate(grader.input)
                for n, text in enumerate(message.texts())
            }
        case _:
            return {"input": grader.input, "reference": grader.reference}


def _simple(table: dict[str, Any], where: str) -> Simple:
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        what = f"a grader of type {str(kind)[:40]!r}: it is not known"
        raise UserError(what, expected=_TYPES, where=f"{where}.type")
    metric = str(table.get("evaluation_metric"))
    if kind == "text_similarity" and metric in _METRICS_REFUSED:
        raise UserError(
            f"the metric {metric!r} is not computed here: {_METRICS_REFUSED[metric]}",
            expected="fuzzy_match, bleu, gleu, rouge_1 to rouge_5, or rouge_l",
            where=f"{where}.evaluation_metric",
        )
    if kind == "python" and table.get("image_tag") is not None:
        what = "image_tag names an image to run the code in, and it runs as a process of the rollouts service"
        raise UserError(what, fix="leave it out", where=f"{where}.image_tag")
    if kind in ("score_model", "label_model"):
        _check_contents(table.get("input"), where)
    if table.get("sampling_params", ...) is None:
        table = {name: value for name, value in table.items() if name != "sampling_params"}
    grader = _validated(_KINDS[kind], table, where)
    problems = _problems_of(grader, where)
    for place, text in _texts(grader).items():
        try:
            parse_template(text)
        except TemplateWrong as wrong:
            problems.append(Problem(what=str(wrong), expected=wrong.expected, where=f"{where}.{place}"))
    if problems:
        raise UserError(problems)
    return grader


def _check_contents(messages: Any, where: str) -> None:
    """Raise `UserError` for content that a judge cannot get here."""
    for m, message in enumerate(cast(list[Any], messages) if isinstance(messages, list) else []):
        content = cast(dict[str, Any], message).get("content") if isinstance(message, dict) else None
        for part in cast(list[Any], content) if isinstance(content, list) else [content]:
            kind = cast(dict[str, Any], part).get("type") if isinstance(part, dict) else None
            if kind in _CONTENTS_REFUSED:
                what = f"a judge's prompt is text alone, and this is {kind!r}"
                place = f"{where}.input[{m}].content"
                raise UserError(what, expected="a text, input_text or output_text", where=place)


def _problems_of(grader: Simple, where: str) -> list[Problem]:
    """Return the problems between the fields of a grader."""
    match grader:
        case ScoreModel(range=[lowest, highest]) if not lowest < highest:
            what = f"the range goes from {lowest:g} to {highest:g}"
            return [Problem(what=what, expected="the lowest score, then the highest", where=f"{where}.range")]
        case LabelModel():
            problems: list[Problem] = []
            if len(set(grader.labels)) < len(grader.labels):
                problems.append(Problem(what="a label stands twice", expected="each once", where=f"{where}.labels"))
            if unknown := [label for label in grader.passing_labels if label not in grader.labels]:
                problems.append(
                    Problem(
                        what=f"{unknown[0][:80]!r} passes, and is not one of the labels",
                        expected=f"some of {', '.join(grader.labels)[:200]}",
                        where=f"{where}.passing_labels",
                    )
                )
            return problems
        case Python():
            wrong = source_wrong(grader.source)
            expected = "Python with `def grade(sample, item)` that returns a number"
            return [Problem(what=wrong, expected=expected, where=f"{where}.source")] if wrong else []
        case _:
            return []


def _multi(table: dict[str, Any], where: str) -> Multi:
    written = table.get("graders")
    entries = cast(dict[str, Any], written) if isinstance(written, dict) else {}
    if isinstance(entries.get("type"), str):
        # One grader without a key, as in the types of the openai SDK: its name is its key.
        entries = {str(entries.get("name")): entries}
    if not entries:
        raise UserError("multi combines graders, and has none", expected="a table of them", where=f"{where}.graders")
    if len(entries) > MAX_GRADERS:
        what = f"multi combines {len(entries):,} graders"
        raise UserError(what, expected=f"at most {MAX_GRADERS}", where=f"{where}.graders")
    problems: list[Problem] = []
    parts: dict[str, Simple] = {}
    for key, part in entries.items():
        place = f"{where}.graders.{key[:80]}"
        if not key.isidentifier():
            problems.append(Problem(what=f"{key[:80]!r} is no name", expected="letters, digits and _", where=place))
            continue
        try:
            if not isinstance(part, dict):
                raise UserError("a grader is a JSON object", expected=_TYPES, where=place)
            parts[key] = _simple(cast(dict[str, Any], part), place)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    multi = _validated(
        Multi, {**table, "graders": {key: part.model_dump(exclude_none=True) for key, part in parts.items()}}, where
    )
    try:
        formula = parse_formula(multi.calculate_output)
    except FormulaWrong as wrong:
        raise UserError(str(wrong), expected=wrong.expected, where=f"{where}.calculate_output") from wrong
    if unknown := sorted(formula.names - set(parts)):
        raise UserError(
            f"{unknown[0]!r} is not one of its graders",
            expected=f"one of {', '.join(parts)}",
            where=f"{where}.calculate_output",
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
