"""The memory for the answers of task apps that one process reads at a time, from their first bytes until they are read.

An app may send blanks for as long as its rollout lasts, so that no limit of one answer bounds what all of them hold. An
answer without room is not read on, which stops its sender, until others have ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import Field, model_validator

from synth.errors import Transient
from synth.fairness.memory import FairMemory, HeldBytes
from synth.settings import Settings

#: Bytes of each answer that do not count: small answers never wait.
_FREE_BYTES = 64 << 10


class AnswerSettings(Settings):
    """What the answers of task apps may take of a process."""

    max_answer_bytes: int = Field(default=64 << 20, ge=1)
    """The largest answer of a task app to one rollout, or to one call of the verifier such as that for its list of
    tasks, before and after decompression; a larger one is an error of the environment."""

    answer_memory_bytes: int = Field(default=512 << 20, ge=1)
    """Bytes of all answers of task apps that a process reads at a time, at least twice SYNTH_MAX_ANSWER_BYTES. One
    organisation may have half of it. The first 64 KiB of an answer do not count."""

    answer_memory_wait_s: float = Field(default=60.0, gt=0)
    """How long an answer may wait for its share of SYNTH_ANSWER_MEMORY_BYTES while others are read, or half as long, by
    chance; then its rollout is tried again, with fewer of its job at a time. The verifier waits half of
    SYNTH_CALL_DEADLINE_S at most."""

    @model_validator(mode="after")
    def _holds_two(self) -> AnswerSettings:
        if self.answer_memory_bytes < 2 * self.max_answer_bytes:
            raise ValueError("SYNTH_ANSWER_MEMORY_BYTES must be at least twice SYNTH_MAX_ANSWER_BYTES")
        return self


class AnswerMemoryFull(Transient):
    """An answer had no room in time."""


@dataclass
class AnswerRoom:
    """The room of one answer. seconds_left: for which it may still wait."""

    memory: AnswerMemory
    held: HeldBytes
    seconds_left: float

    async def resize(self, size: int) -> None:
        """Have room for an answer of `size` bytes. Raises `AnswerMemoryFull`."""
        memory, more = self.memory.memory, max(0, size - _FREE_BYTES) - self.held.size
        if more <= 0:
            memory.give_back(self.held, -more)
            return
        began = time.monotonic()
        try:
            await memory.wait_to_take(self.held, more, seconds=self.seconds_left)
        except TimeoutError as error:
            raise AnswerMemoryFull(
                f"there was no room for the answer within {self.memory.wait_s:g} s (SYNTH_ANSWER_MEMORY_WAIT_S): "
                f"answers of this organisation's task apps hold {memory.held_by(self.held.owner):,} bytes of the "
                f"{memory.limit // 2:,} that one organisation may have (half of SYNTH_ANSWER_MEMORY_BYTES), and all "
                f"answers hold {memory.held:,}; answer with less, or have the operator raise it",
                delay=1.0,
            ) from error
        finally:
            self.seconds_left -= time.monotonic() - began


class AnswerMemory:
    """The answers of one process. limit: bytes of all of them; wait_s: how long one may wait for its share."""

    def __init__(self, limit: int, *, wait_s: float) -> None:
        self.memory = FairMemory(limit)
        self.wait_s = wait_s

    @contextmanager
    def hold(self, org: str) -> Generator[AnswerRoom]:
        """The room of one answer, given back at the end."""
        with self.memory.hold(org) as held:
            # Answers that began together do not give up together: the room of one is what the next waits for.
            yield AnswerRoom(self, held, self.wait_s * random.uniform(0.5, 1.0))
