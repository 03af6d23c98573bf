"""Jobs from the command line, through the whole cluster."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from synth.runtime.environment.env_file import read_env_file
from tests.e2e.cli.conftest import Shell, eventually

pytestmark = pytest.mark.timeout(1200)

ROW = {"messages": [{"role": "user", "content": "What is 1 + 2?"}, {"role": "assistant", "content": "answer 3"}]}


def sft(steps: int, model: str = "tiny-qwen3") -> str:
    return f"""
[algorithm]
type = "offline"
method = "sft"
variety = "fft"

[job]
model = "{model}"

[hyperparameters]
total_steps = {steps}
per_device_batch = 4
sequence_length = 64
learning_rate = 1e-3
"""


@pytest.fixture(scope="module")
def work(cluster: Shell) -> Shell:
    """The cluster with a dataset and job files in its folder."""
    (cluster.folder / "d.jsonl").write_text(f"{json.dumps(ROW)}\n" * 64)
    (cluster.folder / "short.toml").write_text(sft(40))
    (cluster.folder / "endless.toml").write_text(sft(100_000))
    (cluster.folder / "unknown.toml").write_text(sft(10, model="tiny-qwen4"))
    return cluster


@pytest.mark.long
def test_a_watcher_killed_and_resumed_twenty_times_sees_each_event_once(work: Shell):
    job = work.ok("submit", "short.toml", "--dataset", "d.jsonl", "--detach").strip()
    seen: list[int] = []
    for _ in range(20):
        watcher = work.start("jobs", "watch", job, "-o", "json", "--after", str(seen[-1] if seen else 0))
        assert watcher.stdout is not None
        seen += [json.loads(line)["seq"] for line, _ in zip(watcher.stdout, range(2), strict=False)]
        watcher.send_signal(signal.SIGKILL)
        watcher.communicate()
    last = work.run("jobs", "watch", job, "-o", "json", "--after", str(seen[-1]))
    assert last.returncode == 0
    seen += [json.loads(line)["seq"] for line in last.stdout.splitlines()]
    log = [json.loads(line) for line in work.ok("jobs", "events", job, "-o", "json").splitlines()]
    # A watch ends with its job. The trainer stores the end of the job's log after that.
    end = next(i for i, event in enumerate(log) if event["type"] == "job.succeeded")
    assert seen == [event["seq"] for event in log[: end + 1]]
    assert len(seen) > 40


def test_a_followed_job_ends_with_its_outcome_and_a_model_that_talks_and_can_be_downloaded(work: Shell):
    done = work.run("submit", "short.toml", "--dataset", "d.jsonl", "--seed", "1", "--follow")
    assert done.returncode == 0, done.stderr
    assert "step 40/40" in done.stdout
    model = work.json("jobs", "ls")[0]["model"]
    assert model in work.ok("models", "ls")
    reply = json.loads(work.ok("chat", model, "-m", "What is 1 + 2?", "--temperature", "0", "-o", "json"))
    streamed = work.ok("chat", model, "-m", "What is 1 + 2?", "--temperature", "0")
    assert streamed == reply["choices"][0]["message"]["content"] + "\n"
    folder = work.ok("models", "download", model).strip()
    assert (work.folder / folder / "config.json").is_file()


def test_the_log_of_a_job_is_shown_on_another_machine(work: Shell, tmp_path: Path):
    job = work.json("jobs", "ls")[0]["id"]
    keys = read_env_file(work.folder / ".env")
    elsewhere = replace(work, folder=tmp_path)
    # The task ends after its job.
    eventually(lambda: "task done" in elsewhere.ok("logs", job, **keys))
    lines = [json.loads(line) for line in elsewhere.ok("logs", job, "-o", "json", **keys).splitlines()]
    assert [line["service"] for line in lines] == ["trainer"] * len(lines)
    assert lines[0]["message"] == "task taken"
    assert elsewhere.ok("logs", job, "--tail", "1", **keys).rstrip().endswith(f"job={job}")
    followed = elsewhere.ok("logs", job, "--follow", **keys)
    assert followed.count("task done") == 1


@pytest.mark.long
def test_a_watch_says_that_the_cluster_is_away_and_shows_each_step_once_across_two_deaths(work: Shell):
    """Of a job that cannot end before its watcher has seen enough: it is cancelled then."""
    (work.folder / "long.toml").write_text(sft(100_000) + "checkpoint_every = 100\n")
    job = work.ok("submit", "long.toml", "--dataset", "d.jsonl", "--detach").strip()
    said, seen = work.folder / "watch.err", work.folder / "watch.out"
    with said.open("w") as err, seen.open("w") as out:
        watcher = work.start("jobs", "watch", job, stdout=out, stderr=err)

    def steps(beside: str = "") -> list[int]:
        # A line that is being written has no end yet.
        lines = seen.read_text().rpartition("\n")[0].splitlines()
        return [int(line.split()[2].split("/")[0]) for line in lines if "  step " in line and beside in line]

    eventually(lambda: bool(steps("not saved yet")), timeout=240)
    os.kill(work.processes()["gateway"]["pid"], signal.SIGKILL)
    eventually(lambda: "the cluster is away" in said.read_text(), timeout=20)
    eventually(lambda: "the cluster is back after" in said.read_text(), timeout=240)
    # Some steps later, of which the last are lost with the trainer and taken again.
    before = steps()[-1]
    eventually(lambda: steps()[-1] > before + 100, timeout=240)
    os.kill(work.processes()["trainer"]["pid"], signal.SIGKILL)
    lost = steps()[-1]
    eventually(lambda: steps()[-1] > lost + 100, timeout=240)
    work.ok("jobs", "cancel", job)
    assert watcher.wait(timeout=60) == 5, said.read_text()
    assert steps() == list(range(1, steps()[-1] + 1))
    assert "is saved" in seen.read_text()
    assert work.json("jobs", "get", job)["attempt"] == 2


def test_metrics_are_listed_by_step(work: Shell):
    job = work.json("jobs", "ls", "--state", "succeeded")[0]["id"]
    points = work.json("jobs", "metrics", job, "--name", "loss")["points"]
    assert [p["step"] for p in points] == list(range(1, 41))


def test_ctrl_c_detaches_says_how_to_go_on_and_the_job_can_be_cancelled(work: Shell):
    watcher = work.start("submit", "endless.toml", "--dataset", "d.jsonl", "--follow")
    assert watcher.stdout is not None
    for line in watcher.stdout:
        if "step " in line:
            break
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=30)
    job = work.json("jobs", "ls", "--state", "started")[0]["id"]
    assert watcher.returncode == 130
    assert f"synthctl jobs cancel {job}" in err
    assert f"synthctl jobs watch {job}" in err
    assert work.run("jobs", "watch", job, "--timeout", "0.5").returncode == 124
    assert work.run("jobs", "cancel", job).returncode == 0
    assert work.run("jobs", "watch", job).returncode == 5


def test_a_job_that_outlasts_the_poll_timeout_is_exit_124_and_goes_on(work: Shell):
    arguments = ("submit", "endless.toml", "--dataset", "d.jsonl", "--seed", "3")
    late = work.run(*arguments, "--follow", "--poll-timeout", "0.5", "--idempotency", "late")
    assert late.returncode == 124
    job = work.ok(*arguments, "--no-poll", "--idempotency", "late").strip()
    assert f"synthctl jobs watch {job}" in late.stderr
    assert work.json("jobs", "get", job)["state"] not in ("failed", "cancelled")
    assert work.run("jobs", "cancel", job).returncode == 0
    assert work.run("jobs", "watch", job).returncode == 5


def test_a_rejected_job_is_exit_3_with_what_is_wrong(work: Shell):
    done = work.run("submit", "unknown.toml", "--dataset", "d.jsonl", "--no-preflight", "--follow")
    assert done.returncode == 3
    assert "tiny-qwen4" in done.stderr
    assert "tiny-qwen3" in done.stderr


def test_a_broken_line_is_named_and_no_job_is_made(work: Shell):
    lines = [json.dumps(ROW)] * 60
    lines[36] = '{"messages": [}'
    (work.folder / "bad.jsonl").write_text("\n".join(lines))
    before = len(work.json("jobs", "ls"))
    done = work.run("submit", "short.toml", "--dataset", "bad.jsonl", "--detach")
    assert done.returncode == 2
    assert "bad.jsonl:37" in done.stderr
    assert len(work.json("jobs", "ls")) == before


def test_the_same_idempotency_key_is_one_job_and_with_another_job_an_error(work: Shell):
    arguments = ("submit", "short.toml", "--dataset", "d.jsonl", "--detach", "--idempotency", "k")
    first, second = work.ok(*arguments), work.ok(*arguments)
    assert first == second
    assert work.run(*arguments, "--seed", "7").returncode == 2


def test_ids_that_are_not_there_are_exit_6(work: Shell):
    for arguments in (("jobs", "get", "job_nope"), ("jobs", "watch", "job_nope"), ("files", "get", "file_0")):
        done = work.run(*arguments)
        assert done.returncode == 6, done.stderr


def test_a_wrong_key_is_exit_4(work: Shell):
    done = work.run("jobs", "ls", SYNTH_API_KEY="wrong")
    assert done.returncode == 4
    assert "SYNTH_API_KEY" in done.stderr


def test_the_doctor_is_content(work: Shell):
    findings = work.json("doctor")
    assert [f["check"] for f in findings if f["result"] == "fail"] == []
    assert {f["check"] for f in findings} >= {"nats-server", "torch", "cluster", "backend"}
