"""A service as a process that has the secrets of its own alone, and not the cluster's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.keyrings import secrets_of
from tests.service.process import environment, running


@pytest.mark.parametrize("service", ["gateway", "verifier", "rollouts", "inference", "judge", "trainer"])
def test_a_service_starts_with_its_own_secrets_alone(service, settings_of, bus_admin, tmp_path):
    own: dict[str, Any] = {"SYNTH_CLUSTER_SECRET": "", "SYNTH_SECRETS": secrets_of(service).text()}
    if service == "gateway":
        own["SYNTH_READ_MODEL_PATH"] = str(tmp_path / "gateway.db")
    with running(service, settings_of(service), tmp_path / "log", **own):
        pass


def test_a_service_does_not_start_with_the_secrets_of_another(settings_of, bus_admin):
    others = environment(settings_of("verifier"), SYNTH_CLUSTER_SECRET="", SYNTH_SECRETS=secrets_of("gateway").text())
    command = [sys.executable, "-m", "synth.synthd", "verifier"]
    done = subprocess.run(command, env=others, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert (
        "SYNTH_SECRETS: it has secrets that verifier must not hold: clients, credentials, gateway-calls, judge-keys"
        in said
    )
    assert "Traceback" not in said
