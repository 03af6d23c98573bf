"""`synthctl doctor --security`: a deployment against the hardening list of docs/security.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from synth.cli.hardening.account import check_account
from synth.cli.hardening.deployment import SeenDeployment, read_deployment
from synth.cli.hardening.files import check_files
from synth.cli.hardening.findings import Finding
from synth.cli.hardening.network import check_network
from synth.cli.hardening.settings import check_settings
from synth.client.connections.config import Config

_RESULTS = ("failed", "warning", "not checked", "ok")
#: Points that no command can check; the list of docs/security.md has them too.
_NEVER_SEEN = (
    Finding(
        check="backups",
        result="not checked",
        found="whether they are encrypted is not seen from here",
        fix="encrypt them: they hold every organisation's data",
    ),
    Finding(
        check="monitoring",
        result="not checked",
        found="whether anybody watches is not seen from here",
        fix="watch /healthz, the dead letters, and 401 and 429 in the metrics",
    ),
)


def check_security(config: Config, *, data: Path, compose: Path | None, env_files: Iterable[Path]) -> list[Finding]:
    """Check everything that can be seen from this machine; the findings that need work come first.

    compose: the Compose file; None without one. Raises `CliError` for a file that cannot be read.
    """
    deployment = read_deployment(data, compose)
    findings = [
        *check_settings(deployment),
        *check_network(deployment, config),
        *check_account(deployment, config),
        *check_files(deployment, env_files),
        *_containers(deployment),
        *_NEVER_SEEN,
    ]
    if any(finding.check == "operator keys" for finding in findings):
        # The gateway has named the first key among them.
        findings = [finding for finding in findings if finding.check != "first key"]
    return sorted(findings, key=lambda finding: _RESULTS.index(finding.result))


def _containers(deployment: SeenDeployment) -> list[Finding]:
    if deployment.compose is not None:
        return deployment.compose.confinement()
    why = deployment.unseen.get("compose", "there is no docker-compose.yml here")
    return [Finding("containers", "not checked", why, fix="name the Compose file with --compose")]
