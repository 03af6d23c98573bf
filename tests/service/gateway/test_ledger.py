"""What the bus has acknowledged and does not hold any more is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from synth.backup.streams import RESTORED
from synth.bus.connection import Connection
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.server.topology import EVENTS
from synth.erasure.erase import erase_message
from synth.erasure.records import record_erasure
from synth.events import Heartbeat
from synth.gateway.ledger import reading as ledger_reading
from synth.gateway.ledger.file import BLOCK, LedgerFile
from synth.gateway.ledger.watch import LedgerWatch
from tests.keyrings import secrets_of
from tests.service.gateway.own_log.conftest import bus_admin, bus_as, settings_of
from tests.service.own_bus import Bus

__all__ = ["bus_admin", "bus_as", "settings_of"]

ORG = "org_1"
EVENTS_BEFORE = 12


def new_watch(bus: Connection, path: Path) -> LedgerWatch:
    return LedgerWatch(bus, LedgerFile(path), check_s=3600)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
async def gateway(bus_as: Callable[[str], Awaitable[Connection]], ledger: Path) -> Connection:
    """A connection to a log of some events and a heartbeat, and to some keys, all in the ledger."""
    gateway = await bus_as("gateway")
    publisher = Publisher(gateway)
    for number in range(1, EVENTS_BEFORE + 1):
        await publisher.once(Heartbeat(state="running"), org=ORG, key=f"job_{number}", id=f"kept:{number}")
    await publisher.once(Heartbeat(state="running"), org=ORG, key="job_1", id="hb", ttl=3600)
    secrets = SecretStore(gateway, secrets_of("gateway"))
    organisation = await secrets.add_organisation("first")
    await secrets.add_api_key(organisation.id, name="key", scopes=(), by="test")
    watch = new_watch(gateway, ledger)
    await watch.begin()
    await watch.close()
    return gateway


async def looked(bus: Connection, ledger: Path) -> LedgerWatch:
    """A gateway that starts: it compares the bus with the ledger."""
    watch = new_watch(bus, ledger)
    await watch.begin()
    await watch.look(log_too=True)
    return watch


async def test_of_an_intact_bus_nothing_is_missing(gateway, ledger):
    watch = await looked(gateway, ledger)
    assert watch.check() is None


async def test_lost_events_are_named_and_expired_ones_are_not(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    for seq in (3, 4, 7, EVENTS_BEFORE + 1):
        assert await erase_message(admin, EVENTS, seq)
    watch = await looked(gateway, ledger)
    assert watch.damage.events == [3, 4, 7]
    assert "3 events of the log (3-4, 7)" in (watch.check() or "")


async def test_erased_events_are_not_damage(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    await record_erasure(admin, EVENTS, [2, 3])
    for seq in (2, 3):
        assert await erase_message(admin, EVENTS, seq)
    watch = await looked(gateway, ledger)
    assert watch.check() is None
    assert list(LedgerFile(ledger).block(0)[2:4]) == [0, 0]


async def test_a_lost_key_is_named_and_a_changed_one_is_not(gateway, bus_as, ledger):
    admin, secrets = await bus_as("bus"), SecretStore(gateway, secrets_of("gateway"))
    (organisation,) = await secrets.organisations()
    (key,) = await secrets.api_keys(organisation.id)
    assert (await looked(gateway, ledger)).check() is None
    await secrets.revoke_api_key(organisation.id, key.key_id)
    assert (await looked(gateway, ledger)).check() is None
    lost = await admin.js.get_last_msg("KV_api_keys", f"$KV.api_keys.org.{organisation.id}")
    assert await erase_message(admin, "KV_api_keys", lost.seq)
    watch = await looked(gateway, ledger)
    assert watch.damage.keys == {"api_keys": ([f"org.{organisation.id}"], 3)}
    assert watch.damage.counts == "1 of 3 api_keys"


async def test_a_log_that_was_made_anew_is_damage_until_it_is_a_restored_one(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    config = (await admin.js.stream_info(EVENTS)).config
    await admin.js.delete_stream(EVENTS)
    await admin.js.add_stream(config)
    assert len((await looked(gateway, ledger)).damage.events) == EVENTS_BEFORE
    await admin.js.update_stream(replace(config, metadata=(config.metadata or {}) | {RESTORED: "r1"}))
    assert (await looked(gateway, ledger)).check() is None


async def test_a_flipped_byte_of_the_log_is_noticed(gateway, own_bus: Bus, ledger, monkeypatch):
    monkeypatch.setattr(ledger_reading, "_STALL_S", 1.0)
    own_bus.stop()
    (block,) = (own_bus.home / "store").rglob(f"{EVENTS}/msgs/*.blk")
    body = bytearray(block.read_bytes())
    body[body.index(b"job_5") + 2] ^= 1
    block.write_bytes(body)
    own_bus.start()
    watch = await looked(gateway, ledger)
    assert 5 in watch.damage.events


async def test_a_flipped_byte_of_an_event_that_expires_is_noticed(gateway, own_bus: Bus, ledger, monkeypatch):
    monkeypatch.setattr(ledger_reading, "_STALL_S", 1.0)
    own_bus.stop()
    (block,) = (own_bus.home / "store").rglob(f"{EVENTS}/msgs/*.blk")
    body = bytearray(block.read_bytes())
    body[body.rindex(b"Nats-TTL") + 2] ^= 1
    block.write_bytes(body)
    own_bus.start()
    watch = await looked(gateway, ledger)
    assert watch.damage.events == [EVENTS_BEFORE + 1]


def test_a_damaged_ledger_is_begun_again(ledger):
    file = LedgerFile(ledger)
    block = file.block(0)
    block[5] = 7
    file.put_block(0, block, reached=5)
    file.close()
    body = ledger.read_bytes()
    at = body.index(block.tobytes()[16:28])
    ledger.write_bytes(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    assert LedgerFile(ledger).block(0) == type(block)("I", bytes(4 * BLOCK))
