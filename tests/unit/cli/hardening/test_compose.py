"""`synthctl doctor --security` on Compose files: ours as it is, and with single protections taken away."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from synth.service_secrets import NEEDS, secrets_variable
from tests.unit.cli.checking import Run

ROOT = Path(__file__).parents[4]


Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def doctor(run: Run) -> Doctor:
    """Returns the exit code, and the findings about the deployment's files by their checks.

    It runs in a folder with our Compose file, its configuration of the bus, and a `.env` that is filled in.
    """
    Path("deploy").mkdir()
    for name in ("docker-compose.yml", "deploy/nats.conf", "deploy/Dockerfile"):
        shutil.copy(ROOT / name, name)
    lines = [
        f"{line}value-of-{line.strip('=')}" if line.endswith("=") and "CIDRS" not in line else line
        for line in (ROOT / "deploy/env.example").read_text().splitlines()
    ]
    secrets = [f"{secrets_variable(service)}=of-{service}" for service, needs in NEEDS.items() if needs]
    write(".env", "\n".join([*lines, *secrets, ""]))

    def check(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        code, out, err = run("doctor", "--security", *arguments, "-o", "json")
        assert out, err
        findings = json.loads(out)
        mine = [f for f in findings if "docker-compose.yml" in f["where"] or f["where"].endswith(".conf")]
        return code, {f["check"]: f for f in [*mine, *(f for f in findings if f["check"] == "key files")]}

    return check


def write(file: str, text: str) -> None:
    Path(file).write_text(text)
    Path(file).chmod(0o600)


def test_our_compose_file_needs_digests_and_tls_alone(doctor: Doctor):
    code, findings = doctor()
    assert code == 0, findings
    assert {check for check, f in findings.items() if f["result"] != "ok"} == {"images", "bus TLS", "first key"}
    assert findings["images"]["result"] == "warning"
    for check in ("secrets", "bus logins", "containers", "ports", "volumes", "bus monitor", "SYNTH_ALLOWED_CIDRS"):
        assert findings[check]["result"] == "ok", findings[check]


def whole_store() -> None:
    write("docker-compose.yml", Path("docker-compose.yml").read_text().replace("/data/blobs/orgs", "/data/blobs"))


def replaced(before: str, after: str, *, name: str = "docker-compose.yml") -> Callable[[], None]:
    def change() -> None:
        text = Path(name).read_text()
        assert before in text
        write(name, text.replace(before, after, 1))

    return change


@pytest.mark.parametrize(
    ("change", "check", "found"),
    [
        (replaced("  read_only: true\n", ""), "containers", "gateway"),
        (replaced("  cap_drop: [ALL]\n", ""), "containers", "trainer"),
        (replaced('  pids_limit: "${SYNTH_SERVICE_PIDS:-1024}"\n', ""), "containers", "validator"),
        (replaced('["127.0.0.1:${SYNTH_PUBLISHED_PORT:-8000}:', '["80:'), "ports", "gateway publishes 80:8000"),
        (replaced("    image: nats", '    ports: ["8222:8222"]\n    image: nats'), "ports", "nats publishes 8222:8222"),
        (whole_store, "volumes", "orgs is whole in bus-init, bus-sweep, gateway"),
        (replaced('"127.0.0.1:8222"', '"0.0.0.0:8222"', name="deploy/nats.conf"), "bus monitor", "0.0.0.0:8222"),
        (replaced("SYNTH_SECRETS: ${SYNTH_SECRETS_JUDGE}", "SYNTH_CLUSTER_SECRET: all"), "secrets", "judge"),
        (
            replaced("D: ${SYNTH_NATS_PASSWORD_JUDGE}", "D: ${SYNTH_NATS_PASSWORD_FILES}"),
            "bus logins",
            "one login for files, judge",
        ),
        (replaced("_CIDRS=", "_CIDRS=0.0.0.0/0", name=".env"), "SYNTH_ALLOWED_CIDRS", "every"),
        (lambda: Path(".env").chmod(0o644), "key files", "1 of"),
    ],
)  # fmt: skip
def test_a_protection_that_is_taken_away_fails_with_what_and_where(
    doctor: Doctor, change: Callable[[], None], check: str, found: str
):
    change()
    code, findings = doctor()
    assert code == 1
    assert findings[check]["result"] == "failed", findings[check]
    assert found in findings[check]["found"]
    assert findings[check]["fix"]


@pytest.mark.parametrize("switch", ["SYNTH_PYTHON_GRADERS", "SYNTH_MODEL_HUB", "SYNTH_ALLOW_PLAIN_HTTP_KEYS"])
def test_a_switch_that_trusts_everybody_is_a_warning(doctor: Doctor, switch: str):
    replaced("  SYNTH_MODELS_DIR: /models", f'  {switch}: "true"\n  SYNTH_MODELS_DIR: /models')()
    code, findings = doctor()
    assert (code, findings[switch]["result"]) == (0, "warning")


def test_a_wide_network_is_a_warning_and_one_of_task_apps_is_well(doctor: Doctor):
    for networks, result in (("10.0.0.0/8", "warning"), ("172.16.0.0/12", "ok"), ("10.1.2.0/24,fd00::/64", "ok")):
        text = Path(".env").read_text().partition("\nSYNTH_ALLOWED_CIDRS=")
        write(".env", f"{text[0]}\nSYNTH_ALLOWED_CIDRS={networks}\n" + text[2].partition("\n")[2])
        assert doctor()[1]["SYNTH_ALLOWED_CIDRS"]["result"] == result


def test_images_with_digests_are_well(doctor: Doctor):
    for name, before in (("docker-compose.yml", r"(image: nats)\S*"), ("deploy/Dockerfile", r"(?m)(^FROM \w+)\S*")):
        write(name, re.sub(before, rf"\1:1@sha256:{'0' * 64}", Path(name).read_text()))
    assert doctor()[1]["images"]["result"] == "ok"
    Path("deploy/Dockerfile").unlink()
    assert doctor()[1]["images"]["result"] == "not checked"


def test_what_an_env_file_leaves_out_is_not_checked(doctor: Doctor):
    write(".env", "")
    code, findings = doctor()
    assert code == 0
    assert findings["settings"]["result"] == "not checked"
    assert "SYNTH_NATS_PASSWORD_BUS" in findings["settings"]["found"]
    assert "secrets" not in findings


@pytest.mark.parametrize("text", ["", "[]", "services: 3", "services: {a: 1}", "\t", "\x00"])
def test_a_file_that_is_no_compose_file_is_one_error(run: Run, text: str):
    Path("other.yml").write_text(text)
    code, _, err = run("doctor", "--security", "--compose", "other.yml")
    assert code == 1
    assert "not a Compose file" in err
    assert "other.yml" in err


def test_a_compose_file_without_security_is_refused(run: Run):
    code, _, err = run("doctor", "--compose", "docker-compose.yml")
    assert code == 2
    assert "--security" in err
