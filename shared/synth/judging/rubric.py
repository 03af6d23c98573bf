"""Reads rubrics from where people write them: a task app's `/task_info`, a job file, a request to be judged.

Each reader returns the rubric, or the first thing that is wrong with it. A track (the criteria of the events, or of the
outcome) is a list of criteria, or a table with `criteria`, `goal_text` and `aggregation`; a criterion is a table with
`id` (or `key`), `description`, `weight` and `scale`.
"""

from __future__ import annotations

import math
from typing import Any, cast, get_args

from synth.errors import Problem
from synth.judging.settings import Aggregation, Criterion, Rubric, Scale

_SCALES: tuple[str, ...] = get_args(Scale)
#: The words of clients, and ours. Their `weighted_sum` is divided by the sum of the weights.
_AGGREGATIONS: dict[str, Aggregation] = {
    "weighted_mean": "weighted_mean",
    "weighted_sum": "weighted_mean",
    "mean": "weighted_mean",
    "inherit": "weighted_mean",
    "sum": "sum",
}
#: An entry of a foreign rubric without any of these keys is not a criterion.
_TRACK_KEYS = ("criteria", "goal_text", "aggregation")


class _Wrong(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class _Track:
    """The criteria of one track, its goal and its aggregation (None: it names none)."""

    def __init__(self, criteria: list[Criterion], goal: str, aggregation: Aggregation | None) -> None:
        self.criteria = criteria
        self.goal = goal
        self.aggregation: Aggregation | None = aggregation


def rubric_from_task_info(info: Any, *, where: str = "/task_info") -> Rubric | Problem:
    """Return the rubric of a task app's answer to `GET /task_info?seed=…`: `rubric`, with `outcome` and `events`.

    A `rubric` that is a single track is the outcome's. where: the place for the problem.
    """
    rubric = _first(info, "rubric", "rubrics") if isinstance(info, dict) else None
    if not isinstance(rubric, dict):
        return Problem(
            what="the task app has no rubric",
            expected='`rubric` with `outcome` or `events`, as {"outcome": {"criteria": [{"id": …, "description": …}]}}',
            fix="give the task app one, or the job ([rubric.outcome] criteria = […])",
            where=where,
        )
    return _read(cast(dict[str, Any], rubric), where=f"{where} rubric")


def rubric_from_table(table: Any, *, where: str = "[rubric]") -> Rubric | Problem:
    """Return the rubric of a job file's table: `[rubric]` or `[judge.options.rubric_overrides]`."""
    if not isinstance(table, dict):
        return _no_table(table, where)
    return _read(cast(dict[str, Any], table), where=where)


def rubric_from_request(rubric: Any, overrides: Any) -> Rubric | Problem:
    """Return the rubric of a request to judge: its `rubric`, with the tracks of `options.rubric_overrides`.

    `rubric` may hold the tracks itself, or below `rubric_overrides`.
    """
    if isinstance(rubric, dict) and isinstance(inner := cast(dict[str, Any], rubric).get("rubric_overrides"), dict):
        rubric = cast(dict[str, Any], rubric) | cast(dict[str, Any], inner)
    if not isinstance(rubric, dict | None):
        return _no_table(rubric, "rubric")
    if not isinstance(overrides, dict | None):
        return _no_table(overrides, "options.rubric_overrides")
    merged = cast(dict[str, Any], rubric or {}) | cast(dict[str, Any], overrides or {})
    return _read(merged, where="options.rubric_overrides" if overrides else "rubric")


def _read(table: dict[str, Any], *, where: str) -> Rubric | Problem:
    try:
        if "criteria" in table:
            outcome, event = _track(table, f"{where}.outcome"), None
        else:
            outcome = _track(table.get("outcome"), f"{where}.outcome")
            # One word for it is published for task apps, the other for judges.
            event = _track(_first(table, "event", "events"), f"{where}.event")
    except _Wrong as wrong:
        return wrong.problem
    tracks = [track for track in (outcome, event) if track is not None and track.criteria]
    if not tracks:
        return _no_criteria(where)
    goal = table.get("goal_text")
    general = goal if isinstance(goal, str) else ""
    outcome_goal = (outcome.goal if outcome else "") or general
    event_goal = event.goal if event else ""
    aggregation: Aggregation = (outcome.aggregation if outcome else None) or "weighted_mean"
    return Rubric(
        event=event.criteria if event else [],
        outcome=outcome.criteria if outcome else [],
        goal=outcome_goal or event_goal,
        aggregation=aggregation,
        event_goal=event_goal if outcome_goal else "",
        event_aggregation=event.aggregation if event else None,
    )


def _track(value: Any, where: str) -> _Track | None:
    """Return a track, or None. Clients write an empty list for a track that is not judged, which is also None."""
    if value is None or value == [] or value == {}:
        return None
    goal: Any = ""
    aggregation: Aggregation | None = None
    criteria = value
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        criteria = table.get("criteria")
        if criteria is None and not any(key in table for key in _TRACK_KEYS):
            # `{"rubric_id": …}` and a bare name refer to a rubric without its content.
            raise _Wrong(_no_criteria(where))
        goal = _first(table, "goal_text", "goal", "description") or ""
        aggregation = _aggregation(table.get("aggregation"), where)
    if not isinstance(criteria, list) or not criteria:
        raise _Wrong(_no_criteria(where))
    criteria_read = [_criterion(item, f"{where}.criteria[{i}]") for i, item in enumerate(cast(list[Any], criteria))]
    return _Track(
        _distinct([criterion for criterion, _ in criteria_read], where),
        goal if isinstance(goal, str) else "",
        _agreed(
            [*(kind for _, kind in criteria_read if kind is not None), *([aggregation] if aggregation else [])], where
        ),
    )


def _criterion(value: Any, where: str) -> tuple[Criterion, Aggregation | None]:
    if not isinstance(value, dict):
        raise _Wrong(
            Problem(
                what=f"{_shown(value)} is no criterion",
                expected='a table such as {id = "polite", description = "The reply is polite.", weight = 1.0}',
                where=where,
            )
        )
    table = cast(dict[str, Any], value)
    id = _first(table, "id", "key")
    if not isinstance(id, str) or not id.strip():
        what = f"the criterion's id is {_shown(id)}" if id is not None else "the criterion has no id"
        raise _Wrong(Problem(what=what, expected='a name, such as id = "polite"', where=where))
    description = _first(table, "description", "text")
    scale = table.get("scale") or "bounded"
    if scale not in _SCALES:
        raise _Wrong(
            Problem(
                what=f"the scale of {id!r} is {_shown(scale)}",
                expected="bounded (0 to 1), binary (0 or 1) or count (0, 1, 2 …)",
                where=f"{where}.scale",
            )
        )
    criterion = Criterion(
        id=id.strip(),
        # Achievements are often named and not described.
        description=description.strip() if isinstance(description, str) and description.strip() else _words(id),
        weight=_weight(table.get("weight"), id, where),
        scale=cast(Scale, scale),
    )
    return criterion, _aggregation(table.get("aggregation"), where)


def _weight(value: Any, id: str, where: str) -> float:
    if value is None:
        return 1.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise _Wrong(
            Problem(
                what=f"the weight of {id!r} is {_shown(value)}",
                expected="a number above 0",
                fix="leave out a criterion that is not to count",
                where=f"{where}.weight",
            )
        )
    return float(value)


def _aggregation(value: Any, where: str) -> Aggregation | None:
    if value is None:
        return None
    aggregation = _AGGREGATIONS.get(value) if isinstance(value, str) else None
    if aggregation is None:
        raise _Wrong(
            Problem(
                what=f"the aggregation is {_shown(value)}",
                expected="weighted_mean (also called weighted_sum) or sum",
                where=f"{where}.aggregation",
            )
        )
    return aggregation


def _agreed(kinds: list[Aggregation], where: str) -> Aggregation | None:
    if len(set(kinds)) > 1:
        raise _Wrong(Problem(what="the criteria name several aggregations", expected="one for the track", where=where))
    return kinds[0] if kinds else None


def _distinct(criteria: list[Criterion], where: str) -> list[Criterion]:
    seen: set[str] = set()
    for criterion in criteria:
        if criterion.id in seen:
            raise _Wrong(
                Problem(
                    what=f"two criteria have the id {criterion.id!r}",
                    expected="an id of its own for each",
                    where=f"{where}.criteria",
                )
            )
        seen.add(criterion.id)
    return criteria


def _no_criteria(where: str) -> Problem:
    return Problem(
        what="the rubric has no criteria",
        expected='at least one, such as criteria = [{id = "polite", description = "The reply is polite."}]',
        where=where,
    )


def _no_table(value: Any, where: str) -> Problem:
    return Problem(what=f"the rubric is {_shown(value)}", expected="a table with `event` or `outcome`", where=where)


def _first(table: Any, *names: str) -> Any:
    """Return the first of these keys that a table has a value for."""
    return next((value for name in names if (value := cast(dict[str, Any], table).get(name)) is not None), None)


def _words(id: str) -> str:
    return id.replace("_", " ").replace(".", " ").strip()


def _shown(value: Any) -> str:
    return repr(value)[:80]
