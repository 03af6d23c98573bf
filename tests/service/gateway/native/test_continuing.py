"""Going on from a job that failed: another job, from its last checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from synth.bus.history.job_log import append_as_owner
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.errors import Problem
from synth.events import BlobRef, CheckpointSaved, JobCreated, JobFailed, ModelDeleted, ModelRef
from synth.gateway.commands.expire import expire_checkpoints
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from tests.service.gateway import job_histories
from tests.service.gateway.wait import wait_until_shown

TREE = BlobRef(uri="blob://jobs/x/checkpoint", size=7, sha256="0")


async def fail(user, bus_as, *, saved: int | None) -> str:
    """A job that failed, with the checkpoint of this step or with none."""
    id = (await user.submit(name="sums"))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    if saved is not None:
        await save(trainer, fence, saved)
    _, seq = await append_as_owner(trainer, fence, lambda _: JobFailed(code="x", problem=Problem(what="it broke")))
    assert seq is not None
    await wait_until_shown(user, seq)
    return id


async def save(trainer, fence: Fence, step: int) -> None:
    model = ModelRef(id=f"rl:tiny:{fence.job_id}:step_{step}", tree=TREE)
    event = CheckpointSaved(step=step, version=step, attempt=fence.attempt, tree=TREE, size=7, model=model)
    await Publisher(trainer).fenced(event, fence=fence, id=str(step))


async def test_another_job_goes_on_from_the_last_checkpoint_of_one_that_failed(user, bus_as):
    failed = await fail(user, bus_as, saved=3)
    reply = await user.http.post(f"/api/jobs/{failed}/resume")
    assert reply.status_code == 202
    job = reply.json()
    assert (job["state"], job["linked_job_id"], job["name"]) == ("created", failed, "sums")
    [created] = [e.event for e in await replay(await bus_as("gateway"), [f"job.created.{user.org}.{job['id']}"])]
    assert isinstance(created, JobCreated)
    assert created.continues is not None
    assert (created.continues.job, created.continues.step, created.continues.tree) == (failed, 3, TREE)
    assert created.continues.model == f"rl:tiny:{failed}:step_3"
    # Twice is once, until the other one has ended too.
    assert (await user.http.post(f"/api/jobs/{failed}/resume")).json()["id"] == job["id"]
    view = (await user.http.get(f"/api/rl/jobs/{job['id']}")).json()
    assert view["linked_job_id"] == failed
    await user.http.post(f"/api/jobs/{job['id']}/cancel")
    again = (await user.http.post(f"/api/jobs/{failed}/resume")).json()
    assert again["id"] not in (job["id"], failed)
    assert again["linked_job_id"] == failed
    # The id of a deleted job is not used again, and blocks nothing.
    await user.http.post(f"/api/jobs/{again['id']}/cancel")
    assert (await user.http.delete(f"/api/jobs/{again['id']}")).status_code == 200
    third = await user.http.post(f"/api/jobs/{failed}/resume")
    assert third.status_code == 202
    assert third.json()["id"] not in (again["id"], job["id"], failed)
    assert (await user.http.get(f"/api/jobs/{failed}")).json()["state"] == "failed"


async def test_a_job_that_failed_without_a_checkpoint_is_a_409_that_names_the_next_command(user, bus_as):
    failed = await fail(user, bus_as, saved=None)
    reply = await user.http.post(f"/api/jobs/{failed}/resume")
    assert reply.status_code == 409
    [problem] = reply.json()["error"]["problems"]
    assert "no checkpoint to go on from" in problem["what"]
    assert f"synthctl jobs config {failed}" in problem["fix"]


async def test_a_failed_job_keeps_its_checkpoints_for_as_long_as_the_operator_sets(user, bus_as, tmp_path):
    failed = await fail(user, bus_as, saved=3)
    gateway = await bus_as("gateway")
    model = ReadModel(tmp_path / "m.db")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(await replay(gateway, [f"*.*.{user.org}.{failed}"]))
    tomorrow, deleted = datetime.now(UTC) + timedelta(days=1), f"model.deleted.{user.org}.{failed}"
    for settings in (GatewaySettings(), GatewaySettings(failed_checkpoint_days=2)):
        await expire_checkpoints(model, Publisher(gateway), settings, tomorrow)
        assert await replay(gateway, [deleted]) == []
    await expire_checkpoints(model, Publisher(gateway), GatewaySettings(failed_checkpoint_days=0.5), tomorrow)
    assert [e.event for e in await replay(gateway, [deleted])] == [
        ModelDeleted(model=f"rl:tiny:{failed}:step_3", tree=TREE, requested_by="")
    ]
