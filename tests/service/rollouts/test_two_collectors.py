"""A collector that was given up and does not know it: its successor has the job, and the first one ends."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import aclosing, suppress
from pathlib import Path

from synth.bus.history.job_log import append_decided, read_job
from synth.bus.publish import enqueue
from synth.bus.replay import follow
from synth.events import CollectionStarted, JobCreated, JobValidated, JobVerified, ModelRef
from synth.ids import new_job_id, new_org_id
from synth.models import Registry
from synth.runtime.settings import ServiceSettings
from synth.validator.validate import validate
from synth.work import Task
from tests.service.jobs import RL, make_model_dir
from tests.service.process import running


async def verified_rl_job(bus_as, cluster_dir: Path) -> tuple[str, str]:
    org, job = new_org_id(), new_job_id()
    created = JobCreated(config=RL, config_name="job.toml", body_sha256="0")
    validated = validate(created, Registry(make_model_dir(cluster_dir)))
    assert isinstance(validated, JobValidated), validated
    verified = JobVerified(source=ModelRef(id="tiny-qwen3"), task_url="http://127.0.0.1:9/")
    for service, event in (("gateway", created), ("validator", validated), ("verifier", verified)):
        await append_decided(await bus_as(service), org, job, lambda _, e=event: e)
    return org, job


async def says(log: Path, line: str, *, timeout: float) -> None:
    """Wait until a process has logged this."""
    deadline = time.monotonic() + timeout
    while line not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.Event().wait()


async def test_a_collector_that_stood_still_learns_that_it_was_replaced_and_ends(
    bus_as, settings_of, cluster_dir: Path, tmp_path: Path
):
    org, job = await verified_rl_job(bus_as, cluster_dir)
    bus = await bus_as("verifier")

    def settings(replica: str) -> ServiceSettings:
        return settings_of("rollouts").model_copy(update={"replica": replica})

    logs = tmp_path / "first.log", tmp_path / "second.log"
    with running("rollouts", settings("first"), logs[0]) as first:
        subject = f"collection.started.{org}.{job}"
        async with asyncio.timeout(60), aclosing(follow(bus, [subject])) as claims:
            await enqueue(bus, Task(kind="collect", pool="default", org=org, job_id=job))
            assert (await anext(claims)).event == CollectionStarted(attempt=1, worker="first")
            with running("rollouts", settings("second"), logs[1]):
                first.send_signal(signal.SIGSTOP)
                try:
                    assert (await anext(claims)).event == CollectionStarted(attempt=2, worker="second")
                finally:
                    first.send_signal(signal.SIGCONT)
                await says(logs[0], "task lost to another attempt", timeout=20)
                assert "task lost to another attempt" not in logs[1].read_text()
                assert (await read_job(bus, org, job)).attempt == 0
