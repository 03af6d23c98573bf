"""`synthd bus …` and `synthd secrets`: what an operator does with the bus, the log, the blobs and the secrets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from pydantic import Field, SecretStr

from synth.backup.archive import archive
from synth.backup.folder import BackupFolder
from synth.backup.load import load_cluster
from synth.backup.save import save_cluster
from synth.blobs import BlobStore
from synth.bus.access.nkeys import NkeyKind, UserKey, new_seed
from synth.bus.connection import Connection, connect
from synth.bus.history.log_format import admit_log
from synth.bus.kv.reseal import Resealer
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.account_key import AccountKey
from synth.bus.server.deployed import ISSUER_VARIABLE, deployed_config, read_nkeys, read_tls
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import AUDIT_DAYS, AUDIT_RECORDS, DEFAULT_POOL, BusTopology, read_pools, topology
from synth.erasure.erase import erase_job, erase_organisation
from synth.erasure.newer_events import drop_newer_events, find_newer_events
from synth.erasure.orphans import delete_orphans, find_orphans
from synth.erasure.sweep import Sweeper
from synth.errors import SynthError, UserError
from synth.events.catalogue import SERVICES
from synth.ids import OrgId
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.service_secrets import NEEDS, SERVICE_SECRETS, ServiceSecrets, secrets_variable


def run(argv: list[str]) -> int | None:
    """Run what the command line names. Returns the exit code; None if the command line is not one of these."""
    match argv:
        case ["bus", "config"]:
            return _print_config()
        case ["bus", "issuer"]:
            seed = AccountKey.new_seed()
            sys.stdout.write(f"SYNTH_NATS_ISSUER_SEED={seed}\n{ISSUER_VARIABLE}={AccountKey(seed).public}\n")
            return 0
        case ["bus", "nkey", user] if user in ("bus", *SERVICES):
            seed = new_seed(NkeyKind.USER)
            sys.stdout.write(f"SYNTH_NATS_SEED={seed}\nSYNTH_NATS_NKEYS={user}={UserKey(seed).public}\n")
            return 0
        case ["bus", ("init" | "check") as action]:
            return asyncio.run(_bus(action))
        case ["bus", ("backup" | "restore") as action, folder]:
            return asyncio.run(_bus(action, BackupFolder(Path(folder))))
        case ["bus", "archive", folder, org, *job] if len(job) < 2:
            return asyncio.run(_tidy(lambda parts: _archive(parts, Path(folder), org, *job)))
        case ["bus", "erase", org, *job] if len(job) < 2:
            return asyncio.run(_tidy(lambda parts: _erase(parts, org, *job)))
        case ["bus", "sweep"]:
            return asyncio.run(_tidy(_sweep))
        case ["bus", "reseal"]:
            return asyncio.run(_tidy(_reseal))
        case ["secrets", *service] if service in ([], *([name] for name in NEEDS)):
            return _print_secrets(*service)
        case ["bus", "orphans", *delete] if delete in ([], ["--delete"]):
            return asyncio.run(_tidy(lambda parts: _collect(parts, delete=bool(delete))))
        case ["bus", "newer", *drop] if drop in ([], ["--drop"]):
            return asyncio.run(_tidy(lambda parts: _list_newer(parts, drop=bool(drop))))
        case _:
            return None


class BusSettings(ServiceSettings):
    """What `synthd bus` needs beside the shared settings."""

    pools: str = DEFAULT_POOL
    """Every worker pool of the cluster, separated by commas. Each has a task queue of each kind; the permissions on the
    bus name these."""

    nats_nkeys: str | None = None
    """For `synthd bus config`: the users that the server knows by an nkey in place of a password, as `USER=KEY`
    separated by commas, with public keys (`U…`). A user with several entries is known by each of the keys, so that one
    can take another's place."""

    nats_server_cert: str | None = None
    """For `synthd bus config`: the file of the server's certificate (PEM) on the server's machine. With it the bus
    takes connections over TLS alone."""

    nats_server_key: str | None = None
    """For `synthd bus config`: the file of that certificate's private key on the server's machine."""

    nats_client_ca: str | None = None
    """For `synthd bus config`: the file, on the server's machine, of the CA that signs the certificates of clients.
    With it every client must show one, also those of subscribers from outside (mutual TLS)."""

    bus_replicas: int = Field(default=1, ge=1, le=5)
    """On how many servers of the bus's cluster each stream and bucket lies: 3 bears the loss of one server, 5 of two. 2
    bears none: what is written needs more than half of them.
    `synthd bus init` adds replicas to what is there, and never takes any away."""

    log_max_bytes: int | None = Field(default=None, ge=16 << 20)
    """What the log may take on each server's disk. The server sets it aside, so that a full log leaves room for the
    rest; the gateways refuse new jobs and files before (`SYNTH_LOG_RESERVE`). Without it, what the server has."""

    audit_days: float = Field(default=AUDIT_DAYS, gt=0)
    """For how many days `synthd bus init` has the audit stream keep a record."""

    audit_records: int = Field(default=AUDIT_RECORDS, ge=1)
    """How many records the audit stream keeps of each organisation and kind, the newest: those of log-ins with unknown
    keys are one such. A record takes about 300 bytes."""

    orphan_age_s: float = Field(default=7 * 86_400.0, ge=0)
    """How many seconds old a blob that nothing refers to must be for `synthd bus orphans`: longer than anything that a
    service writes is under way."""


def _print_config() -> int:
    settings = BusSettings()
    try:
        nkeys = read_nkeys(settings.nats_nkeys or "")
        files = (settings.nats_server_cert, settings.nats_server_key, settings.nats_client_ca)
        tls = read_tls(*(file or "" for file in files))
    except UserError as error:
        _report(f"error: {error}")
        return 1
    sys.stdout.write(deployed_config(read_pools(settings.pools), nkeys=nkeys, tls=tls))
    return 0


async def _bus(action: str, folder: BackupFolder | None = None) -> int:
    settings = BusSettings()
    logs.configure("bus", level=settings.log_level)
    try:
        bus = await connect(settings, "bus")
    except UserError as error:
        _report(f"error: {error}")
        return 1
    try:
        wanted = topology(
            pools=read_pools(settings.pools),
            replicas=settings.bus_replicas,
            log_max_bytes=settings.log_max_bytes,
            audit_days=settings.audit_days,
            audit_records=settings.audit_records,
        )
        if folder is not None:
            return await _copy_cluster(action, bus, BlobStore.open(settings.blob_url), folder, wanted)
        if action == "init":
            try:
                await admit_log(bus)
                await provision(bus.js, wanted)
                # The one that was made just now.
                await admit_log(bus)
            except UserError as error:
                sys.stderr.write(f"error: {error}\n")
                return 1
            return 0
        differences = await drift(bus.js, wanted)
        for line in differences:
            sys.stdout.write(line + "\n")
        return 1 if differences else 0
    finally:
        await bus.close()


class _Parts(NamedTuple):
    settings: BusSettings
    bus: Connection
    blobs: BlobStore


async def _tidy(work: Callable[[_Parts], Awaitable[str]]) -> int:
    """Do this on the cluster and print what it says; 1 where it is refused or fails."""
    settings = BusSettings()
    logs.configure("bus", level=settings.log_level)
    try:
        bus = await connect(settings, "bus")
        try:
            sys.stdout.write(await work(_Parts(settings, bus, BlobStore.open(settings.blob_url))) + "\n")
        finally:
            await bus.close()
    except SynthError as error:
        _report(f"error: {error}")
        return 1
    except (NatsError, JetStreamError, TimeoutError) as error:
        _report(
            f"error: the bus does not do it ({error!r}): look whether `synthd bus check` is content, then try again"
        )
        return 1
    return 0


async def _archive(parts: _Parts, folder: Path, org: str, job: str | None = None) -> str:
    made = await archive(parts.bus, parts.blobs, org, job, folder, report=_report)
    for key in made.missing:
        _report(f"missing in the cluster: {key}")
    return f"archived: {made.events} events, {made.blobs} blobs, {made.bytes} bytes; {len(made.missing)} are missing"


async def _erase(parts: _Parts, org: str, job: str | None = None) -> str:
    if job is not None:
        done = await erase_job(parts.bus, parts.blobs, org, job, report=_report)
    else:
        # It reads nothing that is sealed.
        secrets = SecretStore(parts.bus, ServiceSecrets("bus", {}))
        done = await erase_organisation(parts.bus, parts.blobs, secrets, OrgId(org), report=_report)
    kept = f"{done.keys} keys, {done.records} audit records, {done.blobs} blobs"
    return f"erased: {done.events} events, {done.letters} dead letters, {kept}"


async def _sweep(parts: _Parts) -> NoReturn:
    await Sweeper(parts.bus, parts.blobs).run()


async def _reseal(parts: _Parts) -> str:
    done = await Resealer(parts.bus, parts.settings.secrets_of("bus")).reseal()
    kept = f"{done.current} were under the current secret"
    return f"{done.sealed} records sealed again, {kept}; {done.grants} grants of chat moved"


def _print_secrets(service: str | None = None) -> int:
    """One service's secrets as its setting, or each one's under the name that docker-compose.yml has for it."""
    # From the cluster's secret alone: where it runs, `synthd bus` may have secrets of its own.
    settings = BusSettings(secrets=SecretStr(""))
    try:
        if service is not None:
            sys.stdout.write(f"{SERVICE_SECRETS}={settings.secrets_of(service).text()}\n")
            return 0
        for name in NEEDS:
            if text := settings.secrets_of(name).text():
                sys.stdout.write(f"{secrets_variable(name)}={text}\n")
    except SynthError as error:
        _report(f"error: {error}")
        return 1
    return 0


async def _collect(parts: _Parts, *, delete: bool) -> str:
    older = timedelta(seconds=parts.settings.orphan_age_s)
    found = await find_orphans(parts.bus, parts.blobs, older_than=older)
    for orphan in found:
        sys.stdout.write(f"{orphan.size}\t{orphan.uri}\n")
    said = f"{len(found)} blobs that nothing refers to, {sum(orphan.size for orphan in found)} bytes"
    return f"{said}; {await delete_orphans(parts.blobs, found, older_than=older)} deleted" if delete else said


async def _list_newer(parts: _Parts, *, drop: bool) -> str:
    found = await find_newer_events(parts.bus)
    for event in found:
        schema = f"schema {event.schema}" if event.declared else f"schema {event.schema}, which no version had declared"
        sys.stdout.write(f"{event.seq}\t{event.time.isoformat()}\t{ascii(event.subject)[1:-1]}\t{schema}\n")
    said = f"{len(found)} events that say that a newer version wrote them"
    if not drop:
        return said
    return f"{said}; {await drop_newer_events(parts.bus, found)} dropped: restart the services that met them"


def _report(line: str) -> None:
    sys.stderr.write(line + "\n")


async def _copy_cluster(
    action: str, bus: Connection, blobs: BlobStore, folder: BackupFolder, wanted: BusTopology
) -> int:
    try:
        if action == "restore":
            await load_cluster(bus, blobs, folder, wanted, report=_report)
            return 0
        manifest = await save_cluster(bus, blobs, folder, report=_report)
    except SynthError as error:
        _report(f"error: {error}")
        return 1
    for key in manifest.missing:
        _report(f"missing in the cluster: {key}")
    return 1 if manifest.missing else 0
