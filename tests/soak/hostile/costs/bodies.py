"""Bodies of requests that cost much to read: as many values, keys, escapes and digits as the settings allow."""

from __future__ import annotations

import random
from typing import Any

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
        cases += [(f"{path}: {name}", (path, good | fields)) for name, fields in wide.items()]
    return cases
