"""Compute whether a job fits the devices that would train it, and if not, which changes would make it fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec

from synth.errors import Problem
from synth.jobs.memory import training_memory
from synth.jobs.plan import TrainerDevice
from synth.methods.base import CPU_FORWARDS, LoraSettings, TrainingJob
from synth.models.memory import in_words
from synth.models.shape import ModelShape

#: The share of a device that a suggestion may take. The rest is for memory that the arithmetic leaves out: CUDA's own,
#: workspaces, the allocator's losses. A job is refused only if the arithmetic alone exceeds the device.
SHARE = 0.9

_LEAST_TOKENS = 256
_RANKS = (2, 4, 8)


class _Change(msgspec.Struct, frozen=True):
    """A change of a job file in words, and the job that it makes, of the ranks that train it."""

    words: str
    job: TrainingJob
    ranks: int


#: Makes one change in addition to the changes before it; returns None if it cannot.
_Maker = Callable[[_Change, Callable[[_Change], bool]], _Change | None]


def cannot_fit(job: TrainingJob, shape: ModelShape, on: TrainerDevice, *, where: str) -> Problem | None:
    """Return why a job cannot be trained on these devices; None if it can, or if the memory is unknown.

    where: the place in the job's file that names the model. Images are not counted, as their number is not known.
    """
    if on.memory is None:
        return None
    ranks, dtype = on.ranks_of(job), on.dtype_of(job)
    memory = training_memory(job, shape, dtype=dtype, device=on.device, ranks=ranks)
    needed = memory.total - memory.image_activations
    if needed <= on.memory:
        return None
    parts = sorted(((size, name) for name, size in memory.parts.items() if size), reverse=True)
    shares = ", ".join(
        f"{name.replace('_', ' ')} {in_words(size)}" for size, name in parts if name != "image_activations"
    )
    devices = "one device, which has" if ranks == 1 else f"each of {ranks} devices, which have"
    fixes = _suggestions(job, shape, on, ranks)
    return Problem(
        what=f"training {job.base_model!r} takes {in_words(needed)} on {devices} {in_words(on.memory)}: {shares}",
        expected=f"a job that takes at most {in_words(on.memory)}",
        fix=f"any of: {'; '.join(fixes)}" if fixes else "choose a smaller model, or a device with more memory",
        where=where,
    )


def _suggestions(job: TrainingJob, shape: ModelShape, on: TrainerDevice, ranks: int) -> list[str]:
    """Return the smallest sets of changes that make the job fit with room to spare: first the sets that train the same
    weights, then those with an adapter."""
    assert on.memory is not None
    most = int(SHARE * on.memory)

    def fits(change: _Change) -> bool:
        memory = training_memory(change.job, shape, dtype=on.dtype_of(job), device=on.device, ranks=change.ranks)
        return memory.total - memory.image_activations <= most

    same, tokens = _savings(job, on, ranks), [_fewer_tokens(on)]
    # Fewer tokens come last, so that the suggestion states how many a forward may still have.
    suggestions = _fewest([*same, *tokens], _Change("", job, ranks), fits)
    for adapter in _adapters(job):
        changed = adapter(_Change("", job, ranks), fits)
        if fits(changed):
            suggestions.append(changed.words)
        else:
            suggestions += _fewest([*same, *tokens], changed, fits)
    return suggestions


def _fewest(makers: list[_Maker], start: _Change, fits: Callable[[_Change], bool]) -> list[str]:
    """Return the smallest sets of changes that make a job fit, in words: single changes, else pairs, and so on."""
    for count in range(1, len(makers) + 1):
        texts: list[str] = []
        for several in itertools.combinations(makers, count):
            changed: _Change | None = start
            for change in several:
                changed = None if changed is None else change(changed, fits)
            if changed is not None and fits(changed):
                texts.append(changed.words)
        if texts:
            return texts
    return []


def _savings(job: TrainingJob, on: TrainerDevice, ranks: int) -> list[_Maker]:
    """Return the changes that save memory without a change of results beyond rounding: settings, and more devices."""
    settings = [_setter(words, **values) for words, values in job.savings(on_gpu=on.device == "cuda")]
    return [*settings, _more_ranks(ranks)]


def _setter(words: str, **values: object) -> Callable[[_Change, Callable[[_Change], bool]], _Change]:
    def change(before: _Change, fits: Callable[[_Change], bool]) -> _Change:
        return _Change(_joined(before.words, words), msgspec.structs.replace(before.job, **values), before.ranks)

    return change


def _adapters(job: TrainingJob) -> Iterator[Callable[[_Change, Callable[[_Change], bool]], _Change]]:
    """Yield the adapters that a job could train with less memory than its present mode."""
    default = LoraSettings(r=16, alpha=32, dropout=0.0, targets="all-linear")
    for mode, words in job.adapter_keys.items():
        if mode not in (job.mode, "lora" if job.mode == "qlora" else ""):
            yield _setter(words, mode=mode, lora=job.lora or default)


def _more_ranks(ranks: int) -> _Maker:
    def change(before: _Change, fits: Callable[[_Change], bool]) -> _Change | None:
        if before.job.parallelism.sharding == "replicated":
            return None
        for more in _RANKS:
            if more > ranks:
                made = _Change(_joined(before.words, f"{more} devices that train"), before.job, more)
                if fits(made):
                    return made
        return None

    return change


def _fewer_tokens(on: TrainerDevice) -> _Maker:
    def change(before: _Change, fits: Callable[[_Change], bool]) -> _Change | None:
        forwards = 1 if on.device == "cuda" else CPU_FORWARDS
        tokens = before.job.forward_tokens(on.device)
        while tokens // 2 >= _LEAST_TOKENS:
            tokens //= 2
            made = _with_tokens(before, tokens * forwards)
            if made.job.forward_tokens(on.device) > tokens:
                return None  # a row of SFT is a forward of its own
            if fits(made):
                return made
        return None

    return change


def _with_tokens(before: _Change, tokens: int) -> _Change:
    changed = msgspec.structs.replace(before.job, micro_batch_tokens=tokens)
    return _Change(_joined(before.words, f"micro_batch_tokens = {tokens}"), changed, before.ranks)


def _joined(before: str, words: str) -> str:
    return f"{before} and {words}" if before else words
