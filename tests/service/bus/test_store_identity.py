"""The blob store of a cluster is known by its id: an empty folder below its mount is not it, nor another cluster's."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from synth.blobs import BlobStore, StoreAbsent
from synth.bus.connection import Connection, connect
from synth.bus.history import store_identity
from synth.bus.history.store_identity import STORE_KEY, claim_store, open_store
from synth.bus.publish import Publisher
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, topology
from synth.errors import UserError
from synth.events import BlobRef, FileUploaded
from tests.service.own_bus import Bus, provisioned
from tests.service.process import running


@pytest.fixture
def own_bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.start()
    yield bus
    bus.stop()


@pytest.fixture
async def admin(own_bus: Bus) -> AsyncIterator[Connection]:
    await provisioned(own_bus)
    admin = await connect(own_bus.settings("bus"), "bus")
    yield admin
    await admin.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'blobs'}"


async def noted(admin: Connection) -> str:
    return ((await admin.js.stream_info(EVENTS)).config.metadata or {})[STORE_KEY]


async def test_a_store_gets_its_id_once_and_keeps_it(admin, url):
    await claim_store(admin, BlobStore.open(url))
    id = await noted(admin)
    assert set((await BlobStore.open(url).identities()).values()) == {id}
    await provision(admin.js, topology())
    await claim_store(admin, BlobStore.open(url))
    assert await noted(admin) == id
    store = await open_store(admin, url)
    assert store.id == id
    assert await store.get_bytes(await store.put_bytes("jobs/a", b"x")) == b"x"


async def test_a_claim_that_was_killed_is_ended_by_the_next(admin, url, monkeypatch):
    async def die(self: BlobStore, id: str) -> None:
        await self.put_bytes("jobs/.incoming/store-id", id.encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(BlobStore, "identify", die)
    with pytest.raises(KeyboardInterrupt):
        await claim_store(admin, BlobStore.open(url))
    assert (await open_store(admin, url)).id == ""
    monkeypatch.undo()
    await claim_store(admin, BlobStore.open(url))
    assert set((await BlobStore.open(url).identities()).values()) == {await noted(admin)}


async def test_a_store_that_is_away_is_refused_by_init_and_waited_for_by_services(admin, url, tmp_path):
    await claim_store(admin, BlobStore.open(url))
    (tmp_path / "blobs").rename(tmp_path / "away")
    with pytest.raises(UserError, match="lacks its id") as refused:
        await claim_store(admin, BlobStore.open(url))
    assert await noted(admin) in str(refused.value)
    late = await open_store(admin, url)
    with pytest.raises(StoreAbsent):
        await late.put_bytes("orgs/o/files/a", b"x")
    assert [*(tmp_path / "blobs").iterdir()] == []
    shutil.rmtree(tmp_path / "blobs")
    (tmp_path / "away").rename(tmp_path / "blobs")
    await late.put_bytes("orgs/o/files/a", b"x")


async def test_another_clusters_store_is_refused(admin, url, own_bus, tmp_path):
    await BlobStore.open(url).identify("other")
    with pytest.raises(UserError, match="the blob store is another cluster's"):
        await claim_store(admin, BlobStore.open(url))
    await claim_store(admin, BlobStore.open(f"file:{tmp_path / 'own'}"))
    with pytest.raises(UserError, match="names the store other"):
        await open_store(admin, url)
    settings = own_bus.settings("files")
    log = tmp_path / "files.log"
    with pytest.raises(AssertionError), running("files", settings, log):
        pass
    assert "the blob store is another cluster's" in log.read_text()


async def test_an_empty_store_is_not_that_of_a_log_that_names_blobs(admin, url, own_bus, tmp_path):
    gateway = await connect(own_bus.settings("gateway"), "gateway")
    blob = BlobRef(uri="blob://orgs/org_1/files/a", size=1, sha256="0" * 64)
    upload = FileUploaded(name="a", purpose="fine-tune", blob=blob)
    await Publisher(gateway).once(upload, org="org_1", key="file_1", id="a")
    await gateway.close()
    with pytest.raises(UserError, match="the log names blobs, and the blob store is empty"):
        await claim_store(admin, BlobStore.open(url))
    assert not [*(tmp_path / "blobs").iterdir()]
    # An upgrade: a store that an earlier version has written.
    await BlobStore.open(url).put_bytes("orgs/org_1/files/a", b"x")
    await claim_store(admin, BlobStore.open(url))
    assert await noted(admin)


async def test_a_remote_store_without_the_id_is_refused(admin, url, tmp_path, monkeypatch):
    # As a remote one looks from here: without a folder.
    local = BlobStore.open

    def remote(url: str) -> BlobStore:
        return replace(local(url), root=None)

    monkeypatch.setattr(store_identity.BlobStore, "open", remote)
    await claim_store(admin, remote(url))
    assert (await open_store(admin, url)).id == await noted(admin)
    with pytest.raises(UserError, match="lacks its id"):
        await open_store(admin, f"file:{tmp_path / 'empty'}")
