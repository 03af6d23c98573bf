"""A stub of the part of OpenAI's API that an import reads, as OpenAI documents it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.cli.backend import Answer, Request

KEY = "sk_openai_key"


def job(id: str, method: str = "supervised", **changes: Any) -> dict[str, Any]:
    """A job as `GET /v1/fine_tuning/jobs` lists it."""
    hyper = changes.pop("hyperparameters", {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 1.8})
    settings = {"hyperparameters": hyper, **changes.pop("settings", {})}
    return {
        "object": "fine_tuning.job",
        "id": id,
        "model": "gpt-4o-mini-2024-07-18",
        "created_at": 1721764800,
        "finished_at": 1721765800,
        "fine_tuned_model": "ft:gpt-4o-mini-2024-07-18:org::abc",
        "organization_id": "org-1",
        "result_files": [],
        "status": "succeeded",
        "validation_file": None,
        "training_file": "file-train",
        "hyperparameters": hyper,
        "trained_tokens": 5768,
        "integrations": [],
        "seed": 7,
        "user_provided_suffix": None,
        "error": {},
        "method": {"type": method, method: settings},
        **changes,
    }


class StubAccount:
    """Answers as the API. jobs: what it lists, a page of two at a time; files: their contents by id.

    failures: the answers that a path gives before its right one.
    """

    def __init__(self, jobs: list[dict[str, Any]], files: dict[str, bytes]) -> None:
        self.jobs = jobs
        self.files = files
        self.evals: list[dict[str, Any]] = []
        self.failures: dict[str, list[Answer]] = {}
        self.paths: list[str] = []

    def __call__(self, request: Request) -> Answer:
        url = urlsplit(request.path)
        self.paths.append(url.path)
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return _error(401, "Incorrect API key provided: sk_***.")
        if answers := self.failures.get(url.path):
            return answers.pop(0)
        match url.path.split("/")[2:]:
            case ["fine_tuning", "jobs"]:
                return _page(self.jobs, parse_qs(url.query))
            case ["fine_tuning", "jobs", id, "checkpoints"]:
                item = {"object": "fine_tuning.job.checkpoint", "id": "ftckpt-1", "fine_tuning_job_id": id}
                return _page([item], {})
            case ["evals"]:
                return _page(self.evals, {})
            case ["files", id] if id in self.files:
                body = {"object": "file", "id": id, "filename": f"{id}.jsonl", "bytes": len(self.files[id])}
                return Answer(body=body)
            case ["files", id, "content"] if id in self.files:
                return Answer(chunks=[self.files[id].decode()])
            case _:
                return _error(404, f"No such File object: {url.path}")


def rows(count: int, **extra: Any) -> bytes:
    """A dataset of conversations."""
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], **extra}
    return f"{json.dumps(row)}\n".encode() * count


def prompts(count: int) -> bytes:
    """A dataset of reinforcement: prompts with what the grader compares."""
    row = {"messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
    return f"{json.dumps(row)}\n".encode() * count


METRICS = b"step,train_loss\n1,2.5\n2,1.5\n"
ENCODED_METRICS = base64.b64encode(METRICS)


def _page(items: list[dict[str, Any]], query: dict[str, list[str]]) -> Answer:
    ids = [item["id"] for item in items]
    start = ids.index(query["after"][0]) + 1 if "after" in query else 0
    page = items[start : start + 2]
    return Answer(body={"object": "list", "data": page, "has_more": start + 2 < len(items)})


def _error(status: int, message: str) -> Answer:
    return Answer(status=status, body={"error": {"message": message, "type": "invalid_request_error"}})


def write_export(folder: Path) -> Path:
    """Write the smallest export: one job, and its file."""
    folder.mkdir()
    (folder / "jobs.json").write_text(json.dumps(job("ftjob-export")))
    (folder / "file-train.jsonl").write_bytes(rows(8))
    return folder
