"""Ids that follow from their inputs: the same submission, file or rollout has the same id at every replica."""

from __future__ import annotations

from synth.ids import JobId, OrgId, file_id_for, job_id_for, rollout_id_for

ORG, OTHER = OrgId("org_1"), OrgId("org_2")


def test_a_submission_is_one_job_for_its_organisation_route_and_key() -> None:
    first = job_id_for(ORG, "/api/jobs", "key")
    assert first == job_id_for(ORG, "/api/jobs", "key")
    others = [
        job_id_for(OTHER, "/api/jobs", "key"),
        job_id_for(ORG, "/v1/jobs", "key"),
        job_id_for(ORG, "/api/jobs", "k"),
    ]
    assert len({first, *others}) == 4


def test_the_same_bytes_are_one_file_of_each_organisation() -> None:
    assert file_id_for(ORG, "ab") == file_id_for(ORG, "ab")
    assert len({file_id_for(ORG, "ab"), file_id_for(OTHER, "ab"), file_id_for(ORG, "ac")}) == 3


def test_a_rollout_keeps_its_id_at_the_next_collector() -> None:
    job = JobId("job_1")
    assert rollout_id_for(job, "train", 3, 17) == "job_1_t3_17"
    assert rollout_id_for(job, "eval", 3, 17) == "job_1_e3_17"
