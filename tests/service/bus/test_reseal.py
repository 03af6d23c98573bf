"""The secrets in the bucket through a rotation of the cluster's secret."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from datetime import timedelta

import pytest
from nats.js.kv import KeyValue

from synth.bus.connection import Connection
from synth.bus.kv.chat_grants import ChatGrant, latest_grants
from synth.bus.kv.reseal import Resealed, Resealer
from synth.bus.kv.secrets import SecretStore
from synth.errors import InvalidKey, Permanent, UserError
from synth.ids import OrgId
from synth.service_secrets import Purpose, ServiceSecrets
from tests.keyrings import keyring, secrets_of
from tests.service.bus.own_server import OwnServer

OLD, NEW = "the secret before", "the secret of today"
ORG, OTHER = OrgId("org_1"), OrgId("org_2")
ORIGIN = "https://app.example.com:443"
OLD_ID = keyring(Purpose.ENVIRONMENT_KEYS, OLD).current.id


@pytest.fixture
async def bus(own: OwnServer) -> Connection:
    await own.provision()
    return await own.connect("gateway")


@pytest.fixture
async def admin(own: OwnServer, bus: Connection) -> Connection:
    return await own.connect("bus")


def store_with(bus: Connection, *secrets: str) -> SecretStore:
    return SecretStore(bus, secrets_of("gateway", *secrets))


def resealer(bus: Connection, *secrets: str) -> Resealer:
    return Resealer(bus, secrets_of("bus", *secrets))


async def grant(store: SecretStore, key: str, org: OrgId = ORG) -> ChatGrant | None:
    async def has_ended(grant: ChatGrant) -> bool:
        return not grant.active

    return await store.grant_chat(org, key, by="key_1", by_hash="hash", lasts=timedelta(hours=1), has_ended=has_ended)


async def fill(bus: Connection) -> list[str]:
    """Two environment keys of one organisation, one may chat, and a key of each kind of another; returns the ids."""
    store = store_with(bus, OLD)
    first = await store.add_environment_key(ORG, "env_1", by="key_1")
    second = await store.add_environment_key(ORG, "env_2", origin=ORIGIN)
    third = await store.add_environment_key(OTHER, "env_1", by="key_2")
    await store.put_judge_key(OTHER, "mine", "judge_1", origin=ORIGIN)
    await grant(store, "env_1")
    return [first.id, second.id, third.id]


async def read(store: SecretStore) -> tuple[list[str], list[str], list[str]]:
    """What a gateway reads: the ids of the environment keys, the keys, and who may chat with the first."""
    keys = [*await store.environment_keys(ORG), *await store.environment_keys(OTHER)]
    judge = await store.judge_key(OTHER, "mine")
    assert judge is not None
    grants = await store.chat_grants("env_1")
    of_keys = await store.chat_grants_of(ORG, keys)
    assert [grant.org for grant in of_keys.values()].count(ORG) >= len(grants)
    return [k.id for k in keys], [*(k.key for k in keys), judge.key], [g.org for g in grants if g.active]


async def test_what_was_sealed_before_a_rotation_is_read_and_after_a_reseal_needs_the_new_secret_alone(bus, admin):
    ids = await fill(bus)
    everything = (ids, ["env_1", "env_2", "env_1", "judge_1"], [ORG])
    assert await read(store_with(bus, NEW, OLD)) == everything
    with pytest.raises(InvalidKey, match=r"under the key .* is missing in SYNTH_CLUSTER_SECRET_EARLIER"):
        await store_with(bus, NEW).judge_key(OTHER, "mine")
    assert await store_with(bus, NEW).environment_keys(ORG) == []
    assert await resealer(admin, NEW, OLD).reseal() == Resealed(sealed=4, current=0, grants=1)
    assert await read(store_with(bus, NEW)) == everything
    assert await resealer(admin, NEW, OLD).reseal() == Resealed(sealed=0, current=4, grants=0)
    with pytest.raises(InvalidKey, match="was sealed under the key"):
        await store_with(bus, OLD).judge_key(OTHER, "mine")
    assert await store_with(bus, OLD).environment_keys(ORG) == []
    assert await store_with(bus, OLD).chat_grants("env_1") == []


async def test_the_command_reseals_with_the_secrets_that_the_user_bus_was_given(own, bus, admin):
    ids = await fill(bus)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SYNTH_")}
    environment = {
        "SYNTH_NATS_URL": own.config.url,
        "SYNTH_NATS_USER": "bus",
        "SYNTH_NATS_PASSWORD": own.config.users["bus"],
    }
    for own_secrets, code, said in (
        (
            (NEW,),
            1,
            f"4 records cannot be read, 0 were sealed again; the first: .*under the key {OLD_ID}.*SYNTH_SECRETS",
        ),
        ((NEW, OLD), 0, "^4 records sealed again, 0 were under the current secret; 1 grants of chat moved"),
        ((NEW,), 0, "^0 records sealed again, 4 were under the current secret; 0 grants of chat moved"),
    ):
        given = environment | {"SYNTH_SECRETS": secrets_of("bus", *own_secrets).text()}
        command = (sys.executable, "-m", "synth.synthd", "bus", "reseal")
        pipe = asyncio.subprocess.PIPE
        done = await asyncio.create_subprocess_exec(*command, env=clean | given, stdout=pipe, stderr=pipe)
        out, error = await done.communicate()
        assert done.returncode == code, error
        assert re.search(said, (out if code == 0 else error).decode()), (out, error)
    assert (await read(store_with(bus, NEW)))[0] == ids


async def test_a_reseal_that_was_broken_off_is_begun_again_and_two_may_run_at_once(bus, admin, monkeypatch):
    ids = await fill(bus)
    whole = Resealer._reseal
    done = 0

    async def killed_at_the_second(self: Resealer, place: str, purpose: Purpose) -> bool:
        nonlocal done
        done += 1
        if done == 2:
            raise ConnectionError("killed")
        return await whole(self, place, purpose)

    monkeypatch.setattr(Resealer, "_reseal", killed_at_the_second)
    with pytest.raises(ConnectionError):
        await resealer(admin, NEW, OLD).reseal()
    monkeypatch.setattr(Resealer, "_reseal", whole)
    # Some are under the one secret, some under the other.
    assert (await read(store_with(bus, NEW, OLD)))[0] == ids
    both = await asyncio.gather(*(resealer(admin, NEW, OLD).reseal() for _ in range(2)))
    assert sum(each.sealed for each in both) == 3
    assert await read(store_with(bus, NEW)) == (ids, ["env_1", "env_2", "env_1", "judge_1"], [ORG])


async def test_a_record_that_changes_meanwhile_is_sealed_as_it_stands_then(bus, admin, monkeypatch):
    [id, *_] = await fill(bus)
    gateway = store_with(bus, NEW, OLD)
    update, bound = KeyValue.update, False

    async def update_after_another(self: KeyValue, key: str, *given: object, **named: object) -> int:
        nonlocal bound
        if id in key and not bound:
            bound = True
            found = await gateway.environment_key(ORG, id)
            assert found is not None
            await gateway.bind_environment_key(ORG, found, ORIGIN)
        return await update(self, key, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyValue, "update", update_after_another)
    await resealer(admin, NEW, OLD).reseal()
    found = await store_with(bus, NEW).environment_key(ORG, id)
    assert found is not None
    assert found.origin == ORIGIN


async def test_a_grant_that_is_revoked_while_it_is_moved_stays_revoked(bus, admin, monkeypatch):
    await fill(bus)
    delete, revoked = KeyValue.delete, False

    async def delete_after_a_revocation(self: KeyValue, key: str, *given: object, **named: object) -> bool:
        nonlocal revoked
        if not revoked:
            revoked = True
            # By a gateway that knows the earlier secret alone.
            assert await store_with(bus, OLD).revoke_chat(ORG, "env_1")
        return await delete(self, key, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyValue, "delete", delete_after_a_revocation)
    await resealer(admin, NEW, OLD).reseal()
    [moved] = await store_with(bus, NEW).chat_grants("env_1")
    assert not moved.active


async def test_between_rotation_and_reseal_a_grant_is_renewed_and_revoked_in_one_place(bus, admin):
    await fill(bus)
    both = store_with(bus, NEW, OLD)
    assert await both.revoke_chat(ORG, "env_1")
    assert [g.active for g in await both.chat_grants("env_1")] == [False]
    await grant(both, "env_1")
    # A gateway that knows one of the secrets alone finds it.
    for store in (both, store_with(bus, NEW), store_with(bus, OLD)):
        assert [g.active for g in await store.chat_grants("env_1")] == [True]
    assert (await resealer(admin, NEW, OLD).reseal()).grants == 1
    assert await store_with(bus, OLD).chat_grants("env_1") == []
    assert [g.active for g in await store_with(bus, NEW).chat_grants("env_1")] == [True]


async def test_a_key_is_granted_to_one_organisation_throughout_a_rotation(bus, admin):
    await fill(bus)
    [before] = await store_with(bus, OLD).chat_grants("env_1")
    # Gateways before the rotation, in its two rounds, and after it.
    for secrets in ((OLD,), (OLD, NEW), (NEW, OLD)):
        assert await grant(store_with(bus, *secrets), "env_1", OTHER) is None
        renewed = await grant(store_with(bus, *secrets), "env_1")
        assert renewed is not None
        assert renewed.since == before.since
    await resealer(admin, NEW, OLD).reseal()
    assert await grant(store_with(bus, NEW), "env_1", OTHER) is None
    assert await grant(store_with(bus, NEW), "env_1") is not None


@pytest.mark.parametrize(("secrets", "writes"), [((OLD,), 0), ((NEW, OLD), 0), ((NEW, OLD), 1)])
async def test_of_organisations_that_are_granted_a_key_at_once_one_has_it(bus, monkeypatch, secrets, writes):
    """The other gateway knows the earlier secret alone. writes: of this one, before it is overtaken."""
    put_after, written = SecretStore._put_after, -1  # type: ignore[attr-defined]

    async def put_after_another(self: SecretStore, *given: object, **named: object) -> bool:
        nonlocal written
        written += 1
        if written == writes:
            assert await grant(store_with(bus, OLD), "env_9", OTHER) is not None
        return await put_after(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SecretStore, "_put_after", put_after_another)
    assert await grant(store_with(bus, *secrets), "env_9") is None
    [live] = [grant for grant in await store_with(bus, NEW, OLD).chat_grants("env_9") if grant.active]
    assert live.org == OTHER


async def test_a_grant_that_is_moved_while_it_is_looked_for_is_found(bus, admin):
    await fill(bus)
    both = store_with(bus, NEW, OLD)
    looks = 0

    async def look_around_a_reseal(digest: str) -> list[ChatGrant]:
        nonlocal looks
        looks += 1
        if looks == 2:
            await resealer(admin, NEW, OLD).reseal()
        return await both.chat_grants_at(digest)

    assert [g.org for g in await latest_grants(both.chat_digests("env_1"), look_around_a_reseal)] == [ORG]


async def test_a_grant_in_two_places_is_the_newer_one_and_is_revoked_in_both(bus, admin):
    await fill(bus)
    # By a gateway that knows the new secret alone: the earlier grant stays where it is.
    await grant(store_with(bus, NEW), "env_1")
    both = store_with(bus, NEW, OLD)
    [newer] = await store_with(bus, NEW).chat_grants("env_1")
    assert await both.chat_grants("env_1") == [newer]
    assert await both.revoke_chat(ORG, "env_1")
    for store in (store_with(bus, NEW), store_with(bus, OLD)):
        assert [g.active for g in await store.chat_grants("env_1")] == [False]
    assert (await resealer(admin, NEW, OLD).reseal()).grants == 1
    assert await store_with(bus, OLD).chat_grants("env_1") == []
    assert len(await store_with(bus, NEW).chat_grants("env_1")) == 1


async def test_a_key_that_is_stored_again_after_a_rotation_is_kept_once_and_keeps_its_id(bus, admin):
    ids = await fill(bus)
    again = await store_with(bus, NEW, OLD).add_environment_key(ORG, "env_2", origin=ORIGIN)
    assert again.id == ids[1]
    assert (await resealer(admin, NEW, OLD).reseal()).current == 1
    assert [key.id for key in await store_with(bus, NEW).environment_keys(ORG)] == ids[:2]


async def test_a_record_under_an_unknown_secret_keeps_none_of_the_others(bus, admin):
    await fill(bus)
    lost = await store_with(bus, "a secret that was lost").add_environment_key("org_3", "env_3", origin=ORIGIN)
    id = keyring(Purpose.ENVIRONMENT_KEYS, "a secret that was lost").current.id
    what = f"environment.org_3.{lost.id}: 1 records cannot be read, 4 were sealed again.*under the key {id}"
    with pytest.raises(UserError, match=what):
        await resealer(admin, NEW, OLD).reseal()
    assert len(await store_with(bus, NEW).environment_keys(OTHER)) == 1
    assert len(await store_with(bus, NEW).chat_grants("env_1")) == 1


@pytest.mark.parametrize(
    ("service", "environment", "judge"),
    [("inference", False, False), ("rollouts", True, False), ("verifier", True, False), ("judge", False, True)],
)
async def test_a_service_with_its_own_secrets_reads_what_it_needs_and_nothing_else(bus, service, environment, judge):
    await fill(bus)
    # What it was given is all that is in its environment. Through the gateway's connection, which may read everything.
    store = SecretStore(bus, ServiceSecrets.parse(service, secrets_of(service, OLD).text()))
    for call, may in ((store.environment_keys(ORG), environment), (store.judge_key(OTHER, "mine"), judge)):
        if may:
            assert await call
            continue
        with pytest.raises(Permanent, match=f"{service} was not given the secret for"):
            await call
