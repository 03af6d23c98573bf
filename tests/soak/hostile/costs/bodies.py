"""Bodies of requests that cost much to read: as many values, keys, escapes and digits as the settings allow."""

from __future__ import annotations

import random
from typing import Any

from synth.api.limits import MAX_CONFIG_BYTES
from synth.gateway.settings import GatewaySettings
from tests.soak.hostile.target import MODEL

_SETTINGS = GatewaySettings()
_POSTS: dict[str, dict[str, Any]] = {
    "/api/jobs/check": {"config": "a"},
    "/api/jobs": {"config": "a"},
    "/api/rl/jobs": {"data": {}},
    "/api/learning/jobs": {"data": {}},
    "/v1/fine_tuning/jobs": {"model": "a", "training_file": "file_a"},
    "/api/keys": {"name": "a"},
    "/api/judge/v1/score": {},
}

Case = tuple[str, tuple[str, dict[str, Any]]]
"""What costs, and the path with the body."""


def _texts(salt: str) -> dict[str, str]:
    """TOML as long as a body may be, and as long as a configuration may be."""
    most, config = _SETTINGS.max_json_bytes - 1024, MAX_CONFIG_BYTES - 1024
    return {
        "too many inline tables": "a = [" + "{b=1}," * (most // 6) + "]",
        "too many keys": "".join(f"{salt}{i} = 1\n" for i in range(most // 40)),
        "inline tables": "a = [" + "{b=1}," * (config // 6 - 1) + "]",
        "keys": "".join(f"{salt}{i} = 1\n" for i in range(config // 40)),
    }


def _graded(salt: str) -> dict[str, Any]:
    part = {"type": "string_check", "name": "a", "operation": "eq", "input": "{{sample.output_text}}"}
    graders = {f"g{i}": {**part, "reference": salt + "{{item.a}}" * 50_000} for i in range(8)}
    grader = {"type": "multi", "name": "m", "graders": graders, "calculate_output": " + ".join(graders)}
    return {"type": "reinforcement", "reinforcement": {"grader": grader}}


def _judged(salt: str) -> dict[str, dict[str, Any]]:
    """Traces with the most steps, calls and messages, and the most criteria."""
    values = _SETTINGS.max_json_values - 2000
    named: dict[str, Any] = {
        "policy_name": salt,
        "task_app": {"id": "a"},
        "rubric": {"outcome": {"criteria": _criteria(1)}},
    }
    named["options"] = {"provider": "openai", "model": "gpt-5"}
    call = {"input_messages": [{"role": "user", "parts": [{"text": "a"}]}], "output_text": "b"}

    def trace(**fields: Any) -> dict[str, Any]:
        return {**named, "trace": {"event_history": [{"observation": 0}], **fields}}

    return {
        "steps": trace(event_history=[{"observation": 0}] * (values // 4)),
        "calls": trace(event_history=[{"call_records": [call] * (values // 16)}]),
        "deep observations": trace(event_history=[{"observation": [[[[{"a": [0]}]]]]}] * (values // 12)),
        "a long observation": trace(event_history=[{"observation": "a" * (_SETTINGS.max_json_bytes - 4096)}]),
        "a long number": trace(event_history=[{"observation": 0, "reward": 10**400}]),
        "messages": trace(markov_blanket_message_history=[{"role": "user", "content": "a"}] * (values // 6)),
        "criteria": trace() | {"rubric": {"outcome": {"criteria": _criteria(values // 10)}}},
    }


def _criteria(count: int) -> list[dict[str, Any]]:
    return [{"id": f"c{i}", "description": "a", "weight": 1.0} for i in range(count)]


def costly_bodies(rng: random.Random) -> list[Case]:
    """A body of each kind for each route that reads one."""
    values = _SETTINGS.max_json_values - 1000
    salt = f"k{rng.randrange(1 << 40):x}"
    cases: list[Case] = []
    for path, good in _POSTS.items():
        wide: dict[str, Any] = {
            "unknown fields": {f"{salt}{i}": 0 for i in range(values // 2)},
            "unknown empty lists": {salt: [[]] * (values // 2)},
            **{
                f"a wide {name}": {name: [dict.fromkeys("ab", 0)] * (values // 5)}
                for name in ("metadata", "data", "method", "hyperparameters", "integrations", "trace", "rubric")
                if path.startswith(("/v1", "/api/rl", "/api/learning", "/api/judge"))
            },
            **{
                f"{name} of many keys": {name: {f"{salt}{i}": "a" for i in range(values // 2)}}
                for name in ("metadata", "data", "method", "hyperparameters")
                if path.startswith(("/v1", "/api/rl", "/api/learning"))
            },
        }
        if path == "/api/rl/jobs":
            wide |= {f"TOML of {name}": {"data": {"config_toml": text}} for name, text in _texts(salt).items()}
        if path == "/api/judge/v1/score":
            wide |= _judged(salt)
        if path == "/v1/fine_tuning/jobs":
            wide |= {"a large grader": {"model": MODEL, "method": _graded(salt)}}
        cases += [(f"{path}: {name}", (path, good | fields)) for name, fields in wide.items()]
    return cases
