"""Lists and filters that cost much: the most conditions, the longest, and the largest pages."""

from __future__ import annotations

import random
from urllib.parse import urlencode

from synth.api.limits import MAX_EVENTS, MAX_MODELS, MAX_PAGE
from synth.gateway.settings import GatewaySettings
from tests.soak.hostile.job_texts import GOOD_JOB

_SETTINGS = GatewaySettings()

Case = tuple[str, str]
"""What costs, and the path with its query."""


def costly_lists(rng: random.Random, jobs: list[str]) -> list[Case]:
    """Addresses of lists. jobs: ids of jobs of the organisation."""
    most, longest = _SETTINGS.list_conditions, _SETTINGS.http_header_bytes - 2048
    job = rng.choice(jobs)
    tags = [("tag", f"t{i}=v{i}") for i in range(most - 1)]
    metadata = [(f"metadata[m{i}]", f"v{i}") for i in range(most)]
    page = [("limit", str(MAX_PAGE))]
    above = [("tag", f"t{i}={rng.random()}") for i in range(longest // 40)]
    lists = {
        "jobs": ("/api/jobs", page),
        "jobs by tags": ("/api/jobs", [*tags, *page]),
        "jobs by absent tags": ("/api/jobs", [*tags[1:], ("tag", "a=b"), *page]),
        "jobs by too many tags": ("/api/jobs", above),
        "jobs by a long tag": ("/api/jobs", [("tag", "t0=" + "x" * longest)]),
        "jobs by equal tags": ("/api/jobs", tags[:1] * (longest // 20)),
        "jobs by a name": ("/api/jobs", [("name", "/" * 255), *page]),
        "jobs by everything": ("/api/jobs", [*tags, ("name", "job.toml"), ("prefix", "job_"), ("state", "rejected")]),
        "unknown parameters": ("/api/jobs", [(f"p{i}{rng.random()}", "") for i in range(longest // 40)]),
        "a parameter of many letters": ("/api/jobs", [("limi" * (longest // 4), "")]),
        "fine-tuning jobs": ("/v1/fine_tuning/jobs", [("limit", "100")]),
        "fine-tuning jobs by metadata": ("/v1/fine_tuning/jobs", [*metadata, ("limit", "100")]),
        "fine-tuning jobs by too much": (
            "/v1/fine_tuning/jobs",
            [(f"metadata[{i}{rng.random()}]", "") for i in range(longest // 60)],
        ),
        "traces": ("/api/traces", [*(("job", job) for job in jobs[:32]), *page]),
        "traces by unknown names": ("/api/traces", [("model", "x" * longest), ("env_name", "y")]),
        "rollouts": (f"/api/jobs/{job}/rollouts", page),
        "events": (f"/api/jobs/{job}/events", [("limit", str(MAX_EVENTS))]),
        "newest events": (f"/v1/fine_tuning/jobs/{job}/events", [("limit", "100")]),
        "steps": (f"/api/jobs/{job}/metrics", []),
        "a large job": (f"/api/jobs/{job}", []),
        "files": ("/v1/files", [("limit", "10000")]),
        "native files": ("/api/files", page),
        "models": ("/api/models", [("limit", str(MAX_MODELS))]),
        "audit": ("/api/audit", page),
        "the API's document": ("/openapi.json", []),
        "metrics": ("/metrics", []),
    }
    return [(name, f"{path}?{urlencode(query)}") for name, (path, query) in lists.items()]


def tagged_job(file: str, size: int) -> str:
    """The text of a job on a file, with the tags that the filters look for, and as much more in another tag."""
    tags = "".join(f't{i} = "v{i}"\n' for i in range(_SETTINGS.list_conditions - 1))
    return f'{GOOD_JOB % file}[tags]\n{tags}padding = "{"x" * size}"\n'
