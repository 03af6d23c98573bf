"""The catalogue: every event of the platform, the subject it travels on, and its only publisher.

An event is a fact, in the past tense, on `<entity>.<fact>.<org>.<key>` in the stream `EVENTS`; the key is the job's id,
or the file's for `file.*`. The stream's sequence is the event's `seq`, the server's timestamp its time, and the subject
its type: the body repeats none of them. Events carry references, never tensors.

`by` is the only role that may publish it. `owner` is the one process that holds the job's fenced attempt: the trainer's
of a training job, the collector's of an evaluation. `reads` names the services that act on it and how: QUEUE = a
durable consumer, one of the service's replicas gets it; FOLLOW = an ordered reader of this job alone. (The gateway
projects every event into its read model; only the events that it acts on are listed.)
"""

from __future__ import annotations

from synth.events.files import FileDeleted, FileReady, FileRejected, FileUploaded, LineProblem
from synth.events.jobs import (
    Continuation,
    JobCancelled,
    JobCancelRequested,
    JobCreated,
    JobDeleted,
    JobFailed,
    JobParked,
    JobPaused,
    JobPauseRequested,
    JobRefused,
    JobRejected,
    JobResumed,
    JobStarted,
    JobSucceeded,
    JobValidated,
    JobVerified,
    JobWithdrawn,
)
from synth.events.letters import LetterDropped, LetterRetried
from synth.events.logged import CollectionLogged, Logged, PolicyLogged, TrainLogged
from synth.events.references import RESUME_FOLDER, BlobRef, LoraShape, ModelRef, trees_of
from synth.events.rollouts import (
    CollectionStarted,
    EvalCompleted,
    FailedTries,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
)
from synth.events.training import (
    BlobExpired,
    Canary,
    CheckpointSaved,
    DataProgress,
    ModelDeleted,
    ModelLeased,
    ModelPublished,
    PolicyLoaded,
    PolicyPublished,
    PolicyRefused,
    ProvisionalStep,
    TrainHandedBack,
    TrainProgressed,
    TrainResumed,
    TrainStep,
    TrainWarned,
)
from synth.events.watch import Heartbeat, QueueWaiting

__all__ = [
    "RESUME_FOLDER",
    "BlobExpired",
    "BlobRef",
    "Canary",
    "CheckpointSaved",
    "CollectionLogged",
    "CollectionStarted",
    "Continuation",
    "DataProgress",
    "EvalCompleted",
    "FailedTries",
    "FileDeleted",
    "FileReady",
    "FileRejected",
    "FileUploaded",
    "Heartbeat",
    "JobCancelRequested",
    "JobCancelled",
    "JobCreated",
    "JobDeleted",
    "JobFailed",
    "JobParked",
    "JobPauseRequested",
    "JobPaused",
    "JobRefused",
    "JobRejected",
    "JobResumed",
    "JobStarted",
    "JobSucceeded",
    "JobValidated",
    "JobVerified",
    "JobWithdrawn",
    "LetterDropped",
    "LetterRetried",
    "LineProblem",
    "Logged",
    "LoraShape",
    "ModelDeleted",
    "ModelLeased",
    "ModelPublished",
    "ModelRef",
    "PolicyLoaded",
    "PolicyLogged",
    "PolicyPublished",
    "PolicyRefused",
    "ProvisionalStep",
    "QueueWaiting",
    "RolloutBatched",
    "RolloutBlocked",
    "RolloutCompleted",
    "RolloutFailed",
    "RolloutJudged",
    "RolloutRequested",
    "TrainHandedBack",
    "TrainLogged",
    "TrainProgressed",
    "TrainResumed",
    "TrainStep",
    "TrainWarned",
    "trees_of",
]
