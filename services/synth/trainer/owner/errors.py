"""How an attempt reports that its job cannot succeed."""

from __future__ import annotations

from synth.errors import Problem
from synth.estimates.verdict import Verdict


class JobFailure(Exception):
    """The job cannot succeed, however often it is tried: the owner ends it with this code, problem and verdict."""

    def __init__(self, code: str, problem: Problem, *, verdict: Verdict | None = None) -> None:
        super().__init__(problem.text())
        self.code = code
        self.problem = problem
        self.verdict = verdict
