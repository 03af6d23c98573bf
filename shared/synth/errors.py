"""The one tree of errors that a user or an operator can meet."""

from __future__ import annotations

import msgspec

#: Problems of one error: as many as an event can carry, a worker can return quickly, and a person can read.
MOST_PROBLEMS = 100


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One error in a user's input, in three parts: the error, the expected value, the fix.

    where: the place, as `configs/rl.toml:14 [model].base`, a JSONL line, or a URL; "" when there is none.
    """

    what: str
    expected: str = ""
    fix: str = ""
    where: str = ""

    def text(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.fix:
            parts.append(self.fix)
        return "; ".join(parts)


def shorten_problems(problems: list[Problem], *, of: int | None = None) -> list[Problem]:
    """Return the first problems, and one that has the number of the others, if there are more than a hundred.

    of: how many there are, if `problems` has the first ones alone.
    """
    more = (of or len(problems)) - MOST_PROBLEMS
    if more <= 0:
        return problems
    return [*problems[:MOST_PROBLEMS], Problem(what=f"and {more:,} more problems", where=problems[-1].where)]


class SynthError(Exception):
    """Everything that we raise on purpose."""


class UserError(SynthError):
    """The user's input is wrong: the problems at once, never only the first; of many, the first hundred."""

    def __init__(
        self, problems: str | Problem | list[Problem], *, expected: str = "", fix: str = "", where: str = ""
    ) -> None:
        """problems: one as a text, which has the further parts of a `Problem`; or one or more of them."""
        if isinstance(problems, str):
            problems = Problem(what=problems, expected=expected, fix=fix, where=where)
        self.problems = [problems] if isinstance(problems, Problem) else shorten_problems(problems)
        super().__init__("\n".join(p.text() for p in self.problems))

    def __reduce__(self) -> tuple[type[UserError], tuple[list[Problem]]]:
        # A worker process sends it with its problems. A subclass may have other arguments.
        return UserError, (self.problems,)


class InvalidKey(SynthError):
    """A key or credential that is malformed, forged, expired or another's."""


class Permanent(SynthError):
    """Trying again cannot help: the message is dead-lettered with this reason."""


class Transient(SynthError):
    """An error that may pass: try again, after `delay` seconds if it is set."""

    def __init__(self, reason: str, *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Crashed(SynthError):
    """The process that did the work ended without a reason: this is a failure, and another attempt continues."""


class NewerVersion(Transient):
    """A newer version wrote this: this process cannot judge it, and leaves it to a process that can read it."""


class Fenced(SynthError):
    """Another attempt owns this job now: stop, commit nothing more."""


class Conflict(SynthError):
    """A compare-and-set lost: read again, then decide again."""
