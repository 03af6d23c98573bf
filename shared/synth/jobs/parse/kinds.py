"""The kind of a job file, and the errors for files of another kind. A filter is read here, but never submitted."""

from __future__ import annotations

from typing import Literal

from synth.errors import Problem
from synth.jobs.parse.toml import Document, Path

Kind = Literal["rl", "sft", "eval", "filter"]

_TABLES: dict[str, Kind] = {
    "eval": "eval",
    "filter": "filter",
    "grader": "rl",
    "hyperparameters": "sft",
    "job": "sft",
    # An evaluation of the older kind has its keys at the top, and may have [rollout] beside them.
    "task_app_url": "eval",
    "num_episodes": "eval",
    "rollout": "rl",
    "services": "rl",
    "seeds": "eval",
    "app_id": "eval",
}
_PROMPTS = "this optimises prompts (GEPA, MIPRO), and no prompts are optimised here"
_SCRIPT = "these are the settings of a script, not a job"
#: Files beside job files that resemble them, by a key that no job has.
_NOT_JOBS: dict[Path, str] = {
    ("prompt_learning",): _PROMPTS,
    ("build-system",): "this describes a Python project, not a job",
    ("tracing_v2",): _SCRIPT,
    ("experiment",): _SCRIPT,
    ("window",): _SCRIPT,
    ("evaluation", "models"): _SCRIPT,
}
_EXPECTED = "[algorithm], or [rollout] for RL, [hyperparameters] for SFT, [eval] for an evaluation"


def infer_kind(document: Document) -> Kind | None:
    """Return the kind of job, by the published client's own rule and its order; None for a file that is no job."""
    match document.get(("algorithm", "type")):
        case "online":
            return "rl"
        case "offline":
            return "sft"
        case _:
            pass
    if recognise_non_job(document) is not None:
        return None
    if document.get(("services", "task_url")) is not None:
        return "rl"
    if str(document.get(("training", "mode")) or "").startswith("sft"):
        return "sft"
    if document.get(("hyperparameters", "train_kind")) is not None:
        return "sft"
    for table, kind in _TABLES.items():
        if table in document.data:
            return kind
    match document.data.get("type"):
        case "rl":
            return "rl"
        case "sft":
            return "sft"
        case _:
            return None


def recognise_non_job(document: Document) -> Problem | None:
    """Return the problem of a file that is known to be no job; None for other files."""
    for path, what in _NOT_JOBS.items():
        if document.get(path) is not None:
            return Problem(what=what, expected="a job: RL, SFT or an evaluation of a model", where=document.where(path))
    return None


def unknown_kind(document: Document) -> Problem:
    """Return the problem of a file whose kind `infer_kind` cannot determine."""
    return recognise_non_job(document) or Problem(
        what="cannot tell what kind of job this is",
        expected=_EXPECTED,
        fix='start from `synthctl config init`, or add [algorithm] type = "online" (RL) or "offline" (SFT)',
        where=document.name,
    )
