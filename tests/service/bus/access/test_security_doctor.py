"""`synthctl doctor --security` on services that run: one that is hardened, and one that is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from synth.bus.access.nkeys import NkeyKind, UserKey, new_seed
from synth.bus.server.deployed import ServerTls
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.cli.hardening.deployment import SeenDeployment, read_deployment
from synth.cli.hardening.files import check_files
from synth.cli.hardening.findings import Finding
from synth.cli.hardening.network import check_network
from synth.cli.hardening.settings import check_settings
from synth.client.connections.config import Config, ConfigValue
from tests.keyrings import secrets_of
from tests.service.bus.access.certificates import Authority
from tests.service.bus.access.secure_server import SecureServer
from tests.service.process import running

CONFIG = Config(ConfigValue("https://synth.example.com/api", "flag"), None, None, None)


def findings_about(pid: int, folder: Path) -> dict[str, Finding]:
    """What is found of one process; other tests run services on this machine at the same time."""
    seen = read_deployment(folder, None)
    mine: SeenDeployment = dataclasses.replace(seen, services=[s for s in seen.services if f"(pid {pid})" in s.name])
    assert len(mine.services) == 1
    found = [*check_settings(mine), *check_network(mine, CONFIG), *check_files(mine, [])]
    # One bad place is enough.
    return {f.check: f for f in sorted(found, key=lambda f: ("ok", "not checked", "warning", "failed").index(f.result))}


async def test_a_service_with_tls_an_nkey_and_its_own_secrets_has_nothing_to_repair(
    server: SecureServer, server_tls: ServerTls, authority: Authority, tmp_path: Path
):
    seed = new_seed(NkeyKind.USER)
    server.configure(tls=server_tls, nkeys={"judge": (UserKey(seed).public,)})
    server.start()
    bus = await server.connect("bus", nats_ca=authority.cert)
    await provision(bus.js, topology())
    given: dict[str, Any] = {
        "SYNTH_NATS_CA": str(authority.cert),
        "SYNTH_CLUSTER_SECRET": "",
        "SYNTH_SECRETS": secrets_of("judge").text(),
    }
    settings = server.settings("judge", nats_seed=SecretStr(seed))
    with running("judge", settings, tmp_path / "log", **given) as process:
        found = findings_about(process.pid, tmp_path)
    assert {check: f.result for check, f in found.items() if f.result not in ("ok", "not checked")} == {}
    for check in ("secrets", "bus logins", "bus TLS", "bus greeting", "bus monitor", "service ports", "gateway"):
        assert found[check].result == "ok", found[check]
    assert found["bus greeting"].found == "TLS is required, and a login"


async def test_each_weakness_of_a_service_is_named_with_what_repairs_it(settings_of, bus_admin, tmp_path: Path):
    given: dict[str, Any] = {
        "SYNTH_HOST": "0.0.0.0",
        "SYNTH_ALLOWED_CIDRS": "0.0.0.0/0",
        "SYNTH_ALLOW_LOOPBACK": "1",
        "SYNTH_ALLOW_PLAIN_HTTP_KEYS": "true",
        "SYNTH_MODEL_HUB": "yes",
        "SYNTH_PYTHON_GRADERS": "on",
    }
    with running("verifier", settings_of("verifier"), tmp_path / "log", **given) as process:
        found = findings_about(process.pid, tmp_path)
    weak = {check: f for check, f in found.items() if f.result in ("failed", "warning")}
    assert {check for check, f in weak.items() if f.result == "failed"} == {
        "secrets",
        "SYNTH_ALLOWED_CIDRS",
        "service ports",
    }
    switches = {name for name in given if name not in ("SYNTH_HOST", "SYNTH_ALLOWED_CIDRS")}
    assert {check for check, f in weak.items() if f.result == "warning"} == switches
    assert all(f.fix for f in weak.values())
    assert found["bus TLS"].found == "plain text, on loopback alone"
