"""The port that a server is to bind a moment later."""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path

import pytest

from synth.bus.server import embedded
from synth.bus.server.embedded import free_port

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not _OUTGOING.exists(), reason="the range is read from Linux")
def test_no_outgoing_connection_takes_it_meanwhile():
    lowest = int(_OUTGOING.read_text().split()[0])
    if lowest < 32_768:
        pytest.skip(f"this machine gives outgoing connections the ports from {lowest}")
    assert max(free_port() for _ in range(300)) < lowest


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(embedded, "_PORTS", [port])
        monkeypatch.setattr(embedded, "_given", deque())
        with pytest.raises(OSError, match=f"from {port} to {port} none was free"):
            free_port()


def test_no_port_is_given_twice_before_its_server_binds_it():
    assert len({free_port() for _ in range(500)}) == 500
