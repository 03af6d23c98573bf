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
        fix = "run it on a machine that reaches the bus"
        return Finding(check="bus greeting", result="not checked", found=why, where=url, fix=fix)
    if not greeting.get("auth_required"):
        fix = "start it with the output of `synthd bus config`"
        return Finding(check="bus greeting", result="failed", found="it requires no login", where=url, fix=fix)
    if greeting.get("tls_required"):
        observed = "TLS is required, and a login"
        return Finding(check="bus greeting", result="ok", found=observed, where=url)
    if is_loopback_host(host):
        observed = "a login is required; plain text, on loopback"
        return Finding(check="bus greeting", result="ok", found=observed, where=url)
    fix = 'docs/security.md, "The bus over TLS and without passwords"'
    observed = "a login is required, in plain text"
    return Finding(check="bus greeting", result="warning", found=observed, where=url, fix=fix)


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
            observed = "no bus is known here"
            yield Finding(check="bus monitor", result="not checked", found=observed, fix=fix)
        return
    for host, port in dict.fromkeys(places):
        where = f"{host}:{port}"
        if _is_open(host, port):
            fix = "`synthd bus config` prints a monitor that listens on loopback alone"
            observed = "open to the network, and has no login"
            yield Finding(check="bus monitor", result="failed", found=observed, where=where, fix=fix)
        else:
            yield Finding(check="bus monitor", result="ok", found="not reachable", where=where)


def _ports(deployment: SeenDeployment, addresses: list[str]) -> Finding:
    """Check that the HTTP sides of services on this machine are reachable over loopback alone."""
    local = [s for s in deployment.services if s.port is not None]
    check = "service ports"
    if not local:
        why = deployment.unseen.get("processes", "no service runs on this machine")
        fix = "run it on the machines of the services"
        return Finding(check=check, result="not checked", found=why, fix=fix)
    if not addresses:
        why = "this machine has no address but loopback"
        return Finding(check=check, result="not checked", found=why, fix="run it on a machine with a network")
    open_ = [
        f"{s.name} at {address}:{s.port}"
        for s in local
        for address in addresses
        if s.port and _is_open(address, s.port)
    ]
    if open_:
        fix = "set SYNTH_HOST=127.0.0.1, or keep these ports inside the cluster's network"
        return Finding(check=check, result="failed", found="; ".join(open_), where="this machine", fix=fix)
    observed = f"{len(local)} listen on loopback alone"
    return Finding(check=check, result="ok", found=observed, where=", ".join(addresses))


def _gateway(config: Config) -> Finding:
    url = config.backend.text
    if url.startswith("https://"):
        return Finding(check="gateway", result="ok", found="reached over TLS", where=url)
    if config.is_on_this_machine:
        why = "reached over loopback: whether a proxy with TLS stands before it is not seen from here"
        fix = "run it from outside, with --backend https://…"
        return Finding(check="gateway", result="not checked", found=why, where=url, fix=fix)
    fix = "put a proxy that ends TLS before it"
    return Finding(check="gateway", result="failed", found="keys and data go over plain HTTP", where=url, fix=fix)


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
