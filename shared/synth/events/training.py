"""Policies, training steps, checkpoints and models."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.errors import Problem
from synth.events.catalogue import Event, Reading, Role, Write, event
from synth.events.references import BlobRef, ModelRef


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's results for a few tokens under the weights that it publishes, which an engine must reproduce.

    logprobs: of token_ids[1:], nats, at temperature 1 under the whole softmax. dtype: of the forward that gave them.
    """

    token_ids: list[int]
    logprobs: list[float]
    dtype: Literal["fp32", "bf16"]


@event("policy.published", by=Role.TRAINER, reads={Role.INFERENCE: Reading.FOLLOW}, write=Write.FENCED)
class PolicyPublished(Event, frozen=True, kw_only=True):
    """Weights to serve, in one file that holds a digest of each tensor (`synth.weights`). kind "full" or "lora".

    canary: None for a version that is proven by its digests alone.
    """

    version: int
    attempt: int
    kind: str
    weights: BlobRef
    canary: Canary | None = None


@event("policy.loaded", by=Role.INFERENCE, reads={Role.ROLLOUTS: Reading.FOLLOW})
class PolicyLoaded(Event, frozen=True, kw_only=True):
    """A replica serves this version, by the job's serving task of this index.

    proven: tensors whose digest was computed on the live weights, and matched.

    canary_error: the largest difference, in nats, between the trainer's and the engine's log-probability of a token
    of the canary; None without one.
    """

    version: int
    replica: str
    seconds: float
    proven: int
    index: int = 0
    canary_error: float | None = None


@event("policy.refused", by=Role.INFERENCE, reads={Role.OWNER: Reading.FOLLOW})
class PolicyRefused(Event, frozen=True, kw_only=True):
    """The job's policy cannot be served, however often it is tried; the job's owner ends it with this cause."""

    problem: Problem


@event("checkpoint.saved", by=Role.TRAINER, write=Write.FENCED)
class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A durable point to resume from, and a model. tree: the manifest; version: the policy version it holds.

    model: how it is served, evaluated and trained from, until its tree expires.
    """

    step: int
    version: int
    attempt: int
    tree: BlobRef
    size: int
    model: ModelRef


@event("train.step", by=Role.TRAINER, write=Write.FENCED)
class TrainStep(Event, frozen=True, kw_only=True):
    """One step, counted from 1: an iteration with all its minibatches (RL), one optimizer step (SFT)."""

    step: int
    of: int
    attempt: int
    values: dict[str, float]


class ProvisionalStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is trained, and that no checkpoint covers yet."""

    step: int
    values: dict[str, float]


class DataProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a dataset an attempt has read for its training. done, of: bytes of the file.

    stage: "fetch" (out of the blob store) or "tokenise".
    """

    stage: Literal["fetch", "tokenise"]
    done: int
    of: int


@event("train.progressed", by=Role.TRAINER, write=Write.FENCED)
class TrainProgressed(Event, frozen=True, kw_only=True):
    """A step before a checkpoint covers it: for readers that show it, not for decisions.

    steps: as they happen. An attempt that dies takes them with it, and the next one trains them again; each becomes
    durable with its `train.step`. data: how far the dataset is, before the first step; `of` is 0 then, as it decides
    how many steps there are. It lives for `SYNTH_PROGRESS_TTL_S`.
    """

    of: int
    attempt: int
    steps: list[ProvisionalStep]
    data: DataProgress | None = None


@event("train.warned", by=Role.TRAINER, write=Write.FENCED)
class TrainWarned(Event, frozen=True, kw_only=True):
    """The collapse watch sees a sign, of this step and of the steps before it: once, until it has passed.

    rule: of `[training.watch]`, or no_learning_signal, solved or images_dropped. over: steps in a row that show it.
    threshold: the limit that `value` exceeds, in its own unit. action: "warn", "pause" or "stop" (the job fails); of
    solved, "finish" (the job succeeds) or "advance" (it continues with the next seeds of its curriculum).
    """

    step: int
    rule: str
    value: float
    threshold: float
    over: int
    action: Literal["warn", "pause", "stop", "finish", "advance"]
    problem: Problem


@event("train.resumed", by=Role.TRAINER, write=Write.FENCED)
class TrainResumed(Event, frozen=True, kw_only=True):
    """A later attempt continues from a checkpoint; the loss of its stored batch, then and now, is the proof."""

    step: int
    attempt: int
    loss_then: float | None
    loss_now: float | None
    same_fingerprint: bool


@event("train.handed_back", by=Role.TRAINER, write=Write.FENCED)
class TrainHandedBack(Event, frozen=True, kw_only=True):
    """An attempt ended in good order before its job (a drain, a wait that was too long): the next one continues."""

    attempt: int
    reason: str


@event("model.published", by=Role.TRAINER, write=Write.FENCED)
class ModelPublished(Event, frozen=True, kw_only=True):
    """The finished model: it serves under this id from now on."""

    model: ModelRef
    kind: str
    step: int


@event("model.deleted", by=Role.GATEWAY, reads={Role.VERIFIER: Reading.FOLLOW, Role.INFERENCE: Reading.FOLLOW})
class ModelDeleted(Event, frozen=True, kw_only=True):
    """A finished model, or a checkpoint of a job that has ended, is deleted.

    tree: the manifest of its files, which go when nothing needs them any more: no live job that was verified with it,
    and no model built on it. None for a model without its own files.
    """

    model: str
    tree: BlobRef | None
    requested_by: str


@event("model.leased", by=Role.VALIDATOR, reads={Role.TRAINER: Reading.FOLLOW})
class ModelLeased(Event, frozen=True, kw_only=True):
    """A job needs the files of a model of the job whose fact this is: its trainer keeps them, a checkpoint's too.

    tree: their manifest. job: the job that needs them, until it has ended and no model that it made is built on them.
    """

    tree: str
    job: str


@event("blob.expired", by=Role.TRAINER, write=Write.FENCED)
class BlobExpired(Event, frozen=True, kw_only=True):
    """Blobs that earlier events named and that are gone from now on (old weights, superseded checkpoints)."""

    uris: list[str]
