"""Deleting jobs and models: gone for every reader at once, their bytes when nothing needs them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from synth.blobs import BlobStore
from synth.bus.history.job_log import append_decided
from synth.bus.history.model_refs import find_model
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.errors import UserError
from synth.events import CheckpointSaved, JobDeleted, JobValidated, JobVerified, ModelDeleted, ModelPublished, ModelRef
from synth.gateway import watchdog
from synth.gateway.commands.delete import empty_trash
from synth.models import Registry
from tests.service.gateway import job_histories
from tests.service.gateway.wait import wait_until_shown


class Made(NamedTuple):
    """What a job left behind. ref: of its model."""

    job: str
    model: str
    ref: ModelRef
    checkpoint: str


async def stored(blobs: BlobStore, job: str) -> list[str]:
    return sorted(await blobs.uris_below(f"jobs/{job}"))


@pytest.fixture
def make(bus_as: Any, blobs: BlobStore, tmp_path):
    """Let a job succeed that leaves a rollout, a checkpoint and a model. over: the model that its adapter lies over."""

    async def make(user: Any, *, over: ModelRef | None = None, end: bool = True) -> Made:
        job = (await user.submit())["id"]
        trainer, fence = await job_histories.begin(bus_as, user.org, job)
        await blobs.put_bytes(f"jobs/{job}/rollouts/train-1/0.safetensors", b"tokens")
        refs: list[ModelRef] = []
        for name in ("checkpoint-1", "model"):
            folder = tmp_path / job / name
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_text(job)
            tree, _ = await blobs.put_tree(f"jobs/{job}/attempt-1/{name}", folder)
            id = f"rl:tiny:{job}" + (":step_1" if name != "model" else "")
            refs.append(ModelRef(id=id, kind="lora" if over else "full", tree=tree, base=over))
        saved, model = refs
        assert saved.tree is not None
        point = CheckpointSaved(step=1, version=1, attempt=1, tree=saved.tree, size=1, model=saved)
        publisher = Publisher(trainer)
        await publisher.fenced(point, fence=fence, id="1")
        seq = await publisher.fenced(ModelPublished(model=model, kind="full", step=1), fence=fence, id="m")
        if end:
            seq = await job_histories.succeed(trainer, fence, steps=1) or seq
        await wait_until_shown(user, seq)
        return Made(job, model.id, model, saved.id)

    return make


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The read models of the gateways, which then remove no blobs by themselves."""
    models: list[Any] = []

    async def only_note(model: Any, blobs: BlobStore) -> None:
        if model not in models:
            models.append(model)

    monkeypatch.setattr(watchdog, "empty_trash", only_note)
    return models


async def test_a_deleted_job_is_listed_nowhere_and_deleting_it_again_changes_nothing(user, make, bus_as):
    made, kept = await make(user), await make(user)
    for _ in range(2):
        reply = await user.http.delete(f"/api/jobs/{made.job}")
        assert reply.json() == {"id": made.job, "object": "job", "deleted": True}
    for path in (
        f"/api/jobs/{made.job}",
        f"/api/jobs/{made.job}/events",
        f"/api/jobs/{made.job}/checkpoints",
        f"/api/jobs/{made.job}/metrics",
        f"/api/models/{made.model}",
        f"/api/models/{made.checkpoint}",
        f"/v1/fine_tuning/jobs/{made.job}",
        f"/v1/models/{made.model}",
    ):
        assert (await user.http.get(path)).status_code == 404, path
    assert [j["id"] for j in (await user.http.get("/api/jobs")).json()["data"]] == [kept.job]
    listed = [m["id"] for m in (await user.http.get("/api/models")).json()["data"]]
    assert kept.model in listed
    assert made.model not in listed
    facts = await replay(await bus_as("gateway"), [f"job.deleted.{user.org}.{made.job}"])
    assert [type(f.event) for f in facts] == [JobDeleted]
    with pytest.raises(UserError):
        await find_model(await bus_as("verifier"), user.org, made.model, Registry(None))
    with pytest.raises(UserError):
        await find_model(await bus_as("verifier"), user.org, made.checkpoint, Registry(None))


async def test_a_deleted_model_is_gone_and_its_job_and_checkpoints_stay(user, make, bus_as):
    made = await make(user)
    for _ in range(2):
        assert (await user.http.delete(f"/api/models/{made.model}")).json()["deleted"] is True
    assert (await user.http.get(f"/api/models/{made.model}")).status_code == 404
    assert (await user.http.get(f"/api/jobs/{made.job}")).json()["model"] is None
    assert (await user.http.get(f"/api/models/{made.checkpoint}")).status_code == 200
    chat = await user.http.post("/v1/chat/completions", json={"model": made.model, "messages": []})
    assert chat.status_code == 404
    facts = await replay(await bus_as("gateway"), [f"model.deleted.{user.org}.{made.job}"])
    assert [f.event.model for f in facts if isinstance(f.event, ModelDeleted)] == [made.model]
    assert (await user.http.delete(f"/v1/models/{made.checkpoint}")).json()["deleted"] is True
    assert (await user.http.get(f"/api/jobs/{made.job}/checkpoints")).json()["data"] == []


async def test_what_runs_is_refused_with_what_to_do(user, make):
    made = await make(user, end=False)
    for path in (f"/api/jobs/{made.job}", f"/api/models/{made.checkpoint}", f"/api/models/{made.model}"):
        refused = await user.http.delete(path)
        assert refused.status_code == 409, path
        assert f"synthctl jobs cancel {made.job}" in refused.json()["detail"]
    assert (await user.http.get(f"/api/jobs/{made.job}")).status_code == 200


async def test_another_organisations_job_and_model_are_not_there(start_gateway, client_of, make):
    running = await start_gateway()
    owner, other = await client_of(running), await client_of(running)
    made = await make(owner)
    for path in (f"/api/jobs/{made.job}", f"/api/models/{made.model}", "/api/jobs/job_0", "/api/models/rl:tiny:job_0"):
        assert (await other.http.delete(path)).status_code == 404, path
    assert (await owner.http.get(f"/api/models/{made.model}")).status_code == 200
    await owner.http.delete(f"/api/jobs/{made.job}")
    for path in (f"/api/jobs/{made.job}", f"/api/models/{made.model}"):
        assert (await other.http.delete(path)).status_code == 404, "also of what its owner has deleted"


async def test_the_bytes_go_except_for_a_model_that_an_adapter_lies_over(user, make, blobs, sweeps, bus_as):
    below = await make(user)
    above = await make(user, over=below.ref)
    await user.http.delete(f"/api/jobs/{below.job}")
    await user.http.get("/api/models")
    gateway = await _noted(sweeps)
    await empty_trash(gateway, blobs)
    left = await stored(blobs, below.job)
    assert [uri.rpartition("/")[2] for uri in left] == ["model.manifest.json", "config.json", "model.safetensors"]
    await empty_trash(gateway, blobs)
    assert await stored(blobs, below.job) == left
    for model in (above.model, above.checkpoint):
        await user.http.delete(f"/api/models/{model}")
    await empty_trash(gateway, blobs)
    await empty_trash(gateway, blobs)
    assert await stored(blobs, below.job) == []
    assert [uri.rpartition("/")[2] for uri in await stored(blobs, above.job)] == ["0.safetensors"]


async def test_a_job_that_was_verified_with_a_model_keeps_its_bytes_until_it_ends(user, make, blobs, sweeps, bus_as):
    made = await make(user)
    resolved = {"kind": "rl", "model": made.model}
    used = (await user.submit())["id"]
    unverified = (await user.submit())["id"]
    validated = JobValidated(job=resolved, origins={}, warnings=[])
    await append_decided(await bus_as("validator"), user.org, used, lambda _: validated)
    verified = JobVerified(source=made.ref)
    _, seq = await append_decided(await bus_as("verifier"), user.org, used, lambda _: verified)
    await wait_until_shown(user, seq or 0)
    await user.http.delete(f"/api/models/{made.model}")
    gateway = await _noted(sweeps)
    assert made.ref.tree is not None

    async def gone() -> bool:
        await empty_trash(gateway, blobs)
        return made.ref.tree.uri not in await stored(blobs, made.job)

    assert not await gone(), "one job came before the deletion and may be verified with it, one was"
    await user.http.post(f"/api/jobs/{unverified}/cancel")
    assert not await gone(), "one was verified with it"
    await user.http.post(f"/api/jobs/{used}/cancel")
    assert await gone()


async def test_a_gateway_that_did_not_live_to_remove_the_bytes_leaves_it_to_the_next(
    start_gateway, client_of, make, blobs, sweeps
):
    first = await start_gateway()
    user = await client_of(first)
    made = await make(user)
    await user.http.delete(f"/api/jobs/{made.job}")
    model = await _noted(sweeps)
    # It dies between two of the blobs.
    await blobs.delete((await stored(blobs, made.job))[:2])
    assert await stored(blobs, made.job)
    second = await start_gateway()
    await client_of(second)
    other = next(m for m in [*sweeps, await _noted(sweeps, besides=model)] if m is not model)
    await empty_trash(other, blobs)
    assert await stored(blobs, made.job) == []
    await empty_trash(model, blobs)
    assert [item for m in (model, other) for item in m.trash() if item.org == user.org] == []


async def test_an_idempotency_key_of_a_deleted_job_is_said_to_be_used(user, make):
    submission = {"config": "x"}
    headers = {"Idempotency-Key": "mine"}
    job = (await user.http.post("/api/jobs", json=submission, headers=headers)).json()["id"]
    await user.http.post(f"/api/jobs/{job}/cancel")
    assert (await user.http.delete(f"/api/jobs/{job}")).status_code == 200
    again = await user.http.post("/api/jobs", json=submission, headers=headers)
    assert again.status_code == 409
    assert "deleted" in again.json()["detail"]


async def _noted(sweeps: list[Any], *, besides: Any = None) -> Any:
    """The read model of a gateway whose watchdog has made its round."""
    async with asyncio.timeout(15):
        while await asyncio.to_thread(lambda: all(m is besides for m in sweeps)):
            continue
    return next(m for m in sweeps if m is not besides)
