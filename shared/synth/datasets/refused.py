"""Problems of datasets that are valid, but that a job cannot use."""

from __future__ import annotations

from synth.errors import Problem


def images_refused(name: str, model: str, *, where: str) -> Problem:
    """Return the problem of a dataset that shows images to a text model. name: the file's."""
    return Problem(
        what=f"{name!r} shows images, and {model} sees none",
        expected="a file of text, or a vision model",
        fix="choose a Qwen3-VL model, or upload the conversations without their images",
        where=where,
    )


def prompts_refused(name: str, *, rows: int, prompts: int, images: int, last: int, where: str) -> Problem | None:
    """Return the problem of a dataset whose rows a grader's job cannot play; None if there is none.

    name: the file's. prompts: how many of its rows end with the user's message. last: the largest row that is played.
    """
    if prompts < rows:
        return Problem(
            what=f"{name!r} has {rows - prompts} rows whose last message is not the user's",
            expected="rows of `messages` that end with the user's, which the model is to answer",
            fix="leave the answers out, or give them in a field that the grader refers to",
            where=where,
        )
    if images:
        return Problem(
            what=f"{name!r} shows images, and graded rollouts are of text",
            expected="a file of text",
            fix="write a task app for prompts with images",
            where=where,
        )
    if last >= rows:
        return Problem(
            what=f"row {last} is to be played, and {name!r} has {rows} rows",
            expected=f"numbers of rows from 0 to {rows - 1}",
            fix=f'set seeds = "0-{rows - 1}"' if rows > 1 else "set seeds = [0]",
            where=where,
        )
    return None


def rows_refused(name: str, *, pairs: bool, dpo: bool, unanswered: bool, where: str) -> Problem | None:
    """Return the problem of a dataset that holds the other kind of rows than the job trains; None if there is none.

    name: the file's. pairs: whether its rows are preference pairs. dpo: whether the job trains on such. unanswered:
    whether they are only prompts.
    """
    if unanswered:
        return Problem(
            what=f"{name!r} holds prompts without answers, and this job learns from answers",
            expected="a file of preference pairs" if dpo else "a file of conversations, each with an assistant message",
            fix="add the answers, or train on the prompts by reinforcement, with a [grader]",
            where=where,
        )
    if pairs == dpo:
        return None
    if pairs:
        return Problem(
            what=f"{name!r} holds preference pairs, and this is a supervised job",
            expected="a file of conversations",
            fix='train on it with [algorithm] method = "dpo", or name a file of conversations',
            where=where,
        )
    return Problem(
        what=f"{name!r} holds conversations, and DPO trains on preference pairs",
        expected="a file whose rows have `chosen` and `rejected`, or `preferred_output` and `non_preferred_output`",
        fix='upload such a file, or train on this one with [algorithm] method = "sft"',
        where=where,
    )
