"""The training process, `python -m synth.trainer.learner`: reads JSON messages on stdin, writes them on stdout.

The service starts this process, sends it batches and watches it; the process knows neither bus nor HTTP. The messages
are in `protocol.py`.

If a config has several ranks, this process is rank 0 and starts the others, which run the same code on the same
messages: `ProcessGroup` holds all differences between ranks.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, get_args

import msgspec
import torch

from synth.errors import NewerVersion
from synth.methods.job import Job, TrainedJob, job_from_data
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.learner.session import Session
from synth.trainer.machine import Machine
from synth.trainer.protocol import Failed, Start

#: `train` of each method, in the file of its name.
_TRAIN: dict[str, Callable[[Session, Any], None]] = {
    job.method: importlib.import_module(f"synth.trainer.learner.methods.{job.method}").train
    for job in get_args(TrainedJob)
}


def main() -> NoReturn:
    """Serve the protocol on stdin and stdout until training is done; stray prints go to stderr."""
    lines_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel = OwnerChannel(sys.stdin.buffer, lines_out)
    _log_to_stderr()
    try:
        start = channel.recv()
        if not isinstance(start, Start):
            raise TrainingFailed("bad_message", "expected `start` first")
        job, machine = _read(start)
        _TRAIN[job.method](Session(start, machine, channel), job)
    except TrainingFailed as error:
        channel.fail(Failed(code=error.code, detail=error.detail))
    except (torch.OutOfMemoryError, MemoryError) as error:
        channel.fail(
            Failed(code="out_of_memory", detail=f"{error}; lower micro_batch_tokens or checkpoint activations"),
        )
    except Exception as error:  # noqa: BLE001  (the edge of the process: reported, and it sets the exit code)
        traceback.print_exc()
        channel.fail(Failed(code="internal", detail=f"{type(error).__name__}: {error}"))
    lines_out.flush()
    # No interpreter teardown: the reader thread is still in a read of stdin.
    os._exit(0)


def _read(start: Start) -> tuple[Job, Machine]:
    try:
        return job_from_data(start.job), msgspec.convert(start.machine, Machine)
    except (msgspec.ValidationError, NewerVersion) as error:
        raise TrainingFailed("bad_recipe", f"{error}") from error


def _log_to_stderr() -> None:
    """Log to stderr, for the service's log: what our algorithms choose and why, and the warnings of libraries."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("synth").setLevel(logging.INFO)


def warm_up() -> None:
    """Import what every job needs, while there is no job yet."""
    import transformers.models.auto.modeling_auto
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401
