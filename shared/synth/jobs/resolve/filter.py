"""A filter, resolved: what it selects and where it writes. Nothing of it runs on the cluster."""

from __future__ import annotations

from typing import Any

from synth.jobs.resolve.context import ResolveContext
from synth.jobs.schema.filter import FilterConfig

NOT_SUBMITTED = {
    "what": "a filter is no job of the cluster",
    "expected": "it to run on the machine that has the trace database",
    "fix": "`synth-ai filter --config FILE` writes the JSONL there; then train on it with --dataset",
}
_KEYS = (
    *("splits", "task_ids", "models", "min_official_score", "max_official_score", "min_judge_scores"),
    *("max_judge_scores", "min_created_at", "max_created_at", "limit"),
)


def resolve_filter(config: FilterConfig, context: ResolveContext) -> dict[str, Any]:
    """The filter's own settings, collecting problems in `context`."""
    section = config.filter
    for key, older in (("db", "input_db"), ("output", "output_dir")):
        if getattr(section, key) is None and getattr(section, older) is None:
            expected = "a path or a DSN" if key == "db" else "a file, .jsonl or .json"
            context.problem(("filter", key), f"the key {key!r} is missing", expected=expected)
        elif getattr(section, key) is None:
            context.warn(("filter", older), f"is no key of the client's filter: it wants {key}")
    output = section.output
    if output is not None and not output.endswith((".jsonl", ".json")):
        context.problem(("filter", "output"), f"{output!r} is no JSONL", expected="a file, .jsonl or .json")
    for low, high in (("min_official_score", "max_official_score"), ("min_created_at", "max_created_at")):
        first, last = getattr(section, low), getattr(section, high)
        if first is not None and last is not None and first > last:
            context.problem(("filter", low), f"{low} = {first} is above {high} = {last}", expected="a range")
    return {
        "kind": "filter",
        "db": context.first("db", [(section, "db"), (section, "input_db")]),
        "output": context.first("output", [(section, "output"), (section, "output_dir")]),
        **{key: context.take(key, section, key) for key in _KEYS},
        "tags": context.tags(config.tags),
    }
