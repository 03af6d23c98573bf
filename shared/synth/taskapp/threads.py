"""Run a blocking function in its own thread, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def run_in_thread(function: Callable[[], _T]) -> _T:
    """Run `function` in a thread and return its result. A cancellation ends only the wait: no thread can be stopped.

    The thread is a daemon outside of any pool: if it never ends, it delays neither other calls nor the process's exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - the waiting coroutine gets any error
            # These would end the server, or are taken by no future.
            ends_more = isinstance(raised, StopIteration) or not isinstance(raised, Exception)
            error = RuntimeError(repr(raised)) if ends_more else raised
        # The loop is closed if nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="episode", daemon=True).start()
    return await done
