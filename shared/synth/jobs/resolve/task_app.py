"""Resolve the configurations of policy and environment that the task app gets, from all keys that set them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from synth.jobs.resolve.context import ResolveContext, is_written
from synth.models import ModelSpec

#: Keys that both `[rollout]` and `[eval]` have, and that the task app reads in the policy's configuration.
POLICY_KEYS = ("use_vision", "image_only_mode", "max_images_per_step")
#: Keys of `[training]` that the task app reads in the environment's configuration, if it pays by them.
REWARD_KEYS = ("reward_positive", "reward_negative_no_tool", "reward_negative_no_answer")
#: Keys that only `[eval]` has.
EVAL_POLICY_KEYS = (*POLICY_KEYS, "use_tools", "tool_choice", "reasoning_effort", "system_hint")
EVAL_ENV_KEYS = ("split", "max_steps", "max_steps_per_episode")


class GivenKey(NamedTuple):
    """A key of the job file, and the name under which the task app is given its value."""

    section: BaseModel | None
    key: str
    name: str


def given_keys(section: BaseModel, keys: Sequence[str]) -> list[GivenKey]:
    """Return the keys that the task app gets under their own names."""
    return [GivenKey(section, key, key) for key in keys if key in type(section).model_fields]


def merge_given(
    field: str, table: dict[str, Any], keys: Sequence[GivenKey], context: ResolveContext, *, called: str
) -> dict[str, Any]:
    """Return the table with the keys that stand elsewhere in the file; a key with two different values is a problem.

    field: of the job, whose origin is recorded if none is recorded yet. called: the table's name in the file, for the
    problem.
    """
    merged = dict(table)
    for section, key, name in keys:
        if section is None or not is_written(section, key):
            continue
        value = getattr(section, key)
        if name in merged and merged[name] != value:
            by = f"by {called}" if name in table else "by another key"
            context.problem(
                context.at(section, key),
                f"the task app would be given {name} = {_shown(value)} and, {by}, {_shown(merged[name])}",
                expected="one value",
                fix="remove one of the two",
            )
        merged[name] = value
        if context.origins.get(field, "default") == "default":
            context.record(field, merged, context.document.where(context.at(section, key)))
    return merged


def with_sight(policy_config: dict[str, Any], spec: ModelSpec | None) -> dict[str, Any]:
    """Return the policy's configuration; for a vision model it states so, and the task app may show it images.

    The app cannot derive it from the model's name, which is the job's. Values of the file come first.
    """
    if spec is None or spec.vision is None:
        return policy_config
    return {"supports_vision": True, "use_vision": True} | policy_config


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
