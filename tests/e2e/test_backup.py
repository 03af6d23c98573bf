"""`synthctl backup` and `restore`: a job in the middle goes on in the cluster that was restored."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from synth.demo.math import dataset
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, sft

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
STEPS = 160


def test_a_job_in_the_middle_goes_on_where_it_was_saved(tmp_path: Path):
    (tmp_path / "cluster").mkdir()
    old, new = Shell(tmp_path / "cluster"), Shell(tmp_path / "cluster")
    rows = "".join(f"{json.dumps(row)}\n" for row in dataset.rows(256, seed=0))
    (old.folder / "math.jsonl").write_text(rows)
    backup = str(tmp_path / "backup")
    try:
        old.ok("up", "--detach", "--port", str(old.port), timeout=300)
        old.make_model()
        platform = Platform(old)
        done = platform.submit(sft(steps=5), "--dataset", "math.jsonl")
        platform.succeeded(done)
        long = sft(steps=STEPS).replace("[hyperparameters]", "[hyperparameters]\ncheckpoint_every = 20")
        # Steps that are long beside a backup, however busy the machine is.
        long = long.replace("global_batch = 16", "global_batch = 64")
        job = platform.submit(long, "--dataset", "math.jsonl")
        eventually(lambda: platform.job(job)["step"] >= 40, timeout=300)
        # The trainer has ended the log of the first job before it took the second.
        finished = platform.job(done)
        old.ok("backup", backup, timeout=300)
        trainer = old.processes()["trainer"]["pid"]
        os.kill(trainer, signal.SIGSTOP)
        assert platform.job(job)["step"] < STEPS
        saved = [event["step"] for event in platform.events(job, "checkpoint.saved")][-1]
        # The second one copies what is new.
        old.ok("backup", backup, timeout=300)
        os.kill(trainer, signal.SIGCONT)
        old.run("down")
        assert old.alive() == []
        # Base models are no part of a backup, and events name them by their folders.
        (old.folder / ".synth" / "models").rename(tmp_path / "models")
        shutil.rmtree(old.folder)
        new.folder.mkdir()
        shutil.copytree(tmp_path / "models", new.folder / ".synth" / "models")
        new.ok("restore", backup, timeout=300)
        refused = new.run("restore", backup, timeout=300)
        assert (refused.returncode, "not empty" in refused.stderr) == (2, True)
        new.ok("up", "--detach", "--port", str(new.port), timeout=300)
        restored = Platform(new)
        assert restored.job(done) == finished
        assert restored.greedy(finished["model"], "2 + 3 =")
        restored.succeeded(job)
        steps = [event["step"] for event in restored.events(job, "train.step")]
        # Each step once, those of before the backup too, and the job did not begin anew.
        assert steps == list(range(1, STEPS + 1))
        attempts = [event["attempt"] for event in restored.events(job, "job.started")]
        assert attempts == [1, 2]
        assert restored.events(job, "train.resumed")[0]["step"] >= saved
    finally:
        for shell in (old, new):
            if shell.folder.exists():
                shell.run("down")
