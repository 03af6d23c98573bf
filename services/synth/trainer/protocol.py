"""The messages between the service and its training process: JSON lines, one message a line.

Invariants: the first message in is `start`; a message is sent when every file that it names is durable; `saved` may
come at any time after the `step` that it saves, and comes before `paused` and `done`; an `error` is the last message,
and the exit code is then 1; the end of the input ends the process at once.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec

from synth.estimates.verdict import Verdict
from synth.events import Canary

#: Below `Start.work_dir`: the images that the dataset or a batch names, each in a file named by its sha256. They are
#: there before the message that names the dataset or the batch is sent.
IMAGES_FOLDER = "images"


class TurnConfig(msgspec.Struct):
    """The turns at a device that is shared with inference: see `synth.runtime.device_turn`.

    file: of the turn. turn_s: how long SFT may continue while the other side waits. wait_s: how long to wait for it.
    job_id: for the log.
    """

    file: str
    turn_s: float
    wait_s: float
    job_id: str


class DataFile(msgspec.Struct):
    """A JSONL file, and the sha256 of its bytes."""

    path: str
    sha256: str


class TokenCacheConfig(msgspec.Struct):
    """The cache of tokenised files, which outlives the attempt: see `TokenCache`."""

    folder: str
    max_bytes: int
    processes: int
    chunk_bytes: int = 16 << 20


class Start(msgspec.Struct, tag="start", tag_field="op"):
    """The first message. job: the resolved job. machine: of `Machine`. work_dir: this attempt's own; everything else is
    written below it.

    tokens: None keeps none beyond the attempt. turn: None if the device is not shared.
    check_memory: whether the service has not checked if the job fits the device. where: the field of the job's file
    that names the model. day: on
    """

    job: dict[str, Any]
    machine: dict[str, Any]
    model_dir: str
    work_dir: str
    adapter_dir: str | None = None
    resume_dir: str | None = None
    dataset: DataFile | None = None
    validation: DataFile | None = None
    tokens: TokenCacheConfig | None = None
    turn: TurnConfig | None = None
    check_memory: bool = False
    where: str = ""
    day: date | None = None


class TrainBatch(msgspec.Struct, tag="step", tag_field="op"):
    """RL: train on the batch of an iteration, a file that `RolloutBatch.from_bytes` reads."""

    iteration: int
    batch: str


class Finish(msgspec.Struct, tag="finish", tag_field="op"):
    """RL: save a checkpoint if the last one does not cover the last step, write the model, and end."""


class Pause(msgspec.Struct, tag="pause", tag_field="op"):
    """Finish the running step, save a checkpoint if the last one does not cover it, send `paused`, and end.

    If the last step was already done, `done` is sent instead.
    """


class Stored(msgspec.Struct, tag="stored", tag_field="op"):
    """The checkpoint of a step, which `saved` announced, is stored: its folder is free."""

    step: int


class Ready(msgspec.Struct, tag="ready", tag_field="event"):
    """The model is loaded; `step` of `total` steps are done.

    fingerprint: the fields of `Fingerprint`. same_fingerprint: whether the checkpoint's is equal; True without a
    resume. loss_then, loss_now: of the checkpoint's probe, when it was saved and now. reports: after a resume, the
    metrics by step of the steps that only this checkpoint covers, which may not have been announced.
    """

    step: int
    total: int
    fingerprint: dict[str, Any]
    loss_then: float | None = None
    loss_now: float | None = None
    same_fingerprint: bool = True
    reports: dict[int, dict[str, float]] = {}


class Stepped(msgspec.Struct, tag="step", tag_field="event"):
    """A step is done. values: its metrics. weights: the file to serve (RL), and weights_sha256: of it.

    trained_at: when its last optimizer step was done, a Unix time in seconds. canary: proves that an engine serves
    these weights, if this version is to be verified.
    """

    step: int
    values: dict[str, float]
    trained_at: float
    weights: str | None = None
    weights_sha256: str | None = None
    canary: Canary | None = None


class Saved(msgspec.Struct, tag="saved", tag_field="event"):
    """The checkpoint of a step is durable, and covers every step before it. sha256: of each file in the folder."""

    step: int
    folder: str
    sha256: dict[str, str]


class Paused(msgspec.Struct, tag="paused", tag_field="event"):
    """Training ends at this step, which a checkpoint covers."""

    step: int


#: Stages in which a model or a checkpoint is read or written in one piece, which may take long without any message.
FILE_STAGES = frozenset({"load", "resume", "checkpoint", "export"})


#: The stage in which a dataset is tokenised. `done` and `of` are its bytes. A message that repeats the `done` of the
#: one before is no sign of life: this process may only be waiting for another one that hangs.
TOKENISE = "tokenise"


class Progressed(msgspec.Struct, tag="progress", tag_field="event"):
    """A sign of life, at most two a second of one stage."""

    stage: str
    done: int
    of: int


class Done(msgspec.Struct, tag="done", tag_field="event"):
    """The finished model is in the folder `model`; best_step: which step's weights it holds.

    verdict: on the validation loss of an SFT or DPO job; None for RL and without validation rows.

    A checkpoint covers the last step, also if the job ends before the last step that it requested.
    """

    model: str
    kind: str
    step: int
    best_step: int
    verdict: Verdict | None = None


class Failed(msgspec.Struct, tag="error", tag_field="event"):
    """The last message: see `TrainingFailed` for codes; also out_of_memory, internal."""

    code: str
    detail: str
