"""Checks through the network: the greeting of the bus, its monitor, and ports of services outside of loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from synth.cli.hardening.deployment import SeenDeployment, host_and_port
from synth.cli.hardening.findings import Finding
from synth.client.connections.config import Config
from synth.client.connections.origins import is_loopback_host

#: Seconds for a connection, and for the first line of a server.
_WAIT_S = 3.0
_MONITOR_PORT = 8222
_LONGEST_GREETING = 65_536


def check_network(deployment: SeenDeployment, config: Config) -> list[Finding]:
    """Check the bus, its monitor and the services' ports from here, and how the gateway is reached."""
    addresses = _own_addresses()
    return [
        *(_bus(url) for url in _bus_urls(deployment)),
        *_monitors(deployment, addresses),
        _ports(deployment, addresses),
        _gateway(config),
    ]


def _bus_urls(deployment: SeenDeployment) -> list[str]:
    """Return the servers of the bus that this machine may reach: of its processes, and of the environment."""
    local = [s for s in deployment.services if s.port is not None]
    lists = [os.environ.get("SYNTH_NATS_URL", ""), *(s.environment.get("SYNTH_NATS_URL", "") for s in local)]
    return sorted({url.strip() for urls in lists for url in urls.split(",") if url.strip()})


def _bus(url: str) -> Finding:
    """Check the greeting of a server of the bus, which it sends before any login."""
    host, port = host_and_port(url)
    try:
        greeting = _greeting(host, port)
    except (OSError, ValueError) as error:
        why = f"no greeting of nats-server ({error})"
        return Finding("bus greeting", "not checked", why, url, "run it on a machine that reaches the bus")
    if not greeting.get("auth_required"):
        fix = "start it with the output of `synthd bus config`"
        return Finding("bus greeting", "failed", "it requires no login", url, fix)
    if greeting.get("tls_required"):
        return Finding("bus greeting", "ok", "TLS is required, and a login", url)
    if is_loopback_host(host):
        return Finding("bus greeting", "ok", "a login is required; plain text, on loopback", url)
    fix = 'docs/security.md, "The bus over TLS and without passwords"'
    return Finding("bus greeting", "warning", "a login is required, in plain text", url, fix)


def _greeting(host: str, port: int) -> dict[str, Any]:
    with socket.create_connection((host, port), _WAIT_S) as connection, connection.makefile("rb") as lines:
        line = lines.readline(_LONGEST_GREETING)
    if not line.startswith(b"INFO "):
        raise ValueError("another program answers")
    return json.loads(line.removeprefix(b"INFO "))


def _monitors(deployment: SeenDeployment, addresses: list[str]) -> Iterator[Finding]:
    if deployment.compose is not None:
        yield from deployment.compose.monitor()
    places = [(address, deployment.monitor_port) for address in addresses if deployment.monitor_port]
    for url in _bus_urls(deployment):
        host, _ = host_and_port(url)
        if is_loopback_host(host):
            places += [(address, _MONITOR_PORT) for address in addresses if not deployment.monitor_port]
        else:
            places.append((host, _MONITOR_PORT))
    if not places:
        if deployment.compose is None:
            fix = "set SYNTH_NATS_URL to the bus's address"
            yield Finding("bus monitor", "not checked", "no bus is known here", fix=fix)
        return
    for host, port in dict.fromkeys(places):
        where = f"{host}:{port}"
        if _is_open(host, port):
            fix = "`synthd bus config` prints a monitor that listens on loopback alone"
            yield Finding("bus monitor", "failed", "open to the network, and has no login", where, fix)
        else:
            yield Finding("bus monitor", "ok", "not reachable", where)


def _ports(deployment: SeenDeployment, addresses: list[str]) -> Finding:
    """Check that the HTTP sides of services on this machine are reachable over loopback alone."""
    local = [s for s in deployment.services if s.port is not None]
    check = "service ports"
    if not local:
        why = deployment.unseen.get("processes", "no service runs on this machine")
        return Finding(check, "not checked", why, fix="run it on the machines of the services")
    if not addresses:
        why = "this machine has no address but loopback"
        return Finding(check, "not checked", why, fix="run it on a machine with a network")
    open_ = [
        f"{s.name} at {address}:{s.port}"
        for s in local
        for address in addresses
        if s.port and _is_open(address, s.port)
    ]
    if open_:
        fix = "set SYNTH_HOST=127.0.0.1, or keep these ports inside the cluster's network"
        return Finding(check, "failed", "; ".join(open_), "this machine", fix)
    return Finding(check, "ok", f"{len(local)} listen on loopback alone", ", ".join(addresses))


def _gateway(config: Config) -> Finding:
    url = config.backend.text
    if url.startswith("https://"):
        return Finding("gateway", "ok", "reached over TLS", url)
    if config.is_on_this_machine:
        why = "reached over loopback: whether a proxy with TLS stands before it is not seen from here"
        return Finding("gateway", "not checked", why, url, "run it from outside, with --backend https://…")
    return Finding("gateway", "failed", "keys and data go over plain HTTP", url, "put a proxy that ends TLS before it")


def _own_addresses() -> list[str]:
    """Return the addresses of this machine that others may reach."""
    if importlib.util.find_spec("psutil") is None:
        return []
    import psutil

    own = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family is socket.AF_INET or (address.family is socket.AF_INET6 and "%" not in address.address)
    }
    return sorted(address for address in own if not address.startswith("127.") and address != "::1")


def _is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _WAIT_S):
            return True
    except OSError:
        return False
