"""The score of a reply: by the row's own reply, by a grader, or by a judge with a rubric."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from synth.cli.comparison.validity import read_calls
from synth.cli.sampling.rows import PromptRow, text_of
from synth.client import Client
from synth.client.errors import NoScore
from synth.console.errors import CliError, UsageProblem
from synth.errors import Problem, UserError
from synth.graders.schema import (
    Grader,
    LabelModel,
    Python,
    ScoreModel,
    TextSimilarity,
    parse_grader,
    parts_of,
    templates_of,
)
from synth.graders.template import ItemLacks, Sample, check_item
from synth.judging.rubric import rubric_from_table

Json = dict[str, Any]

#: Seconds for which the cluster is called again while it is busy or its judge is still at work.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Score:
    """The score of a reply. value: None for a reply that cannot be scored. reason: why there is none."""

    value: float | None
    reason: str = ""


class Scorer(Protocol):
    """Scores replies. title: the name of the score in a table."""

    title: str

    def check(self, row: PromptRow, where: str) -> None:
        """Refuse a row that cannot be scored, before a model is called. Raises `UsageProblem`."""
        ...

    def score(self, row: PromptRow, message: Json) -> Score: ...


class ReferenceScorer:
    """1 for a reply that equals the row's own: tool calls by name and arguments, JSON by value, other text as it is."""

    title = "equal to the reference"

    def check(self, row: PromptRow, where: str) -> None:
        if row.reference is None:
            raise UsageProblem(
                "the row ends with no assistant message to compare replies with",
                expected="rows with a reply, --grader FILE, or --judge FILE",
                where=where,
            )

    def score(self, row: PromptRow, message: Json) -> Score:
        reference = row.reference or {}
        calls, expected = read_calls(message), read_calls(reference)
        if expected or calls is None or calls:
            return Score(float(calls == expected))
        text, wanted = text_of(message).strip(), text_of(reference).strip()
        return Score(float(text == wanted or _is_same_json(text, wanted)))


class GraderScorer:
    """The score of a grader (docs/graders.md). Its code and its models run on the cluster, the rest here."""

    def __init__(self, grader: Grader, cluster: Client | CliError) -> None:
        """cluster: why there is none, without one. Raises `UsageProblem` if the grader needs one."""
        self.title = f"grader {grader.name}"
        self._grader = grader
        self._client = None if isinstance(cluster, CliError) else cluster
        remote = (Python, ScoreModel, LabelModel)
        if self._client is not None and find_spec("rapidfuzz") is None:
            # The cluster compares texts too, if this machine lacks the extra `graders`.
            remote = (*remote, TextSimilarity)
        self._remote = {key: part for key, part in parts_of(grader).items() if isinstance(part, remote)}
        if self._remote and isinstance(cluster, CliError):
            key, part = next(iter(self._remote.items()))
            raise UsageProblem(
                f"the {part.type} grader {key!r} runs on a cluster: {cluster.problems[0].what}",
                fix="start one with `synthctl up`, or name it with --backend",
                where="--grader",
            )

    def check(self, row: PromptRow, where: str) -> None:
        for template in templates_of(self._grader).values():
            try:
                check_item(template, row.item)
            except ItemLacks as lacks:
                raise UsageProblem(str(lacks), fix="correct the row, or the grader's template", where=where) from lacks

    def score(self, row: PromptRow, message: Json) -> Score:
        from synth.graders.grade import GraderFailed, grade

        sample = Sample(text_of(message), message.get("tool_calls") or [])
        remote: dict[str, float] = {}
        for key, part in self._remote.items():
            answer = self._run(part.model_dump(mode="json", exclude_none=True), row, message)
            if isinstance(answer, str):
                return Score(None, answer)
            remote[key] = answer
        try:
            graded = grade(self._grader, row.item, sample, max_characters=sys.maxsize, ran=remote)
        except GraderFailed as failed:
            return Score(None, str(failed))
        return Score(graded.score)

    def _run(self, grader: Json, row: PromptRow, message: Json) -> float | str:
        """Return the score of a part that runs on the cluster, or why it has none."""
        assert self._client is not None
        body = {
            "grader": grader,
            "item": row.item,
            "model_sample": text_of(message),
            "sample_tools": message.get("tool_calls") or [],
        }
        answer = self._client.grade(body, patience=_PATIENCE_S)
        failures = [name for name, is_set in cast(Json, answer["metadata"]["errors"]).items() if is_set is True]
        if set(failures) - {"sample_parse_error"}:
            return str(answer["metadata"]["errors"].get("details") or ", ".join(failures))
        return float(answer["reward"])


class RubricScorer:
    """The total of a rubric's outcome (docs/judging.md), as a judge of the cluster scores it."""

    def __init__(self, rubric: Json, options: Json, client: Client) -> None:
        self.title = "judge"
        self._rubric = rubric
        self._options = options
        self._client = client

    def check(self, row: PromptRow, where: str) -> None:
        del row, where

    def score(self, row: PromptRow, message: Json) -> Score:
        call = {
            "input_messages": row.messages,
            "output_messages": [message],
            "output_tool_calls": [
                {"name": name, "arguments_json": json.dumps(arguments)} for name, arguments in read_calls(message) or []
            ],
        }
        body = {
            "policy_name": "synthctl",
            "task_app": {"id": "dataset"},
            "trace": {"event_history": [{"call_records": [call]}]},
            "rubric": self._rubric,
            "options": {"event": False, **self._options},
        }
        try:
            review = self._client.judge(body, patience=_PATIENCE_S)
        except NoScore as error:
            return Score(None, error.problems[0].what)
        return Score(float(review["aggregate_score"]))


def read_grader(path: Path) -> Grader:
    """Read a grader from a JSON or TOML file; of a job file its `[grader]`. Raises `UserError` and `UsageProblem`."""
    data = _read_table(path, "--grader")
    return parse_grader(data.get("grader") if isinstance(data.get("grader"), dict) else data, where=str(path))


def read_rubric(path: Path, client: Client) -> RubricScorer:
    """Read a rubric and its judge from the tables `[rubric]` and `[judge.options]` of a TOML file.

    Raises `UsageProblem` for a missing rubric, and for a key that has no effect here.
    """
    data = _read_table(path, "--judge")
    rubric = rubric_from_table(data.get("rubric"), where=f"{path}: [rubric]")
    if isinstance(rubric, Problem):
        raise UserError(rubric)
    if not rubric.outcome:
        raise UsageProblem("the rubric scores no outcome", expected="[rubric.outcome] with criteria", where=str(path))
    judge = cast(Json, data.get("judge") or {})
    options = cast(Json, judge.get("options") or {})
    known = ("model", "provider", "timeout_s", "max_concurrency")
    others = [f"[judge].{name}" for name in judge if name != "options"]
    others += [f"[judge.options].{name}" for name in options if name not in known]
    if others:
        raise UsageProblem(
            f"{', '.join(others)} has no effect on a dataset",
            expected=f"[judge.options] with {', '.join(known)}",
            fix="remove it",
            where=str(path),
        )
    return RubricScorer(cast(Json, data["rubric"]), options, client)


def _read_table(path: Path, flag: str) -> Json:
    try:
        text = path.read_text(encoding="utf-8")
        value: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageProblem(f"it cannot be read: {error.strerror}", where=f"{flag} {path}") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise UsageProblem(f"this is no {kind}: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise CliError("this is no object", expected="a grader or a rubric", where=str(path))
    return cast(Json, value)


def _is_same_json(text: str, other: str) -> bool:
    if not (text[:1] in "{[" and other[:1] in "{["):
        return False
    try:
        return json.loads(text) == json.loads(other)
    except (ValueError, RecursionError):
        return False
