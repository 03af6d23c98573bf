"""Jobs found by what they are named and tagged, within a time; and what an organisation keeps, as it changes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from synth.bus.recorded import Recorded, encode, from_parts
from synth.events import (
    BlobRef,
    FileDeleted,
    FileReady,
    FileUploaded,
    JobCreated,
    JobDeleted,
    JobValidated,
    TrainLogged,
)
from synth.events.catalogue import Event
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables.org_totals import pending_files, stored_bytes

ORG = "org_a"
START = datetime(2026, 1, 1, tzinfo=UTC)
TAGS = {"owner": "ada", "rank": 8, "lr": 0.1, "sweep": True, "nothing": None, "parts": [1, "a"]}


class Log:
    """A read model, and the events that it was given."""

    def __init__(self, folder: Path) -> None:
        self.model = ReadModel(folder / "m.db")
        self.model.prepare(stream="s", last_seq=10**9)
        self.seq = 0

    def add(self, type_: str, key: str, event: Event, *, org: str = ORG) -> Recorded:
        self.seq += 1
        time = START + timedelta(seconds=self.seq)
        recorded = from_parts(f"{type_}.{org}.{key}", encode(event), None, seq=self.seq, time=time)
        self.model.apply([recorded])
        return recorded

    def job(self, key: str, *, name: str = "a.toml", tags: dict[str, object] | None = None, **metadata: object) -> None:
        self.add("job.created", key, JobCreated(config="", config_name=name, body_sha256="0", metadata=metadata))
        if tags is not None:
            job = {"kind": "sft", "tags": tags, "label": f"label of {key}"}
            self.add("job.validated", key, JobValidated(job=job, origins={}, warnings=[]))

    def matching(self, wanted: JobFilter, org: str = ORG) -> list[str]:
        here = [row.job.id for row in self.model.jobs(org, limit=100, wanted=wanted)]
        elsewhere = self.model.jobs_within(60, org, limit=100, wanted=wanted, before=None)
        assert [row.job.id for row in elsewhere] == here
        return here


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "jobs"),
    [
        (JobFilter(metadata={"team": "a"}), ["job_1"]),
        (JobFilter(metadata={"team": "a", "run": "7"}), []),
        (JobFilter(metadata={"team": "b"}), ["job_2"]),
        (JobFilter(tags={"owner": "ada"}), ["job_2"]),
        (JobFilter(tags={"rank": "8", "lr": "0.1", "sweep": "true"}), ["job_2"]),
        (JobFilter(tags={"parts": '[1,"a"]'}), ["job_2"]),
        (JobFilter(tags={"nothing": "null"}), []),
        (JobFilter(tags={"team": "a"}), []),
        (JobFilter(name="a.toml"), ["job_2", "job_1"]),
        (JobFilter(name="configs/a.toml"), ["job_2"]),
        (JobFilter(name="toml"), []),
        (JobFilter(name="label of job_2"), ["job_2"]),
        (JobFilter(uses=["file_x"]), []),
    ],
)
def test_a_job_is_found_by_metadata_tags_and_names(log: Log, wanted: JobFilter, jobs: list[str]):
    log.job("job_1", team="a", run=7)
    log.job("job_2", name="my/configs/a.toml", tags=TAGS, team="b")
    assert log.matching(wanted) == jobs
    assert log.matching(wanted, org="org_b") == []


def test_a_list_has_every_job_of_its_organisation_and_none_of_another(log: Log):
    log.job("job_1")
    log.job("job_2")
    assert log.matching(JobFilter()) == ["job_2", "job_1"]
    assert log.matching(JobFilter(), org="org_b") == []


def test_a_deleted_job_is_found_by_nothing(log: Log):
    log.job("job_1", tags={"a": "b"}, team="a")
    log.add("job.deleted", "job_1", JobDeleted(requested_by="k"))
    assert log.model.db.execute("SELECT count(*) FROM pairs").fetchone() == (0,)


def test_a_query_that_takes_too_long_ends(log: Log, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("synth.gateway.read_model.database_file._INSTRUCTIONS", 100)
    for i in range(30):
        log.job(f"job_{i}", team="a")
    with pytest.raises(TimeoutError, match="more than 0 s"):
        log.model.jobs_within(0, ORG, limit=1, wanted=JobFilter(metadata={"team": "a"}, prefix="x"), before=None)


def test_what_an_organisation_keeps_is_the_sum_of_its_files_and_logs(log: Log):
    rng = random.Random(7)
    files: dict[str, tuple[int, bool, int]] = {}
    logs: dict[str, int] = {}
    for i in range(300):
        known, kind = rng.choice([*files, ""]), rng.randrange(5)
        if kind < 2 or not known:
            size, id = rng.randrange(1000), f"file_{i}"
            blob = BlobRef(uri=f"blob://{i}", size=size, sha256="0" * 64)
            files[id] = size, True, log.add("file.uploaded", id, FileUploaded(name="a", purpose="p", blob=blob)).seq
        elif kind == 2:
            log.add("file.ready", known, FileReady(rows=1, messages=2, characters=3, tokens=1))
            files[known] = files[known][0], False, files[known][2]
        elif kind == 3:
            log.add("file.deleted", known, FileDeleted(requested_by="k", uploaded_seq=files.pop(known)[2]))
        else:
            id = f"job_{rng.randrange(5)}"
            if id not in logs:
                log.job(id)
            if rng.random() < 0.2 and id in logs:
                log.add("job.deleted", id, JobDeleted(requested_by="k"))
                del logs[id]
            else:
                logs[id] = logs.get(id, 0) + rng.randrange(100)
                blob = BlobRef(uri="blob://l", size=1, sha256="0" * 64)
                log.add("train.logged", id, TrainLogged(blob=blob, bytes=logs[id]))
        assert stored_bytes(log.model.db, ORG) == sum(size for size, *_ in files.values()) + sum(logs.values())
        assert pending_files(log.model.db, ORG) == sum(pending for _, pending, _ in files.values())
    assert stored_bytes(log.model.db, "org_b") == 0
