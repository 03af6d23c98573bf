"""A backend that has traces, and `synthctl filter` run against it."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from typer.testing import CliRunner

from synth.api.traces import TraceDetail, TracePage, TraceSummary
from synth.cli.app import app
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn
from tests.unit.cli.backend import Answer, Request, backend_that, job_body

JOB = "job_5fb1cd4b26a0c3e9"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
IMAGE = hashlib.sha256(PNG).hexdigest()


def trace(index: int, reward: float | None, said: str = "", **changes: Any) -> TraceDetail:
    """Rollout `index` of a job: one question and one reply."""
    turn = TranscriptTurn(
        messages=[{"role": "system", "content": "Add."}, {"role": "user", "content": f"{index} + 1?"}],
        reply={"role": "assistant", "content": said or str(index + 1)},
        finish_reason="stop",
    )
    steps = [TranscriptStep(obs={"n": index}, reward=reward, done=True)]
    answer = TaskAppAnswer(status=200, steps=steps, metrics={"outcome_score": reward})
    fields: dict[str, Any] = {
        "id": f"{JOB}_e0_{index}",
        "job_id": JOB,
        "model": "tiny",
        "env_name": "math",
        "mode": "eval",
        "iteration": 0,
        "index": index,
        "group": index,
        "seed": index,
        "outcome": "ok",
        "reward": reward,
        "environment": reward or 0.0,
        "completion_tokens": 10 + index,
        "calls": 1,
        "seconds": 0.5,
        "tries": 1,
        "started_at": NOW,
        "created_at": NOW + timedelta(minutes=index),
        "seq": index + 1,
        "transcript": Transcript(turns=[turn], answer=answer),
    }
    return TraceDetail(**fields | changes)


class Traces:
    """A backend with these traces, pages of two, and one image."""

    def __init__(self, traces: list[TraceDetail]) -> None:
        self.traces = {found.id: found for found in traces}

    def answer(self, request: Request) -> Answer:
        path = urlsplit(request.path)
        name = path.path.rsplit("/", 1)[1]
        if path.path == "/api/traces":
            names = {field.name for field in msgspec.structs.fields(TraceSummary)}
            rows = [
                TraceSummary(**{k: v for k, v in msgspec.structs.asdict(t).items() if k in names})
                for t in self.traces.values()
            ]
            query = parse_qs(path.query)
            rows = [r for r in rows if r.job_id in query.get("job", [r.job_id])]
            after = int(query.get("after", ["0"])[0])
            page, more = rows[after : after + 2], after + 2 < len(rows)
            body = TracePage(data=page, has_more=more, next=str(after + 2) if more else None)
            return Answer(body=msgspec.json.encode(body))
        if path.path.startswith("/api/images/"):
            return Answer(body=PNG) if name == IMAGE else Answer(404, {"error": {"message": "gone"}})
        if path.path.startswith("/api/jobs/"):
            return Answer(body=job_body("succeeded"))
        return Answer(body=msgspec.json.encode(self.traces[name]))


def run_command(
    tmp_path: Path, traces: list[TraceDetail], *flags: str, toml: str = ""
) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """`synthctl filter` in this folder on these traces: its exit code, the rows, the report. Raises its error."""
    (tmp_path / "rows.jsonl").unlink(missing_ok=True)
    arguments: list[str] = ["filter"]
    if toml:
        (tmp_path / "filter.toml").write_text(toml)
        arguments.append("filter.toml")
    else:
        arguments += ["--job", JOB, "--out", "rows.jsonl"]
    sets = [part for flag in flags for part in (("--set", f"filter.{flag}") if not flag.startswith("-") else (flag,))]
    with backend_that(Traces(traces).answer) as (backend, _):
        env = {"SYNTH_API_KEY": "synth_live_x", "BACKEND_BASE_URL": backend.url}
        done = CliRunner().invoke(app, [*arguments, *sets, "-o", "json"], env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    rows_file = tmp_path / "rows.jsonl"
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    return done.exit_code, rows, json.loads(done.stdout)


def seeds(rows: list[dict[str, Any]]) -> list[int]:
    return [row["metadata"]["seed"] for row in rows]
