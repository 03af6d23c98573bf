"""The one model of a job, which several keys of its file may name."""

from __future__ import annotations

from collections.abc import Sequence

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext

#: Characters of an id that are shown, as it can be any text.
_SHOWN = 80


def agreed_model(
    named: Sequence[tuple[Path, str | None]], context: ResolveContext, *, expected: str
) -> tuple[Path, str] | None:
    """Return the first place that names the model, and its id; None if no key names it, or if two keys name two models.

    Keys that name the same model in another case agree. expected: the text for the problem of two models.
    """
    models = [(path, model) for path, model in named if model is not None]
    if not models:
        return None
    path, model = models[0]
    for other, other_model in models[1:]:
        if other_model.lower() == model.lower():
            continue
        label, other_label = context.document.label(path), context.document.label(other)
        context.problem(
            other,
            f"{label} = {model[:_SHOWN]!r} and {other_label} = {other_model[:_SHOWN]!r} are two models",
            expected=expected,
            fix="remove one of the two, or pass --model",
        )
        return None
    return path, model
