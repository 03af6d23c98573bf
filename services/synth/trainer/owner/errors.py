"""How an attempt reports that its job cannot succeed."""

from __future__ import annotations

from synth.errors import Problem
from synth.estimates.verdict import Verdict


class JobFailure(Exception):
    """The job cannot succeed, however often it is tried: the owner ends it with this code, problem and verdict."""

    def __init__(
        self, code: str, problem: str | Problem, *, expected: str = "", fix: str = "", verdict: Verdict | None = None
    ) -> None:
        """problem: as a text, which has the further parts of a `Problem`; or one."""
        self.problem = Problem(what=problem, expected=expected, fix=fix) if isinstance(problem, str) else problem
        super().__init__(self.problem.text())
        self.code = code
        self.verdict = verdict
