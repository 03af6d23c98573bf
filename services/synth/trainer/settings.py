"""Settings of the trainer service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from synth.methods.base import CPU_FORWARDS
from synth.plugins import PluginSettings
from synth.runtime.gpus import visible_gpus
from synth.runtime.settings import ServiceSettings
from synth.trainer.protocol import FILE_STAGES


class TrainerSettings(ServiceSettings, PluginSettings):
    """The trainer's settings, beside the shared ones."""

    device: Literal["cpu", "cuda"] = "cpu"
    """The device on which the training process computes."""

    dtype: Literal["fp32", "bf16"] = "fp32"
    """The dtype of the forward pass; master weights, log-probabilities and losses are float32 in any case."""

    threads: int | None = Field(default=None, ge=1)
    """Micro-batches that are computed at one time on a CPU, by a thread each, with a gradient of its own in memory. No
    bit depends on it. Unset: one for each CPU that this service may use, and at most 4. It is lower if
    SYNTH_TRAINER_MEMORY_BYTES cannot hold as many, and 1 on a GPU and with several ranks."""

    deterministic: bool | None = None
    """Bit-identical resume and replay. Unset: yes on a CPU; no on a GPU, because it costs speed there."""

    ranks: int | None = Field(default=None, ge=1)
    """Processes that train a job together, the model spread over them, a GPU each. Unset: all GPUs, on CPU 1."""

    trainer_memory_bytes: int | None = Field(default=None, ge=1)
    """Bytes of memory of each device that trains. A job that cannot fit there is failed before anything is loaded, with
    the numbers and a fix. Unset: a GPU's own memory is read; a CPU is not checked."""

    child_silence_s: float = 300.0
    """How long the training process may send nothing while it computes, before it counts as hung. It sends a message
    after each micro-batch, however long a step takes, and after each row that it tokenises, however long the file is;
    while it tokenises, a message counts only if it reports progress."""

    model_io_s: float = 3600.0
    """How long reading or writing a model or a checkpoint may take, each time: fetching or downloading it, loading it,
    writing it, hashing and storing it. Then it counts as hung."""

    store_absent_s: float = Field(default=600.0, ge=0)
    """Seconds for which a job waits while the folder of the blob store is empty or does not exist, as before a network
    disk is mounted; then it is paused with the reason."""

    checkpoint_bytes: int = Field(default=8 << 30, ge=1)
    """The checkpoint size up to which a checkpoint is saved after each RL step, or every 100 steps of SFT, if a job
    does not set `checkpoint_every`; a larger one is saved as many times more rarely. Float32 weights and two moments
    take 12 bytes per trained parameter; with an adapter only the adapter counts."""

    turn_file: Path | None = None
    """A file whose OS lock is the turn at a device that trainer and inference of one machine share, the same for both:
    the process without the turn frees the device's memory. `synthctl up` sets it if there is one GPU. Unset: nothing is
    shared."""

    turn_s: float = 10.0
    """How long an SFT job may continue while the other process waits for its turn."""

    turn_wait_s: float = 1800.0
    """How long a step may wait for the turn before the task is handed back."""

    reference_device: str | None = None
    """Torch device of dedicated reference models, such as "cuda:1"; the training device if unset or if sharded."""

    image_fetches: int = Field(default=16, ge=1)
    """How many images of a dataset or a batch are fetched from the blob store at one time."""

    batch_wait_s: float = 3900.0
    """How long no rollout of a batch may come in, beyond the time that the job gives one (`rollout_timeout_s` for each
    of its tries), before the task is handed back: its device must not be idle for ever. A batch may take any time."""

    tokenise_processes: int | None = Field(default=None, ge=1)
    """Processes that tokenise the dataset of a job at the same time, before it trains. Unset: one for each CPU that
    this service may use, and at most 4; each takes up to 200 MB while it tokenises, which together is below 1 GB."""

    token_cache_bytes: int = Field(default=100_000_000_000, ge=0)
    """The most bytes of datasets' tokens in SYNTH_WORK_DIR/cache/tokens, where later jobs and attempts find them. The
    datasets that were used longest ago are removed first; one that a job trains on stays."""

    progress_s: float = Field(default=1.0, ge=0.05)
    """Seconds between two announcements of steps that no checkpoint covers yet; watchers see steps no sooner."""

    progress_ttl_s: float = Field(default=86_400.0, ge=60)
    """How long the log keeps such an announcement: a watcher that comes later sees the durable steps alone."""

    pause_s: float = 60.0
    """How long a job that is to be paused may continue, to finish its step and save it; then it is stopped unsaved."""

    @property
    def tokenising(self) -> int:
        """How many processes tokenise."""
        return self.tokenise_processes or min(4, len(os.sched_getaffinity(0)))

    @property
    def computing(self) -> int:
        """How many threads compute."""
        return self.threads or min(CPU_FORWARDS, len(os.sched_getaffinity(0)))

    @property
    def computes_deterministically(self) -> bool:
        """Whether training gives the same bytes each time."""
        return self.device == "cpu" if self.deterministic is None else self.deterministic

    def silence_s(self, stage: str) -> float:
        """Return how long the training process may say nothing in a stage of `Progressed`."""
        return self.model_io_s if stage in FILE_STAGES else self.child_silence_s

    @property
    def max_world_size(self) -> int:
        """How many processes can train a job here."""
        return self.ranks or (len(visible_gpus()) if self.device == "cuda" else 0) or 1
