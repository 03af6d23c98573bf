"""`synthctl logs`: log files as lines for people."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from synth.local.cluster.log_lines import find_logs, follow_logs, read_logs
from tests.unit.cli.test_command_line import synthctl

JOB = "job_0123456789abcdef"


def entry(second: int, event: str, **fields: object) -> str:
    stamp = f"2026-01-01T00:00:{second:02}.000000Z"
    return json.dumps({"event": event, "level": "info", "timestamp": stamp, **fields}) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    logs = tmp_path / ".synth" / "logs"
    logs.mkdir(parents=True)
    (logs / "trainer.log").write_text(
        entry(1, "training", service="trainer", replica="trainer-0", job=JOB)
        + entry(4, "failed", service="trainer", exception="Traceback (most recent call last):\n  boom")
    )
    (logs / "gateway.log").write_text(entry(2, "served", service="gateway", path="/api") + "Killed\n")
    (logs / "gateway-1.log").write_text(entry(3, "stream ends", service="gateway", replica="gateway-1", job_id=JOB))
    (logs / "nats.log").write_text("[7] 2026/01/01 00:00:00.500000 [INF] Starting nats-server\n")
    return tmp_path


def test_the_files_of_all_services_are_one_log_in_order_of_time(data: Path):
    run = synthctl("logs", cwd=data, TZ="UTC")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line.split()[3] for line in lines if line.startswith("01-01")] == [
        "nats", "trainer", "gateway", "gateway", "gateway-1", "trainer"
    ]  # fmt: skip
    assert lines[1] == f"01-01 00:00:01.000 info    trainer    training job={JOB}"
    assert "01-01 00:00:02.000 -       gateway    Killed" in lines
    assert lines[-1] == "      boom"


def test_a_job_has_the_lines_of_every_service(data: Path):
    run = synthctl("logs", JOB, cwd=data, SYNTH_API_KEY="k")
    assert [line.split()[3] for line in run.stdout.splitlines()] == ["trainer", "gateway-1"]


def test_a_service_has_the_lines_of_its_replicas(data: Path):
    run = synthctl("logs", "gateway", "--tail", "2", "-o", "json", cwd=data)
    assert [json.loads(line)["message"] for line in run.stdout.splitlines()] == ["Killed", "stream ends"]


def test_a_service_that_is_not_there_is_told_which_are(data: Path):
    run = synthctl("logs", "trainr", cwd=data)
    assert run.returncode == 2
    assert "gateway-1, gateway, nats, trainer" in run.stderr


@pytest.mark.parametrize(("since", "lines"), [("2026-01-01T00:00:03+00:00", 2), ("1s", 0)])
def test_only_what_was_written_since_is_shown(data: Path, since: str, lines: int):
    run = synthctl("logs", "--since", since, "-o", "json", cwd=data)
    assert len(run.stdout.splitlines()) == lines, run.stderr


def test_a_time_that_is_none_is_refused(data: Path):
    run = synthctl("logs", "--since", "yesterday", cwd=data)
    assert run.returncode == 2
    assert "--since" in run.stderr


def test_what_is_written_later_follows_and_a_log_that_begins_anew_is_read_from_its_start(data: Path):
    files = find_logs(data / ".synth", "trainer")
    sizes = {file: file.stat().st_size for file in files}
    assert len(list(read_logs(files))) == 2
    followed = follow_logs(files, sizes)
    assert next(followed) is None
    with files[0].open("a") as log:
        log.write(entry(9, "later") + '{"event": "half')
    assert [line.text for line in iter(lambda: next(followed), None) if line] == ["later"]
    files[0].write_text(entry(10, "anew"))
    assert [line.text for line in iter(lambda: next(followed), None) if line] == ["anew"]


def test_a_line_of_a_followed_log_ends_where_it_does_in_one_that_is_read(tmp_path: Path):
    log = tmp_path / "trainer.log"
    written = "a\u2028b\x0cc\rd\r\ne\n"
    log.write_bytes(written.encode())
    texts = [line.text for line in read_logs([log])]
    assert texts == ["a\u2028b\x0cc", "d", "e"]
    followed = follow_logs([log], {log: 0})
    assert [line and line.text for line in islice(followed, 3)] == texts
