"""A read model that is damaged in any way, or that is of another log, is noticed and made anew."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from synth.bus.cancellation import cancel_until_ended
from synth.bus.replay import replay
from synth.bus.server.topology import EVENTS
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.store import ReadModel
from tests.service.gateway import job_histories
from tests.service.gateway.test_read_model import new_model, some_history

PAGE = 4096


async def answers(user) -> dict[str, object]:
    """What the API says of everything that this user has; waits while the gateway says that it cannot say."""
    found: dict[str, object] = {}
    todo = ["/api/jobs", "/api/files", "/api/models", "/api/traces"]
    while todo:
        path = todo.pop(0)
        async with asyncio.timeout(60):
            while (reply := await user.http.get(path)).status_code == 503:
                assert reply.headers["retry-after"]
                await asyncio.sleep(0.05)
        assert reply.status_code == 200, (path, reply.text)
        body = found[path] = reply.json()
        for job in body.get("data", []) if path == "/api/jobs" else [body]:
            # A place in the queue is of the moment: it is read again every second.
            job.pop("waiting", None)
        if path == "/api/jobs":
            ids = [job["id"] for job in body["data"]]
            todo += [f"/api/jobs/{id}{part}" for id in ids for part in ("", "/metrics", "/checkpoints")]
    return found


def flip(path: Path, *, seed: int) -> None:
    """Change bytes at random places of a file."""
    rng, body = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 8, 200))):
        body[rng.randrange(len(body))] ^= rng.randrange(1, 256)
    path.write_bytes(body)


def overwrite_page(path: Path, *, seed: int) -> None:
    """Put one page of a file where another one was."""
    rng, body = random.Random(seed), bytearray(path.read_bytes())
    pages = len(body) // PAGE
    source, target = rng.randrange(pages), rng.randrange(pages)
    body[target * PAGE : (target + 1) * PAGE] = body[source * PAGE : (source + 1) * PAGE]
    path.write_bytes(body)


def truncate(path: Path, *, seed: int) -> None:
    """Cut a file off."""
    body = path.read_bytes()
    path.write_bytes(body[: random.Random(seed).randrange(len(body))])


def settle(path: Path) -> None:
    """Bring what is in the write-ahead log into the file itself."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize("harm", [flip, overwrite_page, truncate])
async def test_no_damage_is_taken_for_the_truth(harm: Callable[..., None], user, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    model = new_model(tmp_path / "sound.db")
    model.apply(events)
    model.close()
    settle(tmp_path / "sound.db")
    sound = (tmp_path / "sound.db").read_bytes()
    for seed in range(25):
        path = tmp_path / "harmed.db"
        path.write_bytes(sound)
        harm(path, seed=seed)
        found = ReadModel(path)
        found.prepare(stream="s", last_seq=10**9)
        # What was never used of the file may be anything; all else is made anew.
        assert found.applied == 0 or same_rows(path, tmp_path / "sound.db"), seed
        found.empty()
        found.close()


def same_rows(one: Path, other: Path) -> bool:
    dumps: list[list[str]] = []
    for path in (one, other):
        with sqlite3.connect(path) as db:
            dumps.append([line for line in db.iterdump() if "INSERT" in line])
    return dumps[0] == dumps[1]


@pytest.fixture
async def harmed(start_gateway, client_of, bus_as, tmp_path):
    """A gateway with a history, its user, its file, and what it answered before any harm."""
    running = await start_gateway(read_model_path=tmp_path / "g.db", read_model_check_s=0.2)
    user = await client_of(running)
    await some_history(user, bus_as)
    # A write is answered when all before it is projected.
    await user.submit()
    return user, tmp_path / "g.db", await answers(user)


async def rebuilds(user) -> float:
    """How often the gateways of this process have made their read models anew."""
    lines = (await user.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("synth_gateway_read_model_rebuilds_total"))


def rubbish(column: str, table: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with sqlite3.connect(path, timeout=20) as db:
            db.execute(f"DROP TRIGGER {table}_update")
            db.execute(f"UPDATE {table} SET {column} = ?", (b'{"job": 1}',))

    return write


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


def shred(path: Path) -> None:
    """Overwrite all but the first page, in place, below the running process."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(random.Random(1).randbytes(max(PAGE, size - PAGE)))
    wal = Path(f"{path}-wal")
    with wal.open("r+b") as file:
        file.truncate(0)


@pytest.mark.parametrize(
    "harm",
    [rubbish("row", "jobs"), rubbish("validated", "texts"), rubbish("row", "files"), rubbish("value", "metrics"),
     delete, shred],
    ids=["jobs", "texts", "files", "metrics", "delete", "shred"],
)  # fmt: skip
async def test_a_file_that_is_harmed_under_a_gateway_is_made_anew(harm, harmed):
    user, path, before = harmed
    rebuilt = await rebuilds(user)
    harm(path)
    async with asyncio.timeout(60):
        # Nobody asks for what is harmed: the check of the whole file sees it.
        while await rebuilds(user) == rebuilt:  # noqa: ASYNC110 - another task's file, and no event
            await asyncio.sleep(0.05)
    assert await answers(user) == before
    assert (await user.http.get("/healthz")).status_code == 200
    # And it goes on: what is written now is read.
    id = (await user.submit())["id"]
    assert (await user.http.get(f"/api/jobs/{id}")).json()["id"] == id


async def test_damage_that_an_answer_meets_is_a_503_and_not_a_500(start_gateway, client_of, bus_as, tmp_path):
    running = await start_gateway(read_model_path=tmp_path / "g.db")
    user = await client_of(running)
    id = (await user.submit())["id"]
    rubbish("row", "jobs")(tmp_path / "g.db")
    replies: list[httpx.Response] = [await user.http.get(f"/api/jobs/{id}")]
    async with asyncio.timeout(60):
        while replies[-1].status_code != 200:
            replies.append(await user.http.get(f"/api/jobs/{id}"))
    assert {reply.status_code for reply in replies} == {200, 503}
    assert replies[-1].json()["id"] == id


async def test_damage_that_the_projector_meets_ends_nothing(start_gateway, client_of, bus_as, tmp_path):
    user = await client_of(await start_gateway(read_model_path=tmp_path / "g.db"))
    id = (await user.submit())["id"]
    rubbish("row", "jobs")(tmp_path / "g.db")
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    await job_histories.succeed(trainer, fence, steps=1)
    async with asyncio.timeout(60):
        while (await user.http.get(f"/api/jobs/{id}")).json().get("state") != "succeeded":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_watcher_hears_each_event_once_while_the_model_is_made_anew(start_gateway, client_of, bus_as, tmp_path):
    running = await start_gateway(read_model_path=tmp_path / "g.db", read_model_check_s=0.2)
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    heard: list[int] = []

    async def watch() -> None:
        async with user.http.stream("GET", f"/api/jobs/{id}/events", headers={"Accept": "text/event-stream"}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    heard.append(int(line[4:]))

    watching = asyncio.create_task(watch())
    for k in range(1, 21):
        await job_histories.step(trainer, fence, k, of=20)
        if k == 10:
            async with asyncio.timeout(20):
                while len(heard) < 10:  # noqa: ASYNC110 - the stream's own task fills it
                    await asyncio.sleep(0.01)
            delete(tmp_path / "g.db")
    await job_histories.succeed(trainer, fence, steps=20)
    async with asyncio.timeout(60):
        await watching
    assert heard == sorted(set(heard))
    log = await replay(await bus_as("gateway"), [f"*.*.{user.org}.{id}"])
    assert heard == [event.seq for event in log]


async def test_a_check_that_was_under_way_does_not_speak_for_what_came_after_it(user, bus_as, tmp_path, monkeypatch):
    events = await some_history(user, bus_as)
    model = new_model(tmp_path / "m.db", stream=str((await (await bus_as("gateway")).js.stream_info(EVENTS)).created))
    model.apply(events)
    hub = Hub(await bus_as("gateway"), model, stream_end=events[-1].seq, stream_buffer=1)
    has_read, harmed, find_damage = threading.Event(), threading.Event(), model.find_damage

    def slow(path: Path | None = None) -> str | None:
        damage = find_damage(path)
        has_read.set()
        assert harmed.wait(60)
        return damage

    monkeypatch.setattr(model, "find_damage", slow)
    under_way = asyncio.create_task(hub.find_damage())
    assert await asyncio.to_thread(has_read.wait, 60)
    rubbish("row", "jobs")(tmp_path / "m.db")
    reading, asked = asyncio.create_task(hub.read_log()), asyncio.create_task(hub.find_damage())
    await asyncio.sleep(0)  # it has asked
    harmed.set()
    async with asyncio.timeout(60):
        assert await under_way is None
        assert await asked is not None
    await cancel_until_ended(reading, what="the reader", again_s=0.2)
    model.close()
