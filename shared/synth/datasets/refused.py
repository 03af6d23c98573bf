"""Datasets whose lines are good, and that a job cannot be trained on all the same."""

from __future__ import annotations

from synth.errors import Problem


def images_refused(name: str, model: str, *, where: str) -> Problem:
    """The problem of a dataset that shows images to a text model. name: the file's."""
    return Problem(
        what=f"{name!r} shows images, and {model} sees none",
        expected="a file of text, or a vision model",
        fix="choose a Qwen3-VL model, or upload the conversations without their images",
        where=where,
    )


def rows_refused(name: str, *, pairs: bool, dpo: bool, where: str) -> Problem | None:
    """The problem of a dataset that holds the other kind of rows than a job is trained on; None where it fits.

    name: the file's. pairs: whether its rows are preference pairs. dpo: whether the job trains on such.
    """
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
