"""The catalogue and the topology agree, and the house rules that no linter knows hold."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import msgspec
import pytest

from synth.bus.server.permissions import may_publish
from synth.bus.server.topology import EVENTS, WORK, queue_name, roles_of, task_queue_name, topology
from synth.events.catalogue import CATALOGUE, SERVICES, Reading, Role, Write, spec_of, subject_of
from synth.jobs.lifecycle import RESUMED, TERMINAL_FACTS
from synth.work import TASKS, Task

ROOT = Path(__file__).parents[3]
_TYPE = re.compile(r"[a-z]+\.[a-z_]+")


def publishers(subject: str) -> set[str]:
    """The services whose user on the bus may publish to this subject."""

    def covers(allowed: str) -> bool:
        return subject.startswith(allowed.removesuffix(">")) if allowed.endswith(">") else subject == allowed

    return {service for service in SERVICES if any(covers(a) for a in may_publish(service, ("default",)))}


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=list(CATALOGUE))
def test_an_event_has_exactly_one_publisher(spec):
    expected = {s for s in SERVICES if spec.by in roles_of(s)}
    assert publishers(f"{spec.type}.org_a.job_a") == expected
    # Whoever holds a job's fenced attempt plays the owner: the trainer of a training, the collector of an evaluation.
    assert expected == ({"trainer", "rollouts"} if spec.by is Role.OWNER else {spec.by.value})


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=list(CATALOGUE))
def test_an_event_travels_on_a_well_formed_subject(spec):
    assert _TYPE.fullmatch(spec.type)
    assert subject_of(spec.event, "org_a", "job_a").split(".") == [*spec.type.split("."), "org_a", "job_a"]
    assert spec_of(spec.event) is spec
    streams = {s.name: s.subjects for s in topology().streams}
    assert f"{spec.type.split('.')[0]}.>" in (streams[EVENTS] or [])


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=list(CATALOGUE))
def test_lifecycle_facts_alone_are_compare_and_set(spec):
    # A job is deleted when its lifecycle is over.
    assert (spec.write is Write.CAS) == (spec.type.startswith("job.") and spec.type != "job.deleted")


def test_what_ends_a_job_or_its_term_is_followed_by_those_that_collect_and_serve():
    # Both follow `job.*` of their job until its status is over; a job that is rejected or refused has no tasks yet.
    ending = (TERMINAL_FACTS | {"job.paused", "job.parked", RESUMED}) - {"job.rejected", "job.refused"}
    followers = {
        spec.type
        for spec in CATALOGUE.values()
        if spec.type.startswith("job.")
        and all(spec.reads.get(role) is Reading.FOLLOW for role in (Role.ROLLOUTS, Role.INFERENCE))
    }
    assert followers == ending | {"job.validated", "job.verified"}


def test_every_queue_reading_has_its_consumer_and_there_is_no_other():
    wanted = {
        (EVENTS, queue_name(reader, spec.type), f"{spec.type}.>")
        for spec in CATALOGUE.values()
        for reader, reading in spec.reads.items()
        if reading is Reading.QUEUE
    }
    wanted |= {(WORK, f"retry-{queue}", f"work.retry.{queue}.>") for _, queue, _ in wanted}
    wanted |= {
        (WORK, task_queue_name(kind, pool), f"work.{kind}.{pool}.>") for kind in TASKS for pool in ("default", "gpu")
    }
    found = {(c.stream, c.name, c.config.filter_subject) for c in topology(pools=("default", "gpu")).consumers}
    assert found == wanted


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_is_queued_by_those_that_the_table_names(kind):
    _, queuers = TASKS[kind]
    subject = Task(kind=kind, pool="default", org="org_a", job_id="job_a", term=2, index=0).subject
    assert subject == f"work.{kind}.default.org_a.job_a.2.0"
    assert publishers(subject) == {role.value for role in queuers}


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=list(CATALOGUE))
def test_an_event_can_be_written_and_read_by_its_schema(spec):
    schema = msgspec.json.schema(spec.event)
    assert spec.event.__doc__
    assert schema["$defs"][spec.event.__name__]["type"] == "object"


def test_no_file_is_longer_than_400_lines():
    sources = [
        p for top in ("shared", "services", "task_apps", "tests", "benchmarks") for p in (ROOT / top).rglob("*.py")
    ]
    too_long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > 400}
    assert too_long == {}


def test_the_namespace_package_has_no_init_of_its_own():
    assert not (ROOT / "shared/synth/__init__.py").exists()
    assert not (ROOT / "services/synth/__init__.py").exists()


def test_imports_keep_to_the_architecture():
    linter = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run(
        [linter, "--no-cache"],
        cwd=ROOT,
        env={"PYTHONPATH": "shared:services", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
