"""The errors of `synthctl`, each with its exit code for scripts."""

from __future__ import annotations

from enum import IntEnum

from synth.errors import Problem, SynthError


class ExitCode(IntEnum):
    """The exit codes, documented in `synthctl --help`."""

    OK = 0
    ERROR = 1
    USAGE = 2
    JOB_FAILED = 3
    AUTH = 4
    JOB_CANCELLED = 5
    NOT_FOUND = 6
    UNREACHABLE = 7
    TIMEOUT = 124
    INTERRUPTED = 130


class CliError(SynthError):
    """An error that ends the command with a message; `code` is the exit code.

    status: of an answer of the backend, else None. request_id: of that request, as in its `traceparent`.
    """

    code = ExitCode.ERROR
    status: int | None = None
    request_id: str | None = None

    def __init__(self, what: str, *, expected: str = "", fix: str = "", where: str = "") -> None:
        self.problems = [Problem(what=what, expected=expected, fix=fix, where=where)]
        super().__init__(self.problems[0].text())

    @classmethod
    def of(cls, problems: list[Problem]) -> CliError:
        """Return an error of several problems, as the backend reports them."""
        error = cls("")
        error.problems = problems
        error.args = ("\n".join(p.text() for p in problems),)
        return error


class UsageProblem(CliError):
    """The command line, the configuration or a file given to it is wrong."""

    code = ExitCode.USAGE


class NotAuthorised(CliError):
    """No API key, or one that the backend does not know."""

    code = ExitCode.AUTH


class NotFound(CliError):
    """The backend has nothing under this id."""

    code = ExitCode.NOT_FOUND


class Unreachable(CliError):
    """Nothing that is a Synth backend answers at the address."""

    code = ExitCode.UNREACHABLE


class TimedOut(CliError):
    """The wait that the user allowed is over."""

    code = ExitCode.TIMEOUT
