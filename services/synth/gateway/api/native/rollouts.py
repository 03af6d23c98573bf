"""Routes of a job's rollouts: pages, and single rollouts with their transcripts."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.api.rollouts import (
    RolloutDetail,
    RolloutMode,
    RolloutPage,
    RolloutSort,
    RolloutSummary,
    RolloutTraining,
)
from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.errors import Problem
from synth.events import BlobRef, RolloutBatched
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.parameters import PageLimit
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.presentation.rollouts import group_members, rollout_view, training_view
from synth.gateway.read_model.rollout_log import (
    FoundRollout,
    RolloutQuery,
    find_rollout,
    parse_cursor,
    read_rollouts,
)
from synth.gateway.read_model.tables.judged_rewards import JudgedRewards
from synth.transcripts.batch_header import LENGTH_BYTES, BatchMeta, header_length, read_batch_meta

router = APIRouter(prefix="/api/jobs/{job_id}/rollouts", tags=["rollouts"])

#: `<job>_t3_17`, or without the job: rollout 17 of training iteration 3; `e` for an evaluation.
_ROLLOUT_ID = re.compile(
    r"(?:(?P<job>job_[0-9a-z]{1,64})_)?(?P<mode>[te])(?P<iteration>\d{1,9})_(?P<index>\d{1,9})", re.A
)
_MODES = {"t": "train", "e": "eval"}
_MAX_NUMBER = 1 << 53


@router.get("", summary="A job's rollouts", responses=returns(RolloutPage))
async def list_rollouts(
    job_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    mode: RolloutMode | None = None,
    iteration: Annotated[int | None, Query(ge=0, le=_MAX_NUMBER)] = None,
    seed: Annotated[int | None, Query(ge=-_MAX_NUMBER, le=_MAX_NUMBER)] = None,
    failed: Annotated[
        bool, Query(description="Only those that failed, by the environment or by the policy, or were late")
    ] = False,
    sort: Annotated[
        RolloutSort, Query(description="By the time of their end, or by reward; without one: not in `worst` and `best`")
    ] = "newest",
    limit: PageLimit = 20,
    after: Annotated[str | None, Query(max_length=64, description="Go on behind a page, by its `next`")] = None,
) -> Response:
    """List finished rollouts of training and evaluations. Continue with `?after=<next>` and the same parameters."""
    await gateway.job(caller.org, job_id)
    try:
        cursor = None if after is None else parse_cursor(after)
    except ValueError as error:
        problem = Problem(what=f"after is {after!r}", expected="the `next` of a page", where="after")
        raise ApiError(422, problem.text(), param="after", problems=[problem]) from error
    query = RolloutQuery(sort=sort, limit=limit, mode=mode, iteration=iteration, seed=seed, failed=failed, after=cursor)
    rewards = JudgedRewards.of(gateway.read_model.db, job_id)
    return json_response(await read_rollouts(gateway.bus, caller.org, job_id, query, rewards))


@router.get("/{rollout_id}", summary="One rollout, with its transcript", responses=returns(RolloutDetail))
async def get_rollout(job_id: str, rollout_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a rollout's transcript, its task app's answer, and how training used it.

    The id may lack the job: `t3_17` is rollout 17 of training iteration 3, `e3_17` is one of the evaluation there.
    """
    row = await gateway.job(caller.org, job_id)
    named = _ROLLOUT_ID.fullmatch(rollout_id)
    if named is None or named["job"] not in (None, job_id):
        raise _no_rollout(job_id, rollout_id)
    mode, iteration, index = _MODES[named["mode"]], int(named["iteration"]), int(named["index"])
    rewards = JudgedRewards.of(gateway.read_model.db, job_id)
    try:
        result = await find_rollout(
            gateway.bus, caller.org, job_id, rewards, mode=mode, iteration=iteration, index=index
        )
    except LookupError as error:
        raise _no_rollout(job_id, rollout_id) from error
    transcript, note = await _read_transcript(gateway.blobs, result.event.transcript)
    rollout = rollout_view(result.recorded, rewards.reward(result.event))
    detail = RolloutDetail(
        **msgspec.structs.asdict(rollout),
        failed_tries=result.event.failed_tries,
        group_members=group_members(result.members),
        pinned_version=result.request.pinned_version if result.request else None,
        oldest_version=result.request.oldest_version if result.request and mode == "train" else None,
        training=await _training(gateway, result, rollout, step=row.job.step) if mode == "train" else None,
        # The transcript stays encoded: it may be large, and is not read here.
        transcript=None if transcript is None else cast(Any, msgspec.Raw(transcript)),
        transcript_note=note,
    )
    return json_response(detail)


async def _training(gateway: Gateway, found: FoundRollout, rollout: RolloutSummary, *, step: int) -> RolloutTraining:
    batch: BatchMeta | None = None
    if found.batched is not None:
        try:
            batch = await _read_batch_meta(gateway.blobs, found.batched)
        except BlobMissing:
            batch = None
    return training_view(
        rollout,
        found.members,
        batched=found.batched is not None,
        batch=batch,
        oldest_version=found.request.oldest_version if found.request else 0,
        step=step,
    )


async def _read_batch_meta(blobs: BlobStore, batched: RolloutBatched) -> BatchMeta:
    """Read the metadata of a batch without its arrays, which may be gigabytes. Raises `BlobMissing`, `BlobCorrupt`."""
    ref = batched.batch
    if not batched.header_bytes:
        # Of an earlier version, without a digest of the header.
        size = LENGTH_BYTES + header_length(await blobs.get_range(ref, 0, LENGTH_BYTES))
        body = await blobs.get_range(ref, 0, size)
    else:
        body = await blobs.get_range(ref, 0, batched.header_bytes)
        if hashlib.sha256(body).hexdigest() != batched.header_sha256:
            raise BlobCorrupt(f"the header of {ref.uri} is not what was written (sha256 differs)")
    try:
        return await asyncio.to_thread(read_batch_meta, body[LENGTH_BYTES:])
    except ValueError as error:
        raise BlobCorrupt(f"the header of {ref.uri} cannot be read: {error}") from error


async def _read_transcript(blobs: BlobStore, ref: BlobRef | None) -> tuple[bytes | None, str]:
    """Return a transcript as it was written, or the reason why there is none."""
    if ref is None:
        return None, "nothing was kept of it: it was cut off before its task app answered, or an older version ran it"
    try:
        return await blobs.get_bytes(ref), ""
    except BlobMissing:
        return None, "its transcript has expired: it is not in the blob store any more"


def _no_rollout(job_id: str, rollout_id: str) -> ApiError:
    problem = Problem(
        what=f"there is no rollout {rollout_id[:120]!r} of {job_id}, or it is not over yet",
        fix=f"`synthctl rollouts ls {job_id}` shows those that are over",
    )
    return ApiError(404, problem.text(), code="rollout_not_found", problems=[problem])
