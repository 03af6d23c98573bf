"""The read model is a disposable projection of the log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.errors import Permanent
from synth.events import BlobExpired, BlobRef, CheckpointSaved, ModelPublished, ModelRef
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.store import ReadModel
from synth.ids import new_org_id
from tests.service.gateway import job_histories


async def some_history(user, bus_as) -> list:
    """Two jobs and a file; returns every event of the organisation's."""
    for _ in range(2):
        id = (await user.submit())["id"]
        trainer, fence = await job_histories.begin(bus_as, user.org, id)
        for k in range(1, 11):
            await job_histories.step(trainer, fence, k, of=10)
            await job_histories.rollout(bus_as, user.org, id, k)
        published = ModelPublished(model=ModelRef(id=f"rl:tiny:{id}"), kind="full", step=10)
        await Publisher(trainer).fenced(published, fence=fence, id="m")
        await job_histories.succeed(trainer, fence, steps=10)
    await user.http.post("/api/files", files={"file": ("a.jsonl", b"{}")})
    return await replay(await bus_as("gateway"), [f"*.*.{user.org}.*"])


def new_model(path: Path, *, last_seq: int = 10**9, stream: str = "s") -> ReadModel:
    model = ReadModel(path)
    model.prepare(stream=stream, last_seq=last_seq)
    return model


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as db:
        return sorted(line for line in db.iterdump() if "INSERT" in line)


async def test_checkpoints_are_there_until_they_expire(user, bus_as, tmp_path):
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for k in (1, 2):
        tree = BlobRef(uri=f"blob://{id}/{k}", size=1, sha256="0")
        ref = ModelRef(id=f"rl:tiny:{id}:step_{k}", tree=tree)
        saved = CheckpointSaved(step=k, version=k, attempt=1, tree=tree, size=100, model=ref)
        await Publisher(trainer).fenced(saved, fence=fence, id=str(k))
        await job_histories.step(trainer, fence, k, loss=1 / k)
    model, log = new_model(tmp_path / "m.db"), await bus_as("gateway")
    model.apply(await replay(log, [f"*.*.{user.org}.*"]))
    found = model.checkpoints(id)
    assert [(c.step, c.values["loss"]) for c in found] == [(2, 0.5), (1, 1.0)]
    assert model.checkpoint(user.org, f"rl:tiny:{id}:step_1") is not None
    assert model.checkpoint(new_org_id(), f"rl:tiny:{id}:step_1") is None
    await Publisher(trainer).fenced(BlobExpired(uris=["blob://x", f"blob://{id}/1"]), fence=fence, id="e")
    model.apply(await replay(log, [f"*.*.{user.org}.*"]))
    assert [c.step for c in model.checkpoints(id)] == [2]
    assert model.checkpoint(user.org, f"rl:tiny:{id}:step_1") is None


async def test_the_model_is_the_same_however_the_log_is_read(user, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    new_model(tmp_path / "at-once.db").apply(events)
    one_by_one = new_model(tmp_path / "one-by-one.db")
    for event in events:
        one_by_one.apply([event])
    # Killed and started again in between, and told some of it twice.
    for cut in range(0, len(events), 7):
        torn = new_model(tmp_path / "torn.db")
        torn.apply(events[max(0, cut - 3) : cut + 7])
        torn.close()
    first = dump(tmp_path / "at-once.db")
    assert len(first) > 24
    assert dump(tmp_path / "one-by-one.db") == first
    assert dump(tmp_path / "torn.db") == first


async def test_a_batch_that_fails_leaves_no_trace(user, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    model = new_model(tmp_path / "m.db")
    model.apply(events[:5])
    before = dump(tmp_path / "m.db")
    with pytest.raises(AttributeError):
        model.apply([*events[5:8], None])  # type: ignore[list-item]
    assert dump(tmp_path / "m.db") == before
    assert model.applied == events[4].seq
    model.apply(events[5:])
    assert model.applied == events[-1].seq


async def test_a_model_of_another_log_is_thrown_away(user, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    model = new_model(tmp_path / "m.db")
    model.apply(events)
    model.close()
    kept = new_model(tmp_path / "m.db")
    assert kept.applied == events[-1].seq
    kept.close()
    for last_seq, stream in ((3, "s"), (10**9, "another")):
        fresh = new_model(tmp_path / "m.db", last_seq=last_seq, stream=stream)
        assert fresh.applied == 0
        assert fresh.jobs(user.org, limit=10, wanted=JobFilter()) == []
        fresh.close()


def test_a_damaged_file_is_replaced(tmp_path):
    path = tmp_path / "m.db"
    path.write_bytes(b"this is not a database" * 1000)
    assert new_model(path).applied == 0


async def test_two_gateways_cannot_share_a_file(user, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    first, second = new_model(tmp_path / "m.db"), new_model(tmp_path / "m.db")
    first.apply(events[:3])
    with pytest.raises(Permanent, match="another gateway"):
        second.apply(events)


async def test_a_new_gateway_tells_the_same_as_an_old_one(start_gateway, client_of, bus_as):
    old = await client_of(await start_gateway())
    events = await some_history(old, bus_as)
    new = await client_of(await start_gateway(), old.key)
    # A write is answered only when all that was before it is projected.
    for user in (old, new):
        await user.http.post("/api/files", files={"file": ("b.jsonl", user.http.base_url.host.encode())})
        marker = (await user.submit())["id"]
        assert (await user.http.post(f"/api/jobs/{marker}/cancel")).status_code == 202
    await old.http.get(f"/api/jobs/{marker}")
    tells = [[(await user.http.get(f"/api/jobs/{e.key}")).json() for e in events[::6]] for user in (old, new)]
    assert tells[0] == tells[1]
    for path in ("/api/models", "/api/files"):
        assert (await new.http.get(path)).json() == (await old.http.get(path)).json()
