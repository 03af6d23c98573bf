"""Look up the hosts that users name, on separate threads: a zone that never answers blocks no other lookup.

`getaddrinfo` cannot be cancelled: its thread is gone until the system's resolver has given up, which is tens of seconds
for a zone that does not answer. On the event loop's own few threads, half a dozen such hosts would hold up everything
else that a service does there. Here a lookup that was given up keeps its place until its thread is free, no zone has
more than a quarter of the places, and the next free place goes to the zone that has the fewest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections import Counter, deque
from weakref import WeakKeyDictionary

#: Concurrent lookups in one process. A thread that waits for a name costs about 50 kB.
_MOST = 256
_MOST_OF_A_ZONE = _MOST // 4

_Found = list[str]


class NameLookups:
    """The name lookups of one event loop. most: concurrent lookups; most_of_a_zone: concurrent lookups of one zone."""

    def __init__(self, *, most: int = _MOST, most_of_a_zone: int = _MOST_OF_A_ZONE) -> None:
        self._most = most
        self._most_of_a_zone = most_of_a_zone
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the IP addresses of a host, each once, in the resolver's order. Raises OSError and UnicodeError.

        The caller sets the deadline for both waits: for a place, and for the answer.
        """
        if _is_address(host):
            return _look_up(host, port)
        zone = _zone(host)
        await self._place(zone)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Found] = loop.create_future()

        def run() -> None:
            try:
                result: _Found | Exception = _look_up(host, port)
            except Exception as error:  # noqa: BLE001  (the edge of the thread: the caller gets it)
                result = error
            try:
                loop.call_soon_threadsafe(end, result)
            except RuntimeError:  # The loop has ended, so no caller waits.
                return

        def end(found: _Found | Exception) -> None:
            self._leave(zone)
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        try:
            # A daemon: a process that ends does not wait for a name.
            threading.Thread(target=run, name=f"look up {zone}", daemon=True).start()
        except BaseException:
            self._leave(zone)
            raise
        return await answer

    async def _place(self, zone: str) -> None:
        if self._is_free(zone):
            self._running[zone] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(zone, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # The place was given in the moment that its caller gave up.
                self._leave(zone)
            elif turn in (waiting := self._waiting.get(zone, deque())):
                waiting.remove(turn)
            raise

    def _is_free(self, zone: str) -> bool:
        return self._running.total() < self._most and self._running[zone] < self._most_of_a_zone

    def _leave(self, zone: str) -> None:
        """Give a place back, and let waiting lookups take free places."""
        self._running[zone] -= 1
        self._running += Counter()  # Drops the zones that have none.
        for waiting_zone in sorted(self._waiting, key=lambda name: self._running[name]):
            waiting = self._waiting[waiting_zone]
            while waiting and self._is_free(waiting_zone):
                turn = waiting.popleft()
                if not turn.done():
                    self._running[waiting_zone] += 1
                    turn.set_result(None)
            if not waiting:
                del self._waiting[waiting_zone]


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, NameLookups] = WeakKeyDictionary()


def name_lookups() -> NameLookups:
    """Return the lookups of the running event loop."""
    return _of_loop.setdefault(asyncio.get_running_loop(), NameLookups())


def _look_up(host: str, port: int) -> _Found:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _zone(host: str) -> str:
    """Guess the zone whose servers answer for a host: `example.com` for `api.eu.example.com`, and `example.co.uk` for
    `api.example.co.uk`: below a country the second label is often a registry's too."""
    labels = host.lower().rstrip(".").split(".")
    of_registry = len(labels) > 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if of_registry else -2 :])
