"""A dead letter or an audit record that the bus has lost is reported once; one that its stream has forgotten is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from synth.api.audit import AuditRecord
from synth.bus.connection import Connection
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.replay import replay_messages
from synth.bus.server.topology import AUDIT, DEAD, audit_subject
from synth.erasure.erase import erase_message, erase_messages
from synth.gateway.ledger import file as ledger_file
from synth.gateway.ledger.file import LedgerFile
from synth.gateway.ledger.watch import LedgerWatch
from synth.gateway.read_model import database_file
from tests.service.gateway.own_log.conftest import bus_admin, bus_as, settings_of

__all__ = ["bus_admin", "bus_as", "settings_of"]

LETTERS = 5


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
async def gateway(bus_as: Callable[[str], Awaitable[Connection]], ledger: Path) -> Connection:
    """A connection to a bus with dead letters and audit records, all in the ledger."""
    gateway = await bus_as("gateway")
    for number in range(LETTERS):
        await publish_dead_letter(gateway, f"job.created.org_1.job_{number}", b"{}", reason="broken", seq=number + 1)
        await gateway.js.publish(audit_subject("org_1", "login"), b"{}", stream=AUDIT)
    await looked(gateway, ledger)
    return gateway


async def looked(bus: Connection, ledger: Path) -> dict[str, list[int]]:
    """A gateway that starts: it compares the bus with the ledger."""
    watch = LedgerWatch(bus, LedgerFile(ledger), check_s=3600)
    await watch.begin()
    await watch.look_at_records()
    await watch.close()
    assert watch.check() is None
    return watch.records_lost


async def reports(bus: Connection) -> list[AuditRecord]:
    messages = await replay_messages(bus.nc, [audit_subject(None, "loss")], stream=AUDIT)
    return [msgspec.json.decode(message.data, type=AuditRecord) for message in messages]


async def test_lost_ones_are_reported_once(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    assert await looked(gateway, ledger) == {}
    for stream, seq in ((DEAD, 2), (DEAD, 5), (AUDIT, 3)):
        assert await erase_message(admin, stream, seq)
    assert await looked(gateway, ledger) == {DEAD: [2, 5], AUDIT: [3]}
    assert [(report.action, report.about, report.count) for report in await reports(gateway)] == [
        ("lose DEAD", "2,5", 2),
        ("lose AUDIT", "3", 1),
    ]
    assert await looked(gateway, ledger) == {}
    assert len(await reports(gateway)) == 2


async def test_erased_ones_are_not_lost(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    for stream in (DEAD, AUDIT):
        await erase_messages(admin, stream, [1, 4], lambda _: None)
    assert await looked(gateway, ledger) == {}


async def test_expired_ones_are_not_lost(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    config = (await admin.js.stream_info(DEAD)).config
    await admin.js.update_stream(replace(config, max_age=0.2, duplicate_window=0.2))
    while (await admin.js.stream_info(DEAD)).state.messages:
        pass
    assert await looked(gateway, ledger) == {}


async def test_records_that_newer_ones_displaced_are_not_lost_and_others_of_their_subject_are(gateway, bus_as, ledger):
    admin = await bus_as("bus")
    config = (await admin.js.stream_info(AUDIT)).config
    await admin.js.update_stream(replace(config, max_msgs_per_subject=3))
    assert await erase_message(admin, AUDIT, LETTERS)
    assert await looked(gateway, ledger) == {AUDIT: [LETTERS]}


async def test_a_ledger_of_an_earlier_version_keeps_what_it_has(gateway, ledger, tmp_path):
    earlier = tmp_path / "earlier"
    db = database_file.connect(earlier)
    database_file.create(db, ledger_file._EARLIER_SCHEMA, ledger_file._EARLIER_TABLES)
    db.execute("INSERT INTO streams VALUES ('EVENTS', 'r1', 7)")
    db.close()
    file = LedgerFile(earlier)
    assert file.stream("EVENTS") == ("r1", 7)
    file.close()
    assert await looked(gateway, earlier) == {}
    assert LedgerFile(earlier).records(DEAD, 0)[3]
