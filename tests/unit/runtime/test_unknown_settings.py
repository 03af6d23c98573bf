"""A variable that looks like a setting and is none is named at the start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from synth.runtime.environment.unknown_settings import unknown_settings
from tests.unit.cli.test_command_line import CLEAN, synthctl


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SYNTH_DEVISE", "SYNTH_DEVICE"),
        ("SYNTH_MAX_ANSWERS_BYTES", "SYNTH_MAX_ANSWER_BYTES"),
        ("SYNTH_GRACES_S", "SYNTH_GRACE_S"),
        ("SYNTH_APIKEY", "SYNTH_API_KEY"),
        ("SYNTH_ALLOW_CIDRS", "SYNTH_ALLOWED_CIDRS"),
        ("synth_prot", "SYNTH_PORT"),
    ],
)
def test_a_misspelt_setting_is_named_with_the_nearest_one(name: str, near: str):
    assert unknown_settings({name: "1", "PATH": "/bin"}) == [
        f"{name} is no setting and has no effect; did you mean {near}?"
    ]


def test_a_variable_like_no_setting_is_named_too():
    (sentence,) = unknown_settings(["SYNTH_XYZZY"])
    assert sentence == "SYNTH_XYZZY is no setting and has no effect; docs/settings.md lists the settings"


def test_variables_that_are_read_are_not_named():
    read = ["SYNTH_PORT", "synth_port", "SYNTH_API_KEY", "SYNTH_NATS_PASSWORD_GATEWAY", "SYNTH_SECRETS_JUDGE"]
    # Kubernetes sets these for a service `synth-gateway`.
    links = ["SYNTH_GATEWAY_SERVICE_HOST", "SYNTH_GATEWAY_SERVICE_PORT_HTTP", "SYNTH_GATEWAY_PORT"]
    assert unknown_settings([*read, *links, "SYNTH_GATEWAY_PORT_8000_TCP_ADDR", "SYNTHETIC", "HOME"]) == []


def test_the_client_warns_and_goes_on(tmp_path: Path):
    run = synthctl("config", "init", "sft", cwd=tmp_path, SYNTH_APIKEY="k")
    assert run.returncode == 0, run.stderr
    assert run.stderr.startswith("warning: SYNTH_APIKEY is no setting and has no effect; did you mean SYNTH_API_KEY?")


def test_a_service_warns_at_its_start(tmp_path: Path):
    command = [sys.executable, "-m", "synth.synthd", "verifier"]
    env = {**CLEAN, "SYNTH_RETRY_FORS": "5", "SYNTH_WORK_DIR": str(tmp_path)}
    # It ends there: it was given no secret.
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    lines = [json.loads(line) for line in (run.stdout + run.stderr).split("\n") if line.startswith("{")]
    reasons = [line.get("reason", "") for line in lines if line["level"] == "warning"]
    assert reasons == ["SYNTH_RETRY_FORS is no setting and has no effect; did you mean SYNTH_RETRY_FOR_S?"]
