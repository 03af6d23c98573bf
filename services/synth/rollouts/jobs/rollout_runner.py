"""The run of one try: a credential at a replica, the task app's episode, and the calls recorded under it."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from synth.bus.kv.replicas import Replica, ReplicaTable
from synth.errors import Transient
from synth.keys import Cid, mint_cid
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import RolloutSettings
from synth.outbound.answer_memory import AnswerMemory, AnswerRoom
from synth.rollouts.clients.player import Player
from synth.rollouts.clients.recorder import RecorderClient
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.collection.policy_versions import PolicyVersions
from synth.rollouts.collection.settle import SettledTry, SettleRules, settle
from synth.rollouts.collection.transcript import transcript_to_bytes
from synth.rollouts.collection.types import CollectRequest, CutOff, RolloutSpec, TryResult
from synth.rollouts.concurrency.controller import Overload
from synth.rollouts.rewards.scoring import TaskAppReply
from synth.runtime import logs
from synth.runtime.off_loop import INLINE_BYTES, OffLoop, TooMuchWork
from synth.service_secrets import Keyring
from synth.trajectories import CompletionRecord

log = logs.get("rollout_runner")

#: Seconds between two looks at the replicas: a replica may be known to serve the job before its version is known.
_POLL_S = 0.5

#: Tokens, of all calls, of a try that is scored in place, if its answer is short too.
_SHORT_TRY = 4000

#: How long closing the credential of a cancelled rollout may take.
_CLOSE_TIMEOUT_S = 2.0

#: After so many failed requests in a row for the time that a policy stood still, the replica counts as lost.
_MISSES = 3

#: Seconds that a credential outlives its player, so that it is closed before it expires.
_CLOSE_TIME_S = 60


class RolloutRunner:
    """The runner of one job's rollouts, with its player and the replicas that serve its policy."""

    def __init__(
        self,
        job_id: str,
        rollout_settings: RolloutSettings,
        rewards: RewardSettings,
        *,
        player: Player,
        recorder: RecorderClient,
        replicas: ReplicaTable,
        versions: PolicyVersions,
        credentials: Keyring,
        public_url: str | None,
        replica_wait_s: float,
        grace_s: float,
        transcript_bytes: int,
        off_loop: OffLoop,
        answers: AnswerMemory,
        org: str,
        progress: Callable[[str], None],
    ) -> None:
        """replica_wait_s: how long a try waits for a replica that can serve it, and how long it is played again when
        its recording is lost or it waits for its policy. grace_s: how long the player may take to answer after the
        rollout's time is over. transcript_bytes: the limit of each transcript. off_loop: reads large answers, on
        behalf of `org`. answers: the memory that holds answers until they are read.

        progress: called when a stage of a try begins.
        """
        self._job_id = job_id
        self._rollout_settings = rollout_settings
        self._rewards = rewards
        self._player = player
        self._recorder = recorder
        self._replicas = replicas
        self._versions = versions
        self._credentials = credentials
        self._public_url = public_url
        self._replica_wait_s = replica_wait_s
        self._grace_s = grace_s
        self._transcript_bytes = transcript_bytes
        # Every stage has a time limit, so its beginning marks the task as alive.
        self._progress = progress
        self._off_loop = off_loop
        self._answers = answers
        self._org = org
        # A nonce never repeats, across collectors too: a cid must not read records that a predecessor left open.
        self._nonces = itertools.count(random.randrange(1, 1 << 40) << 10)

    async def run_try(
        self, request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff
    ) -> TryResult:
        """Run one try, again if its recording is lost (its replica died), because the environment is not at fault.

        Raises `Transient` when recordings are lost for too long: another collector may succeed.
        """
        give_up_at = math.inf
        with structlog.contextvars.bound_contextvars(rollout=spec.rollout_id):
            self._progress("wait for a replica")
            for losses in itertools.count(1):
                try:
                    # One aborted completion may be the replica's fault, so the rollout is played again. After a second
                    # one, the task app has hung up, and its answer counts.
                    return await self._play_once(request, spec, deadline, cut_off, retry_if_aborted=losses == 1)
                except Transient as error:
                    deadline.mark_away(spec.index)
                    self._progress("wait for a replica")
                    # The time counts from the first loss: a long reply may take longer than this limit.
                    give_up_at = min(give_up_at, time.monotonic() + self._replica_wait_s)
                    if time.monotonic() >= give_up_at:
                        raise
                    log.warning("rollout is played again", reason=str(error), losses=losses)
                    await asyncio.sleep(min(5.0, 0.25 * 2**losses))
        raise AssertionError("counting never ends")

    async def _play_once(
        self,
        request: CollectRequest,
        spec: RolloutSpec,
        deadline: Deadline,
        cut_off: CutOff,
        *,
        retry_if_aborted: bool,
    ) -> TryResult:
        replica = await self._choose_replica(request, spec)
        # The replica ends its sampling by its own clock.
        ends = self._replicas.clock_of(replica) + self._rollout_settings.rollout_timeout_s
        cid = mint_cid(
            Cid(
                rollout_id=spec.rollout_id,
                nonce=next(self._nonces),
                replica=replica.recorder,
                version=request.pinned_version,
                calls=max(8, 4 * self._rollout_settings.max_turns),
                ends=ends,
                # The credential expires only after the player is given up, and after the time to close the credential.
                expires=math.ceil(ends + self._grace_s + _CLOSE_TIME_S),
            ),
            self._credentials,
        )
        base = self._public_url or replica.url
        url = f"{base}/v1/chat/completions?cid={cid}"
        deadline.mark_at_app(spec.index)
        self._progress("play")
        with self._answers.hold(self._org) as room:
            try:
                reply = await self._play_in_time(request, spec, replica, url=url, cid=cid, room=room)
            except asyncio.CancelledError:
                # The app may go on: its calls must be refused. The records are kept for readers, not for training.
                records = await self._close_credential(replica, cid)
                cut_off.transcript = transcript_to_bytes(records, None, rewards=[], limit=self._transcript_bytes)
                raise
            except Transient:
                await self._close_credential(replica, cid)
                raise
            try:
                records = await self._recorder.close_rollout(replica, cid)
            except Transient:
                self._replicas.forget(replica)
                raise
            if retry_if_aborted and reply.status != 200 and any(r.finish_reason == "abort" for r in records):
                raise Transient("a call was cut off")
            settled = await self._settle(reply, records, self._is_traced(request, spec))
        # An answer may be large, so it is not held longer.
        return TryResult(settled.scored, records, _overload(reply), settled.transcript, settled.traced)

    async def _settle(self, reply: TaskAppReply, records: list[CompletionRecord], traced: bool) -> SettledTry:
        """Score a try; a large one away from the event loop. Raises `Transient` if the process that reads it ends."""
        rules = SettleRules(
            url=self._player.url,
            failure_reward=self._rollout_settings.failure_reward,
            rewards=self._rewards,
            transcript_bytes=self._transcript_bytes,
        )
        if reply.size == 0 and sum(len(r.prompt_ids) + len(r.sampled_ids) for r in records) <= _SHORT_TRY:
            return settle(reply, records, rules, traced)
        if reply.size <= INLINE_BYTES:
            return await asyncio.to_thread(settle, reply, records, rules, traced)
        task = "read the task app's answer"
        try:
            return await self._off_loop.process(
                settle, reply, records, rules, traced, org=self._org, size=reply.size, task=task
            )
        except TooMuchWork as error:
            failed = replace(
                reply, problem=msgspec.structs.replace(error.problems[0], where=self._player.url), unread=None
            )
            return await asyncio.to_thread(settle, failed, records, rules, traced)

    async def _play_in_time(
        self, request: CollectRequest, spec: RolloutSpec, replica: Replica, *, url: str, cid: str, room: AnswerRoom
    ) -> TaskAppReply:
        """Return the player's answer, or a timed-out reply if it did not arrive in the rollout's time and grace.

        The time that the rollout waited for its policy is added. Raises `Transient` when it waits for too long:
        another replica may be faster.
        """
        limit = self._rollout_settings.rollout_timeout_s
        left, stood_still, misses = limit + self._grace_s, 0.0, 0
        playing = asyncio.create_task(self._player.play(request, spec, inference_url=url, cid=cid, room=room))
        try:
            while True:
                await asyncio.wait([playing], timeout=left)
                if playing.done():
                    return playing.result()
                try:
                    now = await self._recorder.stood_still(replica, cid)
                except Transient:
                    misses += 1
                    if misses == _MISSES:
                        raise
                    left = _POLL_S
                    continue
                misses = 0
                left, stood_still = now - stood_still, now
                if left <= 0:
                    what = f"no answer within {limit:.0f} s (rollout_timeout_s) and {self._grace_s:.0f} s of grace"
                    return TaskAppReply(0, what, timed_out=True)
                if stood_still > self._replica_wait_s:
                    raise Transient(f"the policy was not given its time for {stood_still:.0f} s (SYNTH_POLICY_WAIT_S)")
                self._progress("play")
                log.info("rollout waits for its policy", stood_still_s=round(stood_still, 1))
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    def _is_traced(self, request: CollectRequest, spec: RolloutSpec) -> bool:
        """Return whether the transcript is kept whole, for judges and for users who filter rollouts."""
        if self._rewards.judging is not None:
            return True
        if request.mode == "eval":
            return self._rollout_settings.evaluations_traced
        # The id decides, so that every collector decides the same.
        drawn = zlib.crc32(spec.rollout_id.encode()) / 2**32
        return drawn < self._rollout_settings.trace_rate

    def engine_queue(self) -> tuple[int, int]:
        """Return how many requests run in the engines of the replicas that serve the job, and how many wait there."""
        serving = self._replicas.serving(self._job_id)
        return sum(r.running for r in serving), sum(r.waiting for r in serving)

    async def _close_credential(self, replica: Replica, cid: str) -> list[CompletionRecord]:
        """Close a credential, and return its records; none if the recorder does not answer."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                return await self._recorder.close_rollout(replica, cid)
        except (TimeoutError, Transient) as error:
            log.warning("a rollout's credential stays open until it expires", reason=str(error))
            return []

    async def _choose_replica(self, request: CollectRequest, spec: RolloutSpec) -> Replica:
        """Choose a replica whose policy is new enough: tokens that an older policy samples could not be trained."""
        trained = request.mode == "train"
        try:
            async with asyncio.timeout(self._replica_wait_s):
                while True:
                    candidates = await self._replicas.wait_serving(self._job_id, timeout=self._replica_wait_s)
                    if trained:
                        candidates = [
                            r for r in candidates if self._versions.serves_at_least(r.id, request.oldest_version)
                        ]
                    if candidates:
                        break
                    await self._versions.wait_for_change(timeout=_POLL_S)
        except TimeoutError as error:
            what = f"version {request.oldest_version} of {self._job_id}" if trained else self._job_id
            raise Transient(
                f"no replica serves {what} after {self._replica_wait_s:.0f} s (SYNTH_POLICY_WAIT_S)"
            ) from error
        # The group decides, so that the samples of one prompt share its prefill at one replica.
        return sorted(candidates, key=lambda replica: replica.id)[spec.group % len(candidates)]


def _overload(reply: TaskAppReply) -> Overload | None:
    """Return the sign of overload in an answer, if there is one."""
    if reply.timed_out:
        return Overload.TIMEOUT
    return Overload.REJECTED if reply.crowded or reply.status in (429, 503) else None
