"""The read model: the API's data in SQLite, projected from the log.

Invariants. The events of a batch and their last sequence are committed together, so a process killed at any moment
continues from its file's position (`projected_file`). A file that lacks an event that this version can read is rebuilt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from synth.api.schemas import Checkpoint, Point
from synth.bus.recorded import Recorded
from synth.events import (
    BlobExpired,
    BlobRef,
    JobCreated,
    JobDeleted,
    JobValidated,
    Logged,
    ModelDeleted,
    ModelPublished,
)
from synth.gateway.read_model import database_file
from synth.gateway.read_model.artifacts import CheckpointRow, ModelRow, project_checkpoint, project_model
from synth.gateway.read_model.batch import Batch, Row, add_size
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.projected_file import ProjectedFile
from synth.gateway.read_model.projection import FileRow, JobRow, Trash, apply_to_file, apply_to_job
from synth.gateway.read_model.tables import (
    device_time,
    job_metrics,
    job_pairs,
    judged_rewards,
    newer_events,
    org_totals,
    traces,
)
from synth.jobs.lifecycle import State
from synth.models import parse_finetuned

_VERSION = 21
_SCHEMA = f"""
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, org TEXT NOT NULL, created INTEGER NOT NULL, state TEXT NOT NULL, kind TEXT,
    live INTEGER NOT NULL, created_at REAL NOT NULL, row BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_of_org ON jobs (org, created);
CREATE INDEX live_jobs ON jobs (created) WHERE live;
CREATE INDEX live_jobs_of_org ON jobs (org, state) WHERE live;
CREATE TABLE texts (
    id TEXT PRIMARY KEY, config TEXT NOT NULL, config_blob BLOB NOT NULL, body_sha256 TEXT NOT NULL, validated BLOB
) WITHOUT ROWID;
CREATE TABLE files (
    id TEXT PRIMARY KEY, org TEXT NOT NULL, created INTEGER NOT NULL, purpose TEXT NOT NULL, row BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX files_of_org ON files (org, created);
CREATE TABLE uses (what TEXT NOT NULL, job TEXT NOT NULL, PRIMARY KEY (what, job)) WITHOUT ROWID;
CREATE TABLE deleted (id TEXT PRIMARY KEY, org TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trash (deleted INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE models (
    id TEXT PRIMARY KEY, org TEXT NOT NULL, created INTEGER NOT NULL, base TEXT, prefix TEXT, row BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX models_of_org ON models (org, created);
CREATE TABLE checkpoints (
    job TEXT NOT NULL, step INTEGER NOT NULL, model TEXT NOT NULL, tree TEXT NOT NULL, row BLOB NOT NULL,
    PRIMARY KEY (job, step)
) WITHOUT ROWID;
{job_metrics.SCHEMA}{traces.SCHEMA}{judged_rewards.SCHEMA}{newer_events.SCHEMA}{device_time.SCHEMA}
{job_pairs.SCHEMA}{org_totals.SCHEMA}"""
_OF_JOB = ("uses", "pairs", "checkpoints", "metrics", "traces", "judged", "device_time")
_OF_ORG = ("device_days", "org_totals", "unerased")
_TABLES = ("jobs", "texts", "files", "deleted", "trash", "models", "newer", *_OF_ORG, *_OF_JOB)


class JobTexts(NamedTuple):
    """A job's long texts, kept apart from the fields that change at every event. validated: `job` and `origins`.

    config_blob: the blob of its configuration, if it is not in the log.
    """

    config: str
    config_blob: BlobRef | None
    body_sha256: str
    validated: dict[str, Any] | None


class ReadModel(ProjectedFile):
    """The read model's SQLite file. Reads and commits take microseconds, so they run on the event loop."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, version=_VERSION, schema=_SCHEMA, tables=_TABLES)

    def apply(self, events: Iterable[Recorded]) -> None:
        """Project a batch of events in one transaction. Raises `Permanent` if another process writes this file."""
        batch, reached, newest = Batch(self.db, self.find), self.applied, None
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for event in events:
                if event.seq > reached:
                    self._apply(batch, event)
                    reached = event.seq
                    newest = newest if event.expires else event
            batch.write()
            self._move(reached, newest)
            self._db.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has already rolled back.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.applied = reached

    def find(self, table: str, kind: type[Row], id: str) -> Row | None:
        """Return the row with this id, of any organisation."""
        result = self._db.execute(f"SELECT row FROM {table} WHERE id = ?", (id,)).fetchone()
        return msgspec.json.decode(result[0], type=kind) if result else None

    def job(self, org: str, id: str) -> JobRow | None:
        """Return a job of this organisation."""
        row = self.find("jobs", JobRow, id)
        return row if row and row.org == org else None

    def texts(self, id: str) -> JobTexts | None:
        """Return a job's configuration as sent, and as validated."""
        query = "SELECT config, config_blob, body_sha256, validated FROM texts WHERE id = ?"
        row = self._db.execute(query, (id,)).fetchone()
        if not row:
            return None
        config, blob, digest, validated = row
        blob = msgspec.json.decode(blob, type=BlobRef | None)
        return JobTexts(config, blob, digest, msgspec.json.decode(validated) if validated else None)

    def jobs(self, org: str, *, limit: int, wanted: JobFilter, before: int | None = None) -> list[JobRow]:
        """Return jobs of this organisation, newest first. before: only jobs created before this sequence."""
        condition, values = wanted.sql_condition(org)
        return _page(self._db, "jobs", JobRow, f"org = ? AND {condition}", [org, *values], limit=limit, before=before)

    def jobs_within(
        self, seconds: float, org: str, *, limit: int, wanted: JobFilter, before: int | None
    ) -> list[JobRow]:
        """Do the same as `jobs` on a separate connection, for another thread. Raises `TimeoutError`."""
        condition, values = wanted.sql_condition(org)
        with database_file.reading(self._path, seconds) as db:
            return _page(db, "jobs", JobRow, f"org = ? AND {condition}", [org, *values], limit=limit, before=before)

    def first_equal(self, org: str, id: str, *, within_s: float) -> str | None:
        """Return the first job of this organisation with the submission of job `id`, within the seconds before it."""
        job, texts = self.job(org, id), self.texts(id)
        if job is None or texts is None:
            return None
        since = job.job.created_at.timestamp() - within_s
        query = (
            "SELECT jobs.id, created_at, body_sha256 FROM jobs JOIN texts ON texts.id = jobs.id "
            "WHERE org = ? AND created < ? ORDER BY created DESC"
        )
        first = None
        # Read row by row, from the newest, back to the start of that time.
        for other, created_at, digest in self._db.execute(query, (org, job.created_seq)):
            if created_at < since:
                break
            if digest == texts.body_sha256:
                first = other
        return first

    def file(self, org: str, id: str) -> FileRow | None:
        """Return a file of this organisation."""
        row = self.find("files", FileRow, id)
        return row if row and row.org == org else None

    def files(
        self,
        org: str,
        *,
        limit: int,
        purpose: str | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[FileRow]:
        """Return files of this organisation, newest first; with `after`, the files uploaded after it, oldest first."""
        where, values = ("org = ?", [org]) if purpose is None else ("org = ? AND purpose = ?", [org, purpose])
        return _page(self._db, "files", FileRow, where, values, limit=limit, before=before, after=after)

    def is_deleted(self, org: str, id: str) -> bool:
        """Return whether a job or a model of this organisation existed and was deleted."""
        result = self._db.execute("SELECT org FROM deleted WHERE id = ?", (id.lower(),)).fetchone()
        return result is not None and result[0] == org

    def trash(self) -> list[Trash]:
        """Return the deleted items whose blobs may still be in the blob store, as far as this process knows."""
        result = self._db.execute("SELECT row FROM trash ORDER BY deleted").fetchall()
        return [msgspec.json.decode(row, type=Trash) for (row,) in result]

    def put_trash(self, trash: Trash) -> None:
        """Note the blobs of a deleted item, or the rest of them."""
        row = msgspec.json.encode(trash)
        self._db.execute("INSERT OR REPLACE INTO trash VALUES (?, ?)", (trash.deleted_seq, row))

    def delete_trash(self, trash: Trash) -> None:
        """Forget a deleted item whose blobs are removed."""
        self._db.execute("DELETE FROM trash WHERE deleted = ?", (trash.deleted_seq,))

    def kept_trees(self, org: str) -> set[str]:
        """Return the manifests of every model and checkpoint of an organisation, and of their base models."""
        rows = self._db.execute("SELECT row FROM models WHERE org = ?", (org,)).fetchall()
        kept = {tree for (row,) in rows for tree in msgspec.json.decode(row, type=ModelRow).trees}
        saved = "SELECT row FROM checkpoints WHERE job IN (SELECT id FROM jobs WHERE org = ?)"
        rows = self._db.execute(saved, (org,)).fetchall()
        return kept | {tree for (row,) in rows for tree in msgspec.json.decode(row, type=CheckpointRow).trees}

    def model(self, org: str, id: str) -> ModelRow | None:
        """Return a model that a job of this organisation made."""
        row = self.find("models", ModelRow, id)
        return row if row and row.org == org else None

    def models(
        self, org: str, *, limit: int, before: int | None = None, base: str | None = None, prefix: str | None = None
    ) -> list[ModelRow]:
        """Return models that jobs of this organisation made, newest first. base, prefix: only ids that contain them."""
        where, values = "org = ?", [org]
        for column, wanted in (("base", base), ("prefix", prefix)):
            if wanted is not None:
                where, values = f"{where} AND {column} = ?", [*values, wanted]
        return _page(self._db, "models", ModelRow, where, values, limit=limit, before=before)

    def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """Return the existing checkpoints of a job, newest first, each with the values of its step."""
        result = self._db.execute("SELECT row FROM checkpoints WHERE job = ? ORDER BY step DESC", (job_id,)).fetchall()
        rows = [msgspec.json.decode(row, type=CheckpointRow).checkpoint for (row,) in result]
        values = "SELECT name, value FROM metrics WHERE job = ? AND step = ?"
        return [
            msgspec.structs.replace(c, values=dict(self._db.execute(values, (job_id, c.step)).fetchall())) for c in rows
        ]

    def checkpoints_of_failed(self, *, before: float, limit: int) -> list[tuple[str, str, CheckpointRow]]:
        """Return checkpoints of jobs that failed before this Unix time, with their organisations and jobs."""
        result = self._db.execute(
            "SELECT jobs.org, jobs.id, checkpoints.row FROM checkpoints JOIN jobs ON jobs.id = checkpoints.job "
            "WHERE state = ? AND unixepoch(json_extract(CAST(jobs.row AS TEXT), '$.job.ended_at')) < ? LIMIT ?",
            (State.FAILED, before, limit),
        ).fetchall()
        return [(org, job, msgspec.json.decode(row, type=CheckpointRow)) for org, job, row in result]

    def checkpoint(self, org: str, model: str) -> CheckpointRow | None:
        """Return the checkpoint of this organisation that serves under this id."""
        named = parse_finetuned(model)
        if named is None or named.checkpoint is None:
            return None
        result = self._db.execute("SELECT row FROM checkpoints WHERE job = ? AND model = ?", (named.job_id, model))
        row = result.fetchone()
        checkpoint = msgspec.json.decode(row[0], type=CheckpointRow) if row else None
        return checkpoint if checkpoint and checkpoint.org == org else None

    def points(self, job_id: str, *, after_step: int, name: str | None, steps: int) -> tuple[list[Point], bool]:
        """Call `job_metrics.measured_points`: return a job's metrics by the step of their measurement."""
        return job_metrics.measured_points(self._db, job_id, after_step=after_step, name=name, steps=steps)

    def metric_names(self, job_id: str) -> list[str]:
        """Return the names of a job's metrics, sorted."""
        return job_metrics.metric_names(self._db, job_id)

    def published_points(
        self,
        job_id: str,
        *,
        after_step: int | None,
        name: str | None,
        steps: int,
        since: datetime | None = None,
        until: datetime | None = None,
        within_s: float,
    ) -> list[job_metrics.PublishedPoint]:
        """Call `job_metrics.published_points` on a separate connection, for another thread.

        It returns a job's metrics by the step of their publication. Raises `TimeoutError` after `within_s`.
        """
        with database_file.reading(self._path, within_s) as db:
            return job_metrics.published_points(
                db, job_id, after_step=after_step, name=name, steps=steps, since=since, until=until
            )

    def _sees_all(self) -> bool:
        return not newer_events.can_read_more(self._db)

    def first_left_out(self) -> int | None:
        """Call `newer_events.first_left_out`; return None also for a new file, and for a damaged file."""
        try:
            return newer_events.first_left_out(self._db)
        except database_file.ReadError:
            return None

    def newer_problem(self) -> str | None:
        """Call `newer_events.problem`: return the events that this version leaves out."""
        return newer_events.problem(self._db)

    def _apply(self, batch: Batch, event: Recorded) -> None:
        newer_events.note(self._db, event)
        if event.type.startswith("file."):
            before = batch.file(event.key)
            batch.files[event.key] = after = apply_to_file(before, event)
            if before is not None and after is None:
                self.note_deletion()
                self.put_trash(Trash(uris=before.uris, org=event.org, deleted_seq=event.seq))
            batch.count_file(before, event)
            return
        if isinstance(event.event, JobDeleted):
            self._delete_job(batch, event)
            return
        batch.jobs[event.key] = row = apply_to_job(batch.job(event.key), event)
        if row is None:
            batch.count_absent(None, event)
            if isinstance(event.event, Logged):
                # The log was written during the job's deletion.
                self.put_trash(Trash(folder=f"jobs/{event.key}", org=event.org, deleted_seq=event.seq))
            return
        batch.jobs[event.key] = row = add_size(row, event)
        device_time.record_holding(self._db, event, batch.sightings, state=row.job.state)
        fact = event.event
        if isinstance(fact, JobCreated | JobValidated | ModelPublished):
            named = {row.job.training_file, row.job.validation_file, row.job.source_model, row.job.model}
            named = {*named, row.job.linked_job_id} - {None}
            self._db.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", [(what, event.key) for what in named])
        if isinstance(fact, JobCreated):
            values = (event.key, fact.config, msgspec.json.encode(fact.config_blob), fact.body_sha256)
            self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?, ?, NULL)", values)
        elif isinstance(fact, JobValidated):
            validated = msgspec.json.encode({"job": fact.job, "origins": fact.origins})
            self._db.execute("UPDATE texts SET validated = ? WHERE id = ?", (validated, event.key))
        if model := project_model(event):
            id = model.model.id
            values = (id, model.org, model.created_seq, model.model.base, id.split(":")[0], msgspec.json.encode(model))
            self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?, ?)", values)
        if checkpoint := project_checkpoint(event):
            known = checkpoint.checkpoint
            values = (event.key, known.step, known.model, checkpoint.tree.uri, msgspec.json.encode(checkpoint))
            self._db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)", values)
            self._db.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (known.model, event.key))
        if isinstance(fact, ModelDeleted):
            self._db.execute("DELETE FROM models WHERE id = ?", (fact.model,))
            self._db.execute("DELETE FROM checkpoints WHERE job = ? AND model = ?", (event.key, fact.model))
            self._db.execute("INSERT OR REPLACE INTO deleted VALUES (?, ?)", (fact.model.lower(), event.org))
            if fact.tree is not None:
                self.put_trash(Trash(tree=fact.tree, org=event.org, deleted_seq=event.seq))
        if isinstance(fact, BlobExpired):
            self._db.executemany(
                "DELETE FROM checkpoints WHERE job = ? AND tree = ?", [(event.key, u) for u in fact.uris]
            )
        job_metrics.record_event(self._db, event, ended=row.ended_seq is not None)
        job_pairs.record_pairs(self._db, row.org, row.job, fact)
        traces.record_trace(self._db, event, row.job)
        judged_rewards.record_scores(self._db, event)

    def _delete_job(self, batch: Batch, event: Recorded) -> None:
        """Delete a job with its output, including its models."""
        self.note_deletion()
        # Subtract the job's part of its organisation's totals.
        batch.count_absent(batch.job(event.key), event)
        made = "org = ? AND json_extract(CAST(row AS TEXT), '$.model.job_id') = ?"
        models = self._db.execute(f"SELECT id FROM models WHERE {made}", (event.org, event.key)).fetchall()
        saved = self._db.execute("SELECT model FROM checkpoints WHERE job = ?", (event.key,)).fetchall()
        gone = [(id.lower(), event.org) for (id,) in [(event.key,), *models, *saved]]
        self._db.executemany("INSERT OR REPLACE INTO deleted VALUES (?, ?)", gone)
        self._db.execute(f"DELETE FROM models WHERE {made}", (event.org, event.key))
        self._db.execute("DELETE FROM texts WHERE id = ?", (event.key,))
        for table in _OF_JOB:
            self._db.execute(f"DELETE FROM {table} WHERE job = ?", (event.key,))
        batch.jobs[event.key] = None
        self.put_trash(Trash(folder=f"jobs/{event.key}", org=event.org, deleted_seq=event.seq))


def _page(
    db: sqlite3.Connection,
    table: str,
    kind: type[Row],
    where: str,
    values: list[Any],
    *,
    limit: int,
    before: int | None,
    after: int | None = None,
) -> list[Row]:
    for comparison, cursor in (("<", before), (">", after)):
        if cursor is not None:
            where, values = f"{where} AND created {comparison} ?", [*values, cursor]
    order = "DESC" if after is None else "ASC"
    query = f"SELECT row FROM {table} WHERE {where} ORDER BY created {order} LIMIT ?"
    return [msgspec.json.decode(row, type=kind) for (row,) in db.execute(query, (*values, limit)).fetchall()]
