"""Identifiers: how they are made, and the types that keep them apart."""

from __future__ import annotations

import hashlib
import secrets
from typing import NewType

OrgId = NewType("OrgId", str)
JobId = NewType("JobId", str)
FileId = NewType("FileId", str)
ModelId = NewType("ModelId", str)
RolloutId = NewType("RolloutId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def _token(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def new_org_id() -> OrgId:
    """Generate an organisation's token: it is a part of subjects, so it is never a name (decision 8)."""
    return OrgId(f"org_{_token(12)}")


def new_job_id() -> JobId:
    """Generate a random job id, for a submit without an idempotency key."""
    return JobId(f"job_{_token(16)}")


def job_id_for(org: OrgId, route: str, key: str) -> JobId:
    """Return the job id of an idempotency key: the same submit twice is one job."""
    digest = hashlib.sha256(f"{org}\n{route}\n{key}".encode()).hexdigest()
    return JobId(f"job_{digest[:16]}")


def file_id_for(org: OrgId, sha256: str) -> FileId:
    """Return the id of a file: the same bytes in the same organisation are one file (decision 20)."""
    digest = hashlib.sha256(f"{org}\n{sha256}".encode()).hexdigest()
    return FileId(f"file_{digest[:16]}")


def rollout_id_for(job: JobId, mode: str, iteration: int, index: int) -> RolloutId:
    """Return an id as `<job>_t3_17`: rollout 17 of the job's training iteration 3 (`e` for evaluation).

    Deterministic, so that a collector that takes over gives each rollout the id it already has in the log.
    """
    return RolloutId(f"{job}_{mode[0]}{iteration}_{index}")
