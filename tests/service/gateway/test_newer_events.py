"""A gateway that meets events of a newer version says so, goes on, and shows them once it is upgraded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import msgspec
import pytest
from pydantic import SecretStr

from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.events.catalogue import CATALOGUE
from synth.runtime.settings import ServiceSettings
from tests.service.bus.own_server import OwnServer, declare
from tests.service.gateway import job_histories
from tests.service.process import environment


@pytest.fixture
async def own(tmp_path) -> AsyncIterator[OwnServer]:
    """A nats-server of this test alone: what no gateway here can read would make those of other tests unhealthy."""
    server = OwnServer.at(tmp_path)
    server.start()
    yield server
    await server.close()


@pytest.fixture
def settings_of(own: OwnServer, tmp_path):
    def make(service: str) -> ServiceSettings:
        secret = SecretStr("test-cluster-secret")
        changes = {"cluster_secret": secret, "blob_url": f"file:{tmp_path / 'blobs'}", "work_dir": tmp_path / "work"}
        return own.settings(service).model_copy(update=changes)

    return make


@pytest.fixture
async def bus_admin(own: OwnServer):
    return await own.provision()


@pytest.fixture
def bus_as(own: OwnServer):
    return own.connect


async def test_what_it_cannot_read_it_names_and_an_upgraded_one_reads_the_log_again(
    start_gateway, client_of, bus_admin, bus_as, monkeypatch, tmp_path
):
    await declare(bus_admin, train_step=2)
    path = tmp_path / "shared.db"
    running = await start_gateway(read_model_path=path)
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    await job_histories.step(trainer, fence, 1)
    step = {"step": 2, "of": 100, "attempt": 1, "values": {"loss": 0.5}}
    # As the next release writes it.
    subject = f"train.step.{user.org}.{id}"
    ack = await trainer.js.publish(subject, json.dumps(step).encode(), headers={"Synth-Schema": "2"})

    async def healthz() -> httpx.Response:
        async with httpx.AsyncClient(base_url=running.service.url) as http:
            return await http.get("/healthz")

    async with asyncio.timeout(20):
        while (await user.http.get(f"/api/jobs/{id}")).json()["last_seq"] < ack.seq:
            continue
    assert (await user.http.get(f"/api/jobs/{id}")).json()["step"] == 1
    health = await healthz()
    assert health.status_code == 503
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        # A restart would change nothing.
        assert (await http.get("/livez")).status_code == 200
    assert f"train.step (schema 2, since {ack.seq})" in health.json()["unhealthy"]["version"]
    shown = (await user.http.get(f"/api/jobs/{id}/events")).json()["events"]
    assert shown[-1]["data"] == step
    await running.stop()
    # The same version again has the same gap, and says so still.
    running = await start_gateway(read_model_path=path)
    assert "version" in (await healthz()).json()["unhealthy"]
    await running.stop()
    newer = msgspec.structs.replace(CATALOGUE["train.step"], version=2)
    monkeypatch.setitem(CATALOGUE, "train.step", newer)
    running = await start_gateway(read_model_path=path)
    user = await client_of(running, user.key)
    async with asyncio.timeout(20):
        while (await user.http.get(f"/api/jobs/{id}")).json()["step"] != 2:
            continue
    assert "version" not in (await healthz()).json()["unhealthy"]


async def test_what_only_says_that_it_is_newer_is_shown_and_is_no_reason_to_be_unwell(start_gateway, client_of, bus_as):
    running = await start_gateway()
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    await trainer.js.publish(f"train.step.{user.org}.{id}", b'{"step":9}', headers={"Synth-Schema": "2"})
    last = await job_histories.step(trainer, fence, 1)
    async with asyncio.timeout(20):
        while (await user.http.get(f"/api/jobs/{id}")).json()["last_seq"] < last:
            continue
    assert (await user.http.get(f"/api/jobs/{id}")).json()["step"] == 1
    shown = (await user.http.get(f"/api/jobs/{id}/events")).json()["events"]
    assert {"step": 9} in [event["data"] for event in shown]
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        assert (await http.get("/healthz")).status_code == 200


async def test_what_a_version_wrote_that_no_longer_runs_is_listed_dropped_and_no_longer_named(
    start_gateway, client_of, bus_admin, bus_as, settings_of, tmp_path
):
    for schema in (7, 8, *range(20, 30)):
        await declare(bus_admin, train_step=schema)
    path = tmp_path / "shared.db"
    running = await start_gateway(read_model_path=path)
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    subject = f"train.step.{user.org}.{id}"
    newer_ones = [(await trainer.js.publish(subject, b"{}", headers={"Synth-Schema": n})).seq for n in ("7", "7", "8")]
    newer_ones += [
        (await trainer.js.publish(subject, b"{}", headers={"Synth-Schema": f"{n}"})).seq for n in range(20, 30)
    ]
    after = await job_histories.step(trainer, fence, 1)
    async with asyncio.timeout(20):
        while (await user.http.get(f"/api/jobs/{id}")).json()["last_seq"] < after:
            continue
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        said = (await http.get("/healthz")).json()["unhealthy"]["version"]
    assert f"train.step (schema 7, since {newer_ones[0]}), train.step (schema 8, since {newer_ones[2]})" in said
    assert "and 2 more kinds; upgrade this gateway" in said
    await running.stop()

    code, listed = await newer(settings_of)
    assert code == 0
    assert [int(line.split("\t")[0]) for line in listed[:-1]] == newer_ones
    assert listed[0].endswith(f"{subject}\tschema 7")
    assert listed[-1] == "13 events that say that a newer version wrote them"
    code, dropped = await newer(settings_of, "--drop")
    assert (code, dropped[-1].partition("; ")[2]) == (0, "13 dropped: restart the services that met them")
    assert (await newer(settings_of))[1] == ["0 events that say that a newer version wrote them"]

    running = await start_gateway(read_model_path=path)
    user = await client_of(running, user.key)
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        assert "version" not in (await http.get("/healthz")).json().get("unhealthy", {})
    async with asyncio.timeout(20):
        while (await user.http.get(f"/api/jobs/{id}")).json()["step"] != 1:
            continue


async def test_a_service_of_a_version_that_was_not_declared_waits_and_says_what_for(bus_admin, settings_of):
    log = (await bus_admin.js.stream_info("EVENTS")).config
    await bus_admin.js.update_stream(replace(log, metadata={}))
    async with starting("files", settings_of) as says:
        await says(b"run its `synthd bus init`")
        await provision(bus_admin.js, topology())
        await says(b"service up")


async def test_a_service_that_waits_for_the_log_ends_when_it_is_told_to(own, settings_of):
    async with starting("gateway", settings_of) as says:
        await says(b"there is no log yet: run `synthd bus init`")


@asynccontextmanager
async def starting(service: str, settings_of) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """A process of a service; what waits for words in its log. It must end with code 0 when it is told to."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synth.synthd", service),
        env=environment(settings_of(service)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    log = process.stdout

    async def says(words: bytes) -> None:
        async with asyncio.timeout(60):
            while words not in (line := await log.readline()):
                assert line, "it ended"

    try:
        yield says
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 20)
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0


async def newer(settings_of, *flags: str) -> tuple[int | None, list[str]]:
    """`synthd bus newer`: its exit code, and the lines that it printed."""
    command = (sys.executable, "-m", "synth.synthd", "bus", "newer", *flags)
    done = await asyncio.create_subprocess_exec(
        *command, env=environment(settings_of("bus")), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await done.communicate()
    return done.returncode, out.decode().splitlines()
