"""`synthctl demo`, in a folder that has nothing of the repository."""

from __future__ import annotations

import json

import pytest

from tests.e2e.cli.conftest import Shell

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def test_the_demo_needs_no_clone_and_its_model_learns(shell: Shell):
    done = shell.run("demo", "--port", str(shell.port), timeout=840)
    assert done.returncode == 0, done.stderr
    assert "learned: " in done.stderr
    out = shell.folder / ".synth" / "demo"
    accuracy = json.loads((out / "report.json").read_text())["accuracy"]
    assert accuracy["base"] < 0.1
    assert accuracy["rl"] > accuracy["sft"] + 0.2
    assert (out / "reward.png").read_bytes().startswith(b"\x89PNG")
    # The files that it has run, for a user to go on from.
    shell.ok("config", "check", str(out / "sft.toml"), "--dataset", str(out / "math.jsonl"))
