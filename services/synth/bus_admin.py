"""`synthd bus …` and `synthd secrets`: what an operator does with the bus, the log, the blobs and the secrets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from nats.errors import Error as NatsError
from obstore.exceptions import BaseError
from pydantic import Field, SecretStr

from synth.backup.archive import archive
from synth.backup.folder import BackupFolder
from synth.backup.load import load_cluster
from synth.backup.save import save_cluster
from synth.blobs import BlobStore
from synth.bus.access.nkeys import NkeyKind, UserKey, new_seed
from synth.bus.connection import Connection, connect
from synth.bus.history.log_format import admit_log
from synth.bus.history.store_identity import claim_store, open_store
from synth.bus.kv.reseal import Resealer
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.account_key import AccountKey
from synth.bus.server.deployed import ISSUER_VARIABLE, deployed_config, read_nkeys, read_tls
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import AUDIT_DAYS, AUDIT_RECORDS, DEFAULT_POOL, BusTopology, read_pools, topology
from synth.bus.server.work_queue import drop_unreadable_work
from synth.erasure.erase import erase_job, erase_organisation
from synth.erasure.newer_events import drop_newer_events, find_newer_events
from synth.erasure.orphans import delete_orphans, find_orphans
from synth.erasure.sweep import Sweeper
from synth.errors import SynthError
from synth.ids import OrgId
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.service_secrets import NEEDS, SERVICE_SECRETS, ServiceSecrets, secrets_variable

app = typer.Typer(no_args_is_help=True, help="The bus, the log and the blobs, as the user `bus`.")
Organisation = Annotated[str, typer.Argument(metavar="ORG", help="An organisation's id.")]
Job = Annotated[str | None, typer.Argument(metavar="JOB", help="A job's id; without it, all of the organisation.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder.")]


def _check_user(name: str | None) -> str | None:
    if name is not None and name not in NEEDS:
        raise typer.BadParameter(f"there is no user {name!r}; one of {', '.join(NEEDS)}")
    return name


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
    With it every client must show one, also subscribers from outside (mutual TLS)."""

    bus_replicas: int = Field(default=1, ge=1, le=5)
    """On how many servers of the bus's cluster each stream and bucket lies: 3 bears the loss of one server, 5 of two. 2
    bears none: each write needs more than half of them.
    `synthd bus init` adds replicas to existing streams, and never removes any."""

    log_max_bytes: int | None = Field(default=None, ge=16 << 20)
    """What the log may take on each server's disk. The server sets it aside, so that a full log leaves room for the
    rest; the gateways refuse new jobs and files before (`SYNTH_LOG_RESERVE`). Without it, what the server has."""

    audit_days: float = Field(default=AUDIT_DAYS, gt=0)
    """For how many days `synthd bus init` has the audit stream keep a record."""

    audit_records: int = Field(default=AUDIT_RECORDS, ge=1)
    """How many records the audit stream keeps of each organisation and kind, the newest. Log-ins with unknown keys
    are one kind. A record takes about 300 bytes."""

    orphan_age_s: float = Field(default=7 * 86_400.0, ge=0)
    """How many seconds old a blob that nothing refers to must be for `synthd bus orphans`: longer than anything that a
    service writes is under way."""


class _Parts(NamedTuple):
    settings: BusSettings
    bus: Connection

    async def blobs(self) -> BlobStore:
        return await open_store(self.bus, self.settings.blob_url)

    @property
    def topology(self) -> BusTopology:
        settings = self.settings
        return topology(
            pools=read_pools(settings.pools),
            replicas=settings.bus_replicas,
            log_max_bytes=settings.log_max_bytes,
            audit_days=settings.audit_days,
            audit_records=settings.audit_records,
        )


def _run(work: Callable[[_Parts], Awaitable[int | None]]) -> int:
    """Run this on the cluster; returns its exit code, 1 if it is refused or fails."""

    async def run() -> int:
        settings = BusSettings()
        logs.configure("bus", level=settings.log_level)
        bus = await connect(settings, "bus")
        try:
            return await work(_Parts(settings, bus)) or 0
        finally:
            await bus.close()

    try:
        return asyncio.run(run())
    except SynthError as error:
        _report(f"error: {error}")
    except (NatsError, TimeoutError) as error:
        _report(f"error: the bus does not do it ({error!r}): check it with `synthd bus check`, then try again")
    except (BaseError, OSError) as error:
        _report(f"error: {error}")
    return 1


@app.command()
def init() -> int:
    """Make the streams, the consumers and the buckets of this version, or complete them. It is safe to repeat."""

    async def work(parts: _Parts) -> None:
        await admit_log(parts.bus)
        await provision(parts.bus.js, parts.topology)
        await drop_unreadable_work(parts.bus.js)
        await claim_store(parts.bus, BlobStore.open(parts.settings.blob_url))
        # The one that was made just now.
        await admit_log(parts.bus)

    return _run(work)


@app.command()
def check() -> int:
    """Print what the bus lacks or has in another form than this version. Exit 0 only if there is nothing."""

    async def work(parts: _Parts) -> int:
        differences = await drift(parts.bus.js, parts.topology)
        for line in differences:
            _print(line)
        return 1 if differences else 0

    return _run(work)


@app.command()
def config() -> None:
    """Print the configuration of nats-server, with the users and their permissions."""
    settings = BusSettings()
    nkeys = read_nkeys(settings.nats_nkeys or "")
    files = (settings.nats_server_cert, settings.nats_server_key, settings.nats_client_ca)
    tls = read_tls(*(file or "" for file in files))
    sys.stdout.write(deployed_config(read_pools(settings.pools), nkeys=nkeys, tls=tls))


@app.command()
def issuer() -> None:
    """Print a new pair of keys, with which the gateways let subscribers from outside in."""
    seed = AccountKey.new_seed()
    _print(f"SYNTH_NATS_ISSUER_SEED={seed}\n{ISSUER_VARIABLE}={AccountKey(seed).public}")


@app.command()
def nkey(user: Annotated[str, typer.Argument(callback=_check_user, help=f"One of {', '.join(NEEDS)}.")]) -> None:
    """Print a new nkey, by which a user of the bus logs in without a password."""
    seed = new_seed(NkeyKind.USER)
    _print(f"SYNTH_NATS_SEED={seed}\nSYNTH_NATS_NKEYS={user}={UserKey(seed).public}")


@app.command()
def backup(folder: Folder) -> int:
    """Save the log, the keys and the blobs of a running cluster into a folder."""

    async def work(parts: _Parts) -> int:
        manifest = await save_cluster(parts.bus, await parts.blobs(), BackupFolder(folder), report=_report)
        _report_missing(manifest.missing)
        return 1 if manifest.missing else 0

    return _run(work)


@app.command()
def restore(folder: Folder) -> int:
    """Put what `backup` saved into an empty cluster."""

    async def work(parts: _Parts) -> None:
        blobs = BlobStore.open(parts.settings.blob_url)
        await load_cluster(parts.bus, blobs, BackupFolder(folder), parts.topology, report=_report)

    return _run(work)


@app.command("archive")
def archive_command(folder: Folder, org: Organisation, job: Job = None) -> int:
    """Copy everything of an organisation, or of a job that has ended, into a folder."""

    async def work(parts: _Parts) -> None:
        made = await archive(parts.bus, await parts.blobs(), org, job, folder, report=_report)
        _report_missing(made.missing)
        size = f"{made.events} events, {made.blobs} blobs, {made.bytes} bytes"
        _print(f"archived: {size}; {len(made.missing)} are missing")

    return _run(work)


@app.command()
def erase(org: Organisation, job: Job = None) -> int:
    """Erase a deleted job from the log, or an organisation whose jobs, files and keys are deleted."""

    async def work(parts: _Parts) -> None:
        if job is not None:
            done = await erase_job(parts.bus, await parts.blobs(), org, job, report=_report)
        else:
            # It reads nothing that is sealed.
            stored = SecretStore(parts.bus, ServiceSecrets("bus", {}))
            done = await erase_organisation(parts.bus, await parts.blobs(), stored, OrgId(org), report=_report)
        kept = f"{done.keys} keys, {done.records} audit records, {done.blobs} blobs"
        _print(f"erased: {done.events} events, {done.letters} dead letters, {kept}")

    return _run(work)


@app.command()
def sweep() -> int:
    """Erase each job and file that is deleted, until SIGTERM."""

    async def work(parts: _Parts) -> None:
        await Sweeper(parts.bus, await parts.blobs()).run()

    return _run(work)


@app.command()
def reseal() -> int:
    """Seal every stored secret with the current cluster secret, after a rotation."""

    async def work(parts: _Parts) -> None:
        done = await Resealer(parts.bus, parts.settings.secrets_of("bus")).reseal()
        kept = f"{done.current} were under the current secret"
        _print(f"{done.sealed} records sealed again, {kept}; {done.grants} grants of chat moved")

    return _run(work)


@app.command()
def orphans(delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False) -> int:
    """List the blobs that nothing refers to, with their bytes."""

    async def work(parts: _Parts) -> None:
        older = timedelta(seconds=parts.settings.orphan_age_s)
        blobs = await parts.blobs()
        listed = await find_orphans(parts.bus, blobs, older_than=older)
        for orphan in listed:
            _print(f"{orphan.size}\t{orphan.uri}")
        total = f"{len(listed)} blobs that nothing refers to, {sum(orphan.size for orphan in listed)} bytes"
        if delete:
            total += f"; {await delete_orphans(blobs, listed, older_than=older)} deleted"
        _print(total)

    return _run(work)


@app.command()
def newer(drop: Annotated[bool, typer.Option("--drop", help="Remove them from the log.")] = False) -> int:
    """List the events that only a newer version can read."""

    async def work(parts: _Parts) -> None:
        listed = await find_newer_events(parts.bus)
        for event in listed:
            schema = f"schema {event.schema}" + ("" if event.declared else ", which no version had declared")
            _print(f"{event.seq}\t{event.time.isoformat()}\t{ascii(event.subject)[1:-1]}\t{schema}")
        total = f"{len(listed)} events that say that a newer version wrote them"
        if drop:
            total += f"; {await drop_newer_events(parts.bus, listed)} dropped: restart the services that met them"
        _print(total)

    return _run(work)


def secrets(
    service: Annotated[
        str | None, typer.Argument(callback=_check_user, help="A service, or `bus`; without it, all of them.")
    ] = None,
) -> int:
    """Print what a service needs of the cluster's secrets, as its setting; of all, as docker-compose.yml names them."""
    # From the cluster's secret alone: where it runs, `synthd bus` may have secrets of its own.
    settings = BusSettings(secrets=SecretStr(""))
    try:
        if service is not None:
            _print(f"{SERVICE_SECRETS}={settings.secrets_of(service).text()}")
            return 0
        for name in NEEDS:
            if text := settings.secrets_of(name).text():
                _print(f"{secrets_variable(name)}={text}")
    except SynthError as error:
        _report(f"error: {error}")
        return 1
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _report(line: str) -> None:
    sys.stderr.write(line + "\n")


def _report_missing(keys: Iterable[str]) -> None:
    for key in keys:
        _report(f"missing in the cluster: {key}")
