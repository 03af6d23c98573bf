"""Lists and filters that cost much: the most conditions, the longest, odd cursors, and the largest pages."""

from __future__ import annotations

import random
from urllib.parse import urlencode

from synth.api.limits import MAX_EVENTS, MAX_MODELS, MAX_PAGE, MAX_STEPS
from synth.gateway.settings import GatewaySettings
from tests.soak.hostile.costs.history import pairs, tags

_SETTINGS = GatewaySettings()

Case = tuple[str, str]
"""What costs, and the path with its query."""


def costly_lists(rng: random.Random, jobs: list[str]) -> list[Case]:
    """Addresses of lists. jobs: ids of jobs of the organisation, first the one with a long history."""
    longest, long = _SETTINGS.http_header_bytes - 2048, jobs[0]
    job, last = rng.choice(jobs), jobs[-1]
    tagged = [("tag", f"{name}={value}") for name, value in tags().items()]
    metadata = [(f"metadata[{name}]", value) for name, value in pairs().items()]
    page, digits = [("limit", str(MAX_PAGE))], "9" * 18
    above = [("tag", f"t{i}={rng.random()}") for i in range(longest // 40)]
    traces = [("min_reward", "0"), ("max_reward", "1"), ("mode", "train"), *page]
    lists = {
        "jobs": ("/api/jobs", page),
        "jobs by tags": ("/api/jobs", [*tagged, *page]),
        "jobs by tags, behind the first": ("/api/jobs", [*tagged, *page, ("after", last)]),
        "jobs by absent tags": ("/api/jobs", [*tagged[1:], ("tag", "a=b"), *page]),
        "jobs by too many tags": ("/api/jobs", above),
        "jobs by a long tag": ("/api/jobs", [("tag", "t0=" + "x" * longest)]),
        "jobs by equal tags": ("/api/jobs", tagged[:1] * (longest // 20)),
        "jobs by a name": ("/api/jobs", [("name", "/" * 255), *page]),
        "jobs by everything": ("/api/jobs", [*tagged, ("name", "job.toml"), ("prefix", "job_"), ("state", "rejected")]),
        "jobs by a wide prefix": ("/api/jobs", [("prefix", "job_" + "\U0010ffff" * 60), *page]),
        "jobs behind a long id": ("/api/jobs", [("after", "job_" + "x" * longest)]),
        "unknown parameters": ("/api/jobs", [(f"p{i}{rng.random()}", "") for i in range(longest // 40)]),
        "a parameter of many letters": ("/api/jobs", [("limi" * (longest // 4), "")]),
        "fine-tuning jobs": ("/v1/fine_tuning/jobs", [("limit", "100")]),
        "fine-tuning jobs by metadata": ("/v1/fine_tuning/jobs", [*metadata, ("limit", "100")]),
        "fine-tuning jobs by absent metadata": (
            "/v1/fine_tuning/jobs",
            [*metadata[1:], ("metadata[m0]", "x"), ("limit", "100")],
        ),
        "fine-tuning jobs by long metadata": ("/v1/fine_tuning/jobs", [("metadata[m0]", "x" * longest)]),
        "fine-tuning jobs by too much": (
            "/v1/fine_tuning/jobs",
            [(f"metadata[{i}{rng.random()}]", "") for i in range(longest // 60)],
        ),
        "published jobs": ("/api/learning/jobs", [("limit", "100")]),
        "published RL jobs": ("/api/rl/jobs", [("limit", "100")]),
        "traces": ("/api/traces", [*(("job", job) for job in jobs[:32]), *page]),
        "traces by everything": ("/api/traces", [*(("job", job) for job in jobs[:32]), *traces, ("sort", "oldest")]),
        "traces behind a long number": ("/api/traces", [("after", digits), *page]),
        "traces by an absent seed": ("/api/traces", [("seed", "-1"), *page]),
        "traces by unknown names": ("/api/traces", [("model", "x" * longest), ("env_name", "y")]),
        "rollouts": (f"/api/jobs/{long}/rollouts", page),
        "events": (f"/api/jobs/{job}/events", [("limit", str(MAX_EVENTS))]),
        "events of a long job": (f"/api/jobs/{long}/events", [("limit", str(MAX_EVENTS))]),
        "newest events": (f"/v1/fine_tuning/jobs/{long}/events", [("limit", "100")]),
        "published events": (f"/api/rl/jobs/{long}/events", [("limit", "100000")]),
        "checkpoints": (f"/v1/fine_tuning/jobs/{long}/checkpoints", [("limit", "100")]),
        "metrics of a job": (f"/api/jobs/{long}/metrics", [("limit", str(MAX_STEPS))]),
        "metrics of a name": (f"/api/jobs/{long}/metrics", [("name", "loss"), ("limit", str(MAX_STEPS))]),
        "metrics of a long name": (f"/api/jobs/{long}/metrics", [("name", "x" * longest)]),
        "published metrics": (f"/api/rl/jobs/{long}/metrics", [("limit", "100000")]),
        "timeline": (f"/api/rl/jobs/{long}/timeline", [("limit", "100000")]),
        "a large job": (f"/api/jobs/{job}", []),
        "files": ("/v1/files", [("limit", "10000")]),
        "files by their age": ("/v1/files", [("limit", "10000"), ("order", "asc")]),
        "native files": ("/api/files", page),
        "models": ("/api/models", [("limit", str(MAX_MODELS))]),
        "audit": ("/api/audit", page),
        "the API's document": ("/openapi.json", []),
        "metrics": ("/metrics", []),
    }
    return [(name, f"{path}?{urlencode(query)}") for name, (path, query) in lists.items()]
