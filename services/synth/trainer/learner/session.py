"""What the training of every method shares: from the message `start` to the model that is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from synth.estimates.verdict import Verdict
from synth.images.processor import is_vision_folder
from synth.methods.base import TrainingJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.fingerprint import fingerprint
from synth.trainer.learner.checkpoint_saver import CheckpointSaver
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.distributed.process_group import ProcessGroup
from synth.trainer.learner.memory import check_device_memory
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.learner.process.turns import Turns
from synth.trainer.learner.training_state import Resumed, TrainingState
from synth.trainer.machine import Machine
from synth.trainer.protocol import IMAGES_FOLDER, Done, Paused, Ready, Start


@dataclass
class Session:
    """The training of one job: its message `start`, the machine, and the channel to the owner."""

    start: Start
    machine: Machine
    channel: OwnerChannel

    def __post_init__(self) -> None:
        self.work = Path(self.start.work_dir)
        self.model_dir = Path(self.start.model_dir)
        self.adapter_dir = Path(self.start.adapter_dir) if self.start.adapter_dir else None

    def join(self) -> ProcessGroup:
        """Join the ranks that train the job."""
        return self.channel.init_process_group(self.machine)

    def take_turn(self) -> Turns:
        """Wait for the turn at a device that is shared. Returns the turns at it."""
        start, machine = self.start, self.machine
        if start.turn is not None and machine.world_size > 1:
            raise TrainingFailed(
                "bad_recipe",
                f"{machine.world_size} ranks, and a device that is shared by turns; expected one rank: unset "
                "SYNTH_RANKS or SYNTH_TURN_FILE",
            )
        progress = self.channel.send_progress
        turns = Turns(start.turn, torch.device(machine.device), progress=lambda: progress("wait for the turn", 0, 1))
        turns.take()
        return turns

    def load(self, job: TrainingJob) -> Policy:
        """Load the policy of the job."""
        machine = self.machine
        check_device_memory(self.start, job, machine)
        rng.seed_everything(job.seed, deterministic=machine.deterministic)
        self.channel.send_progress("load", 0, 1)
        dropout = not job.without_dropout
        loader = self.image_loader()
        return load_policy(self.model_dir, job, machine, adapter_dir=self.adapter_dir, images=loader, dropout=dropout)

    def image_loader(self) -> ImageLoader | None:
        """Return the loader of the images in prompts; None for a model without vision."""
        return ImageLoader.load(self.model_dir, self.work / IMAGES_FOLDER) if is_vision_folder(self.model_dir) else None

    def resume(self, state: TrainingState) -> Resumed | None:
        """Continue from the checkpoint that `start` names, if any."""
        if self.start.resume_dir is None:
            return None
        self.channel.send_progress("resume", 0, 1)
        return state.resume(Path(self.start.resume_dir))

    def ready(self, state: TrainingState, resumed: Resumed | None, total: int) -> None:
        """Report that the first of `total` steps can begin."""
        self.channel.send(
            Ready(
                step=state.step,
                fingerprint=msgspec.to_builtins(fingerprint(state.policy.job, state.policy.machine)),
                total=total,
                loss_then=None if resumed is None else resumed.loss_then,
                loss_now=None if resumed is None else resumed.loss_now,
                same_fingerprint=True if resumed is None else resumed.same_fingerprint,
                reports={} if resumed is None else resumed.reports,
            )
        )

    def pause(self, checkpoints: CheckpointSaver) -> None:
        """Save what is trained, and report it."""
        checkpoints.save_uncovered()
        checkpoints.wait()
        self.channel.send(Paused(step=checkpoints.state.step))

    def finish(self, checkpoints: CheckpointSaver, *, best_step: int, verdict: Verdict | None = None) -> None:
        """Save what is trained, write the model, and report it."""
        checkpoints.save_uncovered()
        policy, step = checkpoints.state.policy, checkpoints.state.step
        self.channel.send_progress("export", 0, 1)
        folder = self.work / "model"
        policy.write_model(folder)
        checkpoints.wait()
        self.channel.send(Done(model=str(folder), kind=policy.kind, step=step, best_step=best_step, verdict=verdict))
