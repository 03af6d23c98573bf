"""What a service refuses to start with, and what its garbage collector leaves alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from synth.errors import UserError
from synth.http_server.open_routes import AddressLimit, MetricsPage
from synth.runtime.settings import ServiceSettings
from synth.service import Service, serve


async def test_a_service_does_not_start_with_a_secret_that_could_be_guessed(tmp_path):
    async def setup(service: Service) -> None:
        raise AssertionError("it started")

    for secret in ("", "fifteen letters"):
        # Nothing listens there: it must end before it dials the bus.
        settings = ServiceSettings(cluster_secret=SecretStr(secret), work_dir=tmp_path, nats_url="nats://127.0.0.1:9")
        with pytest.raises(UserError, match=f"SYNTH_CLUSTER_SECRET: the cluster secret has {len(secret)} characters"):
            await serve("verifier", settings, setup)


async def test_the_garbage_collector_does_not_go_through_what_a_running_service_is_made_of(tmp_path):
    settings = ServiceSettings(work_dir=tmp_path)
    none = cast(Any, None)
    service = Service("verifier", settings, secrets=none, bus=none, blobs=none, off_loop=none, port=0)
    service.stop.set()
    gc.unfreeze()
    try:
        await service.supervise()
        # Those that tell generations apart: less is left to it than it leaves alone.
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()


def asked(page: MetricsPage, address: str) -> Awaitable[Response]:
    """The answer of a page of metrics to a request from this address."""
    return page.answer(Request({"type": "http", "method": "GET", "headers": [], "client": (address, 1)}))


async def test_metrics_at_the_port_of_the_api_are_for_this_machine_alone():
    page = MetricsPage(AddressLimit(1.0), loopback_only=True)
    assert (await asked(page, "127.0.0.1")).status_code == (await asked(page, "::1")).status_code == 200
    refused = await asked(page, "203.0.113.7")
    assert refused.status_code == 403
    assert b"SYNTH_METRICS_PORT" in refused.body
    inside = MetricsPage(AddressLimit(1.0), loopback_only=False)
    assert b"# HELP" in (await asked(inside, "10.0.0.7")).body


def test_metrics_with_a_port_of_their_own_are_not_at_the_port_of_the_api(tmp_path):
    none = cast(Any, None)
    for port, paths in ((None, ["/livez", "/healthz", "/metrics"]), (9000, ["/livez", "/healthz"])):
        settings = ServiceSettings(work_dir=tmp_path, metrics_port=port)
        service = Service("verifier", settings, secrets=none, bus=none, blobs=none, off_loop=none, port=0)
        assert [cast(Route, route).path for route in service.observability()] == paths


async def test_an_address_may_ask_for_the_metrics_only_so_often():
    now = 0.0
    page = MetricsPage(AddressLimit(2.0, now=lambda: now), loopback_only=False)
    assert [(await asked(page, "10.0.0.7")).status_code for _ in range(12)] == [200] * 10 + [429] * 2
    assert (await asked(page, "10.0.0.8")).status_code == 200
    assert (await asked(page, "10.0.0.7")).headers["Retry-After"] == "1"
    now = 1.0
    assert [(await asked(page, "10.0.0.7")).status_code for _ in range(3)] == [200, 200, 429]


_SWITCH_INTERVAL = """
import sys, uvloop
from synth.runtime.settings import ServiceSettings
from synth.service import run

async def setup(service):
    return None

def print_interval(main):
    main.close()
    print(sys.getswitchinterval())

uvloop.run = print_interval
run("files", ServiceSettings(), setup)
"""


def test_a_thread_of_a_service_hands_over_the_interpreter_sooner_than_by_default():
    # A request of a neighbour waits for a long chat's thread at each of its steps.
    process = subprocess.run([sys.executable, "-c", _SWITCH_INTERVAL], capture_output=True, text=True, check=True)
    assert float(process.stdout) <= 0.001 < sys.getswitchinterval()
