"""Bodies of requests that cost much to read: as many values, keys, escapes and digits as the settings allow."""

from __future__ import annotations

import random
from typing import Any

from synth.api.limits import MAX_CONFIG_BYTES
from synth.gateway.settings import GatewaySettings

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
    formula = "g0" + " + g1" * 100_000
    grader = {"type": "multi", "name": "m", "graders": graders, "calculate_output": formula}
    return {"type": "reinforcement", "reinforcement": {"grader": grader}}


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
        if path == "/v1/fine_tuning/jobs":
            wide |= {"a large grader": {"method": _graded(salt)}}
        cases += [(f"{path}: {name}", (path, good | fields)) for name, fields in wide.items()]
    return cases
