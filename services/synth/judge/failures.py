"""A missing answer of a judge, as an exception. Its `JudgeFailure` is sent to the caller."""

from __future__ import annotations

from typing import Literal

from synth.errors import Problem
from synth.judging.contract import JudgeFailure

#: The most serious first: of several failures, the first of these is reported.
_GRAVITY = ("refused", "away", "unreadable")


class JudgeTrouble(Exception):
    """There are no scores, and never a score of 0 in their place."""

    def __init__(self, failure: JudgeFailure) -> None:
        super().__init__(failure.problem.text())
        self.failure = failure

    @property
    def gravity(self) -> int:
        """0 is the gravest."""
        return _GRAVITY.index(self.failure.kind)


def away(what: str, *, where: str, retry_after_s: float, limited: bool = False, fix: str = "") -> JudgeTrouble:
    """Return the trouble of a judge that cannot be reached or is overloaded: a later call may succeed."""
    problem = Problem(what=what, where=where, fix=fix)
    return JudgeTrouble(JudgeFailure(kind="away", problem=problem, retry_after_s=retry_after_s, limited=limited))


def working(votes: int) -> JudgeFailure:
    """Return the failure of an answer that takes longer than its request may. votes: how many there are so far."""
    what = f"the judge is still at it, with {votes} votes so far"
    problem = Problem(what=what, where="judge", fix="ask the same again: its answer is found then")
    return JudgeFailure(kind="working", problem=problem, retry_after_s=0)


def refused(what: str, *, where: str, expected: str = "", fix: str = "") -> JudgeTrouble:
    """Return the trouble of a question that can never be answered as it is."""
    return _trouble("refused", Problem(what=what, expected=expected, fix=fix, where=where))


def unreadable(what: str, *, where: str, fix: str = "") -> JudgeTrouble:
    """Return the trouble of a judge that answered without usable scores."""
    return _trouble("unreadable", Problem(what=what, fix=fix, where=where))


def _trouble(kind: Literal["refused", "unreadable"], problem: Problem) -> JudgeTrouble:
    return JudgeTrouble(JudgeFailure(kind=kind, problem=problem))
