"""Rejects what the openai SDK can send and this service does not support, because to ignore it would mislead.

This is for calls on a user's own account only: a rollout's call samples as its job says, whatever the task app sends.
"""

from __future__ import annotations

from synth.errors import Problem, UserError
from synth.inference.api.requests import ChatRequest


def reject_unsupported(request: ChatRequest) -> None:
    """Raises `UserError` with every parameter that would change the reply and is not supported."""
    asked: list[tuple[str, object, str, str]] = [
        ("frequency_penalty", request.frequency_penalty or None, "0", "penalties are not served"),
        ("presence_penalty", request.presence_penalty or None, "0", "penalties are not served"),
        ("logit_bias", request.logit_bias or None, "none", "leave it out"),
        ("functions", request.functions or None, "none", "send them as `tools`"),
        ("modalities", request.modalities if set(request.modalities or ()) - {"text"} else None, '["text"]', ""),
        ("audio", request.audio, "none", "replies are text"),
        ("web_search_options", request.web_search_options, "none", "give the model a tool of your own"),
        ("moderation", request.moderation, "none", "leave it out"),
        ("verbosity", request.verbosity if request.verbosity != "medium" else None, '"medium"', "say it in the prompt"),
        ("store", request.store or None, "false", "completions are not kept"),
    ]
    problems = [
        Problem(what=f"{name} is {str(value)[:60]}", expected=expected, fix=fix, where=name)
        for name, value, expected, fix in asked
        if value is not None
    ]
    if problems:
        raise UserError(problems)
