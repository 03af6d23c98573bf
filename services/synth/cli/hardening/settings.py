"""The settings of services against the hardening list: secrets, the bus's logins, what may be called, limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from synth.cli.hardening.deployment import EMBEDDED, SeenDeployment, SeenService, host_and_port
from synth.cli.hardening.findings import Finding, is_on
from synth.client.connections.origins import is_loopback_host
from synth.service_secrets import CLUSTER_SECRET, CLUSTER_SECRET_EARLIER, NEEDS

#: A network of more addresses than this is not one of task apps alone.
_WIDE = {4: 11, 6: 32}
_EVERYTHING = {4: 0, 6: 0}
#: What has the user `bus`: it provisions, and it erases what is deleted. Neither has a port.
_OF_BUS = ("bus-init", "bus-sweep")
#: Switches that trust everybody who has a key, with what they open.
_SWITCHES = (
    ("SYNTH_PYTHON_GRADERS", "graders run users' code, without a sandbox", "everyone with a key can run code"),
    ("SYNTH_MODEL_HUB", "model files come from a hub", "unless you trust everyone with a key"),
    ("SYNTH_ALLOW_PLAIN_HTTP_KEYS", "keys of task apps are sent over plain HTTP to any host", "give the apps https"),
    ("SYNTH_ALLOW_LOOPBACK", "jobs may have the programs of the services' machines called", "with task apps elsewhere"),
)


def check_settings(deployment: SeenDeployment) -> list[Finding]:
    """Check the settings of the services, at each place that they were read from."""
    checks: tuple[Callable[[str, list[SeenService]], list[Finding]], ...] = (
        _secrets,
        _logins,
        _tls,
        _networks,
        _switches,
        _plugins,
        _first_key,
    )
    findings: list[Finding] = []
    for place, services in _places(deployment).items():
        file = deployment.compose
        if file is not None and place == str(file.path) and (missing := file.missing):
            fix = "run it in the folder of the filled-in .env"
            findings.append(Finding("settings", "not checked", f"its .env sets no {', '.join(missing)}", place, fix))
            continue
        findings += [finding for check in checks for finding in check(place, services)]
    if not findings:
        why = deployment.unseen.get("processes", "no service was found")
        fix = "run it on the machine of the services, or name their Compose file with --compose"
        findings.append(Finding("settings", "not checked", why, fix=fix))
    return findings


def _places(deployment: SeenDeployment) -> dict[str, list[SeenService]]:
    """Return the services by the place whose settings are looked at together."""
    places: dict[str, list[SeenService]] = {}
    for service in deployment.services:
        places.setdefault(service.place, []).append(service)
    return places


def _secrets(place: str, services: list[SeenService]) -> list[Finding]:
    secrets = (CLUSTER_SECRET, CLUSTER_SECRET_EARLIER)
    holders = [s.name for s in services if any(s.environment.get(name) for name in secrets)]
    if not holders:
        needing = [s for s in services if s.name not in _OF_BUS and NEEDS.get(s.environment.get("SYNTH_NATS_USER", ""))]
        if lacking := [s.name for s in needing if not s.environment.get("SYNTH_SECRETS")]:
            fix = "`synthd secrets` prints them, on a machine that has the cluster's secret"
            return [Finding("secrets", "failed", f"no SYNTH_SECRETS: {', '.join(lacking)}", place, fix)]
        return [Finding("secrets", "ok", "each service has its own alone", place)]
    if place.startswith(EMBEDDED):
        # All of them run as one user of one machine, who can read each other's files and memory.
        observed = "each service has the cluster's secret, as one user of this machine"
        fix = "for more than one machine or user: run the services with SYNTH_SECRETS (docs/operations.md)"
        return [Finding("secrets", "warning", observed, place, fix)]
    fix = "give each SYNTH_SECRETS, which `synthd secrets SERVICE` prints, and remove SYNTH_CLUSTER_SECRET"
    return [Finding("secrets", "failed", f"the cluster's secret is in {', '.join(holders)}", place, fix)]


def _logins(place: str, services: list[SeenService]) -> list[Finding]:
    """Check that services of different users have different passwords; an nkey is never another service's."""
    users: dict[str, set[str]] = {}
    open_: list[str] = []
    for service in services:
        user = service.environment.get("SYNTH_NATS_USER", "")
        if login := service.environment.get("SYNTH_NATS_SEED") or service.environment.get("SYNTH_NATS_PASSWORD"):
            users.setdefault(login, set()).add(user)
        else:
            open_.append(service.name)
    shared = sorted(name for names in users.values() if len(names) > 1 for name in names)
    admins = [s.name for s in services if s.environment.get("SYNTH_NATS_USER") == "bus" and s.name not in _OF_BUS]
    fix = "a password for each user (deploy/env.example), or `synthd bus nkey SERVICE`"
    problems = (
        (f"one login for {', '.join(shared)}", shared),
        (f"no password and no nkey: {', '.join(open_)}", open_),
        (f"the user `bus`, who may do everything: {', '.join(admins)}", admins),
    )
    if findings := [
        Finding(check="bus logins", result="failed", found=observed, where=place, fix=fix)
        for observed, is_so in problems
        if is_so
    ]:
        return findings
    keys = sum(bool(s.environment.get("SYNTH_NATS_SEED")) for s in services)
    observed = f"one for each of {len(services)} services; {keys} by nkey" if keys else "a password for each service"
    return [Finding("bus logins", "ok", observed, place)]


def _tls(place: str, services: list[SeenService]) -> list[Finding]:
    plain = [s for s in services if not s.environment.get("SYNTH_NATS_CA") and not _encrypted(s)]
    addresses = sorted({url for s in plain if (url := s.environment.get("SYNTH_NATS_URL", ""))})
    if not plain:
        return [Finding("bus TLS", "ok", "every service connects by TLS", place)]
    if addresses and all(
        is_loopback_host(host_and_port(part.strip())[0]) for address in addresses for part in address.split(",")
    ):
        return [Finding("bus TLS", "ok", "plain text, on loopback alone", place)]
    observed = f"plain text to {', '.join(addresses) or 'the bus'}, passwords included"
    fix = 'docs/security.md, "The bus over TLS and without passwords"'
    return [Finding("bus TLS", "warning", observed, place, fix)]


def _encrypted(service: SeenService) -> bool:
    return all(part.strip().startswith("tls://") for part in service.environment.get("SYNTH_NATS_URL", "").split(","))


def _networks(place: str, services: list[SeenService]) -> list[Finding]:
    allowed = {
        network.strip()
        for service in services
        for network in service.environment.get("SYNTH_ALLOWED_CIDRS", "").split(",")
        if network.strip()
    }
    check, fix = "SYNTH_ALLOWED_CIDRS", "name the networks of your task apps and judges alone"
    if not allowed:
        return [Finding(check, "ok", "unset: jobs may have no private network called", place)]
    if everything := sorted(network for network in allowed if _is_wider(network, _EVERYTHING)):
        return [Finding(check, "failed", f"{', '.join(everything)}: jobs may have every address called", place, fix)]
    if wide := sorted(network for network in allowed if _is_wider(network, _WIDE)):
        return [Finding(check, "warning", f"{', '.join(wide)}: jobs may have all of it called", place, fix)]
    return [Finding(check, "ok", ", ".join(sorted(allowed)), place)]


def _is_wider(network: str, prefixes: dict[int, int]) -> bool:
    try:
        parsed = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False  # The service does not start with it.
    return parsed.prefixlen <= prefixes[parsed.version]


def _switches(place: str, services: list[SeenService]) -> list[Finding]:
    findings: list[Finding] = []
    for name, found, unless in _SWITCHES:
        if any(is_on(s.environment.get(name, "")) for s in services):
            fix = f"set {name}=0, {unless}" if unless.startswith("unless") else f"set {name}=0: {unless}"
            findings.append(Finding(name, "warning", f"on: {found}", place, fix))
        else:
            findings.append(Finding(name, "ok", "off", place))
    return findings


def _plugins(place: str, services: list[SeenService]) -> list[Finding]:
    plugins = sorted({value for s in services if (value := s.environment.get("SYNTH_PLUGINS"))})
    if not plugins:
        return []
    observed = f"{', '.join(plugins)} run with the rights of the services"
    return [Finding("SYNTH_PLUGINS", "warning", observed, place, "keep modules alone that you would deploy")]


def _first_key(place: str, services: list[SeenService]) -> list[Finding]:
    if not any(s.environment.get("SYNTH_BOOTSTRAP_API_KEY") for s in services):
        return []
    observed = "the first API key has every scope, `operator` too, and no end"
    fix = "make keys with one scope and an end (`synthctl keys create`), and keep this one for yourself"
    return [Finding("first key", "warning", observed, place, fix)]
