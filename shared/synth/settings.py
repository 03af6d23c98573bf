"""The base of every settings class: read from the environment, with errors that do not contain the wrong value."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from synth.errors import Problem, UserError

_PREFIX = "SYNTH_"
_UNKNOWN_KEY = "extra_forbidden"


class Settings(BaseSettings):
    """Settings that are read from `SYNTH_…`.

    Any of them may hold a password, also in a URL, and a log keeps an error's text: no error of these contains a
    value. Raises `UserError` with one problem for each wrong setting.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore", hide_input_in_errors=True)

    def __init__(self, **values: Any) -> None:
        problems: list[Problem] = []
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = [self._problem(e) for e in error.errors(include_input=False, include_url=False)]
        except SettingsError as error:
            problems = [_unreadable(error)]
        # Raised outside of the handlers: the first error is the context of none that a traceback prints.
        if problems:
            raise UserError(problems)

    @classmethod
    def _problem(cls, error: ErrorDetails) -> Problem:
        *parents, last = [str(part) for part in error["loc"]] or [""]
        if error["type"] != _UNKNOWN_KEY:
            what, unusable, expected = error["msg"].removeprefix("Value error, ").partition("Input should be ")
            return Problem(
                what="the value cannot be used" if unusable else what,
                # pydantic names the class of this project that the value is for.
                expected="a JSON object" if error["type"] == "model_type" else expected,
                where=_place([*parents, last]),
            )
        names = sorted({name for model in _models(cls.model_fields[parents[0]].annotation) for name in model})
        near = difflib.get_close_matches(last, names, n=1)
        return Problem(
            what=f"unknown key {last!r}",
            expected=f"one of {', '.join(names)}",
            fix=f"did you mean {near[0]!r}?" if near else "",
            where=_place(parents),
        )


def _place(path: list[str]) -> str:
    return ".".join([_PREFIX + path[0].upper(), *path[1:]]) if path[0] else "settings"


def _models(annotation: Any) -> Iterator[list[str]]:
    """Yield the names of the fields of each model in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield list(annotation.model_fields)
    for part in get_args(annotation):
        yield from _models(part)


def _unreadable(error: SettingsError) -> Problem:
    # pydantic names the field and the source, in quotes, and keeps the value to the error's cause.
    field = str(error).partition('"')[2].partition('"')[0]
    return Problem(what="not valid JSON", expected="a JSON object or list", where=_place([field]))
