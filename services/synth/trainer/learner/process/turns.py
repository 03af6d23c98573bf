"""A device that training shares with inference: training has it while it computes, and only then.

Invariants: weights and optimizer state are on the device only within this process's turn; outside of it they are in the
CPU's memory, and the device's memory is freed.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from synth.runtime.device_turn import DeviceTurn, TurnTimeout, read_holder
from synth.trainer.errors import NO_TURN, TrainingFailed
from synth.trainer.protocol import TurnConfig

log = logging.getLogger(__name__)


class Movable(Protocol):
    """Something with tensors that can be moved to another device and back."""

    def move(self, device: torch.device) -> None: ...


class Turns:
    """This process's side of the turns at its device; without a config the device is its own all the time.

    device: on which training computes. progress: called repeatedly while this waits for the turn.
    """

    def __init__(self, config: TurnConfig | None, device: torch.device, *, progress: Callable[[], None]) -> None:
        self._config = config
        self._device = device
        self._progress = progress
        self._turn = None if config is None else DeviceTurn(Path(config.file), who="trainer")
        self._moved: Sequence[Movable] = ()
        self.waited_s = 0.0

    def attach(self, *movable: Movable) -> None:
        """Move these with the turns. They are on the device now, in this process's turn."""
        self._moved = movable

    def take(self) -> None:
        """Have the device: wait for the turn, then move everything there. Does nothing when it is there.

        Raises `TrainingFailed` (no_turn) when the turn does not come in the time that the config allows.
        """
        if self._turn is None or self._config is None or self._turn.held:
            return
        job = self._config.job_id
        holder = read_holder(Path(self._config.file))
        if holder is not None:
            log.info("%s waits for the turn at the shared device, which %s has (pid %d)", job, holder.who, holder.pid)
        try:
            seconds = self._turn.take(wait_s=self._config.wait_s, job=job, waiting=self._progress)
        except TurnTimeout as error:
            raise TrainingFailed(NO_TURN, f"{job}: {error}") from error
        self.waited_s += seconds
        log.info("%s took the turn at the shared device after %.2f s", job, seconds)
        for part in self._moved:
            part.move(self._device)

    def metrics(self) -> dict[str, float]:
        """Return the seconds that training has waited for turns since the last call; empty if no device is shared."""
        seconds, self.waited_s = self.waited_s, 0.0
        return {} if self._turn is None else {"seconds_turn": seconds}

    def give_up(self) -> None:
        """Let the other side have the device. Does nothing when it has it."""
        if self._turn is None or self._config is None or not self._turn.held:
            return
        for part in self._moved:
            part.move(torch.device("cpu"))
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        log.info("%s gives the turn at the shared device up after %.2f s", self._config.job_id, self._turn.held_s)
        self._turn.release()

    def give_up_if_awaited(self) -> None:
        """Give up the turn between two steps if the other side waits and this turn has lasted long enough."""
        if self._turn is None or self._config is None or not self._turn.held:
            return
        if self._turn.held_s >= self._config.turn_s and self._turn.is_awaited():
            self.give_up()
            self.take()
