"""The environments that a task app plays: the names that a job may give as its `env_name`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from synth.errors import Problem

#: The longest list that is read, so that an odd app does not fill an event. A longer list is ignored.
_MOST_NAMES = 1000
_SHOWN = 8


def env_names(task_info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the `env_names` of `GET /task_info`; empty if the app lists none, and then any name may be right.

    No other field of that answer is used as a name: published apps put their task's id, a title or a dataset into other
    fields, and accept an `env_name` that is none of them.
    """
    listed: Any = task_info.get("env_names")
    if not isinstance(listed, list):
        return ()
    names = cast(list[Any], listed)
    if len(names) > _MOST_NAMES or not all(isinstance(name, str) and name for name in names):
        return ()
    return tuple(cast(list[str], names))


def wrong_env_name(requested: str | None, names: Sequence[str], *, where: str, url: str) -> Problem | None:
    """Return the problem of a job's `env_name` on this app, or None. names: of `env_names`. url: the app's address."""
    if requested is None or not names or requested in names:
        return None
    [near] = difflib.get_close_matches(requested, names, n=1) or [names[0]]
    others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return Problem(
        what=f"{requested!r} is not an environment of the task app at {url}",
        expected=", ".join(repr(name) for name in names[:_SHOWN]) + others,
        fix=f'write env_name = "{near}"',
        where=where,
    )
