"""JSON logs on stderr, one object a line, with the ids that let one find a job in all of them.

Text of a task app, a file, a model or a name is ASCII inside a JSON string there: none of its control characters is
written as such, and none breaks a line. Uncaught errors that end the process are lines of the log as well.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import structlog

Sink = Callable[[str], None]
_json = structlog.processors.JSONRenderer(default=str, ensure_ascii=True)
_sinks: dict[str, list[Sink]] = {}


@contextmanager
def copy_lines(job: str, sink: Sink) -> Generator[None]:
    """Bind `job` to the lines of this task, and call `sink` with each line of the process that has this job."""
    _sinks.setdefault(job, []).append(sink)
    try:
        with structlog.contextvars.bound_contextvars(job=job):
            yield
    finally:
        _sinks[job].remove(sink)
        if not _sinks[job]:
            del _sinks[job]


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    line = str(_json(logger, method, event))
    # A thread may log while a sink is added.
    for sink in tuple(_sinks.get(str(event.get("job")), ())):
        sink(line)
    return line


#: The steps from a call of a logger to a line.
PROCESSORS = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    _render,
]


def configure(service: str, *, level: str = "info", **ids: Any) -> None:
    """Set up structlog for this process. `service` and `ids` are on every line.

    Bind `attempt`, `rollout` and `version` with `structlog.contextvars.bound_contextvars` where they are known, and
    `job` with `copy_lines`.
    """
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, **ids)
    # Messages of libraries go the same way; only their warnings are worth a reader's time.
    handler = _ToStructlog()
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    # Python's own hooks would print the text of an error unescaped.
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        method = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(log, method)(record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    structlog.get_logger().critical("nobody caught this", exc_info=(kind, error, trace))


def get(name: str) -> Any:
    """Return a logger; `name` names the module in its lines."""
    return structlog.get_logger(part=name)
