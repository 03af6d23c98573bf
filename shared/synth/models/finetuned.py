"""The ids of models that jobs have made: `<prefix>:<base>:<job_id>[:<checkpoint>]` (decision 18)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from synth.models.table import Prefix, canonical

PREFIXES: dict[str, Prefix] = {"ft": "ft", "fft": "fft", "peft": "peft", "qft": "qft", "rl": "rl"}
_SEGMENT = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class FineTunedId:
    """The parts of `rl:Qwen/Qwen3-0.6B:job_7f:step_20`."""

    prefix: Prefix
    base: str
    job_id: str
    checkpoint: str | None = None

    def __str__(self) -> str:
        return format_finetuned(self.prefix, self.base, self.job_id, checkpoint=self.checkpoint)


def format_finetuned(prefix: Prefix, base: str, job_id: str, *, checkpoint: str | None = None) -> str:
    """Return the id under which a job's model is served: `<prefix>:<base>:<job_id>[:<checkpoint>]`."""
    return ":".join([prefix, base, job_id, *([checkpoint] if checkpoint else [])])


def checkpoint_name(step: int) -> str:
    """Return the last segment of the id under which a job's checkpoint of this step is served."""
    return f"step_{step}"


def parse_finetuned(model_id: str) -> FineTunedId | None:
    """Take a fine-tuned id apart; None when it has not the shape of one.

    A Qwen3 base may stand in any case and at any later place (`ft:acme:qwen/qwen3-0.6b:job_7f`): the segments before it
    are ignored. Any other base is not looked up.
    """
    prefix, *rest = model_id.split(":")
    known = PREFIXES.get(prefix)
    if known is None or not rest:
        return None
    at = next((i for i, segment in enumerate(rest) if canonical(segment)), 0)
    base, *tail = rest[at:]
    if len(tail) not in (1, 2) or not all(_SEGMENT.fullmatch(s) for s in tail):
        return None
    return FineTunedId(known, canonical(base) or base, tail[0], tail[1] if len(tail) == 2 else None)
