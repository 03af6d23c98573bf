"""Resolve a filter: the rollouts that it selects and the file that it writes. It does not run on the cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from synth.jobs.resolve.context import ResolveContext
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.sections import keys_of

NOT_SUBMITTED = {
    "what": "a filter is no job of the cluster",
    "expected": "a filter that runs on the machine that needs its rows",
    "fix": "`synthctl filter FILE` writes the JSONL, and with --upload makes it a file of the cluster to train on",
}
_SOURCES = ("db", "job", "jobs", "traces")
#: Keys with the same meaning as another one, or that are read during the resolve.
_APART = {"db", "input_db", "job", "jobs", "output", "output_dir", "deduplicate", "shuffle"}
_RANGES = (
    ("min_official_score", "max_official_score"),
    ("min_reward", "max_reward"),
    ("min_tokens", "max_tokens"),
    ("min_steps_per_episode", "max_steps_per_episode"),
)


def parse_moment(text: str) -> datetime:
    """Parse a time of a filter: ISO 8601, UTC without a zone, or seconds since 1970. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            moment = datetime.fromtimestamp(float(text), UTC)
        except (OverflowError, OSError) as error:
            raise ValueError(text) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def resolve_filter(config: FilterConfig, context: ResolveContext) -> dict[str, Any]:
    """Return the filter's own settings, collecting problems in `context`."""
    section, sft = config.filter, config.sft
    _check_source(config, context)
    output = section.output
    if output is None and section.output_dir is None:
        context.problem(("filter", "output"), "the key 'output' is missing", expected="a file, .jsonl or .json")
    elif output is not None and not output.endswith((".jsonl", ".json")):
        context.problem(("filter", "output"), f"{output!r} is no JSONL", expected="a file, .jsonl or .json")
    for low, high in _RANGES:
        first, last = getattr(section, low), getattr(section, high)
        if first is not None and last is not None and first > last:
            context.problem(("filter", low), f"{low} = {first} is above {high} = {last}", expected="a range")
    _check_times(config, context)
    values: dict[str, Any] = {"kind": "filter"}
    values["db"] = context.first("db", [(section, "db"), (section, "input_db")])
    values["jobs"] = context.first("jobs", [(section, "jobs"), (section, "job")])
    if isinstance(values["jobs"], str):
        values["jobs"] = [values["jobs"]]
    values["output"] = context.first("output", [(section, "output"), (section, "output_dir")])
    if output is None and section.output_dir is not None:
        values["output"] = f"{section.output_dir.rstrip('/')}/{config.split.train_file}"
    for key in ("deduplicate", "shuffle"):
        values[key] = context.first(key, [(section, key), (sft, key)], default=False)
    if section.shuffle_seed is not None and not values["shuffle"]:
        where = ("filter", "shuffle_seed")
        context.problem(where, "shuffle_seed without shuffle = true", expected="both, or neither")
    for key in keys_of(type(section)):
        if key not in _APART:
            values[key] = context.take(key, section, key)
    for table, part in (("sft", sft), ("split", config.split), ("stats", config.output)):
        keys = [key for key in keys_of(type(part)) if table != "sft" or key not in _APART]
        values[table] = {key: context.take(f"{table}.{key}", part, key) for key in keys}
    return values | {"tags": context.tags(config.tags)}


def _check_source(config: FilterConfig, context: ResolveContext) -> None:
    section = config.filter
    named = {key: getattr(section, key) for key in (*_SOURCES, "input_db")}
    sources = [key for key, value in named.items() if value not in (None, False, [])]
    if {"db", "input_db"} <= set(sources) and section.db == section.input_db:
        sources.remove("input_db")
    if len(sources) == 1:
        return
    what = f"{' and '.join(sources)} together" if sources else "there is no source of traces"
    expected = 'one of job = "job_…", jobs = […], traces = true, db = "traces.db"'
    context.problem(("filter", sources[-1] if sources else "db"), what, expected=expected)


def _check_times(config: FilterConfig, context: ResolveContext) -> None:
    moments: list[datetime] = []
    for key in ("min_created_at", "max_created_at"):
        text = getattr(config.filter, key)
        if text is None:
            continue
        try:
            moments.append(parse_moment(text))
        except ValueError:
            expected = "ISO 8601, such as 2026-11-21T09:00:00Z, or seconds since 1970"
            context.problem(("filter", key), f"{text!r} is no moment", expected=expected)
    if len(moments) == 2 and moments[0] > moments[1]:
        what = "min_created_at is after max_created_at"
        context.problem(("filter", "min_created_at"), what, expected="a range")
