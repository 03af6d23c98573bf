"""The one tree of errors that a user or an operator can meet."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with what a user gave us, in three parts: what, what was expected, what to do.

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


class SynthError(Exception):
    """Everything that we raise on purpose."""


class UserError(SynthError):
    """The user's input is wrong: every problem at once, never only the first."""

    def __init__(self, problems: list[Problem] | Problem) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else problems
        super().__init__("\n".join(p.text() for p in self.problems))

    def __reduce__(self) -> tuple[type[UserError], tuple[list[Problem]]]:
        # From a worker process it arrives with its problems. A subclass may be made of other arguments.
        return UserError, (self.problems,)


class InvalidKey(SynthError):
    """A key or credential that is malformed, forged, expired or another's."""


class Permanent(SynthError):
    """Trying again cannot help: the message is dead-lettered with this reason."""


class Transient(SynthError):
    """Worth trying again, after `delay` seconds where it is known."""

    def __init__(self, reason: str, *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Crashed(SynthError):
    """What did the work has ended without saying why: it counts as a failure, and another attempt goes on."""


class NewerVersion(Transient):
    """A newer version wrote this: it is not ours to judge, and waits for a process that can read it."""


class Fenced(SynthError):
    """Another attempt owns this job now: stop, commit nothing more."""


class Conflict(SynthError):
    """A compare-and-set lost: read again, then decide again."""
