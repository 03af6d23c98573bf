"""Reads of a job's rollouts from the log: pages, and single rollouts with all of their data in the log.

A job may have half a million rollouts. So as little as possible is read (an iteration's rollouts follow its request),
page by page, and only the rollouts of the result are kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from synth.api.rollouts import RolloutMode, RolloutPage, RolloutSort, RolloutSummary
from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.events import RolloutBatched, RolloutCompleted, RolloutFailed, RolloutRequested
from synth.gateway.presentation.rollouts import rollout_view
from synth.gateway.read_model.event_log import read_page
from synth.gateway.read_model.tables.judged_rewards import JudgedRewards

_PAGE = 1000
_Key = tuple[float, int]


@dataclass(frozen=True)
class RolloutQuery:
    """The requested rollouts. failed: only rollouts that failed, in the environment or in the policy, or were late.

    after: the key of the last rollout of the previous page: its reward in the order (0 if the order does not use it),
    and its sequence.
    """

    sort: RolloutSort = "newest"
    limit: int = 20
    mode: RolloutMode | None = None
    iteration: int | None = None
    seed: int | None = None
    failed: bool = False
    after: _Key | None = None

    def wants(self, rollout: RolloutSummary) -> bool:
        """Return whether a rollout matches the query, on any page."""
        return (
            self.mode in (None, rollout.mode)
            and self.iteration in (None, rollout.iteration)
            and self.seed in (None, rollout.seed)
            and not (self.failed and rollout.outcome == "ok")
            and not (rollout.reward is None and self.sort in ("worst", "best"))
        )

    def key(self, rollout: RolloutSummary) -> _Key:
        """Return a rollout's key in the order: the smaller key comes first."""
        reward = rollout.reward or 0.0
        match self.sort:
            case "newest":
                return 0.0, -rollout.seq
            case "oldest":
                return 0.0, rollout.seq
            case "worst":
                return reward, rollout.seq
            case "best":
                return -reward, rollout.seq


@dataclass(frozen=True)
class RequestMark:
    """The start of one request's rollouts in the log. size: its number of rollouts, without refills."""

    seq: int
    mode: str
    iteration: int
    size: int
    oldest_version: int
    pinned_version: int | None


@dataclass(frozen=True)
class FoundRollout:
    """One rollout in the log. members: the rollouts of its group by index. batched: its iteration's batch."""

    recorded: Recorded
    members: dict[int, RolloutSummary]
    request: RequestMark | None
    batched: RolloutBatched | None

    @property
    def event(self) -> RolloutCompleted | RolloutFailed:
        assert isinstance(self.recorded.event, RolloutCompleted | RolloutFailed)
        return self.recorded.event


async def read_rollouts(
    bus: Connection, org: str, job_id: str, query: RolloutQuery, rewards: JudgedRewards
) -> RolloutPage:
    """Return one page of a job's rollouts. Raises `Transient` if the bus does not answer."""
    result = _Smallest(query.limit + 1, query, rewards)
    marks = await _read_marks(bus, org, job_id)
    if query.iteration is not None:
        await _read_iteration(bus, org, job_id, query, marks, result)
    elif query.sort == "newest":
        await _read_backwards(bus, org, job_id, query, marks, result)
    else:
        start = query.after[1] + 1 if query.sort == "oldest" and query.after else 0
        async for recorded in _scan(bus, org, job_id, start=start):
            result.add(recorded)
            if query.sort == "oldest" and result.full:
                break
    rollouts = result.in_order()
    page = rollouts[: query.limit]
    more = len(rollouts) > len(page)
    return RolloutPage(data=page, has_more=more, next=_cursor(query.key(page[-1])) if more else None)


async def find_rollout(
    bus: Connection, org: str, job_id: str, rewards: JudgedRewards, *, mode: str, iteration: int, index: int
) -> FoundRollout:
    """Find one rollout, its group and its batch. Raises `LookupError` if it is not in the log (yet)."""
    marks = await _read_marks(bus, org, job_id)
    request = next((m for m in marks if (m.mode, m.iteration) == (mode, iteration)), None)
    if request is None and marks:
        raise LookupError
    result: Recorded | None = None
    members: defaultdict[int, dict[int, RolloutSummary]] = defaultdict(dict)
    batched: RolloutBatched | None = None
    async for recorded in _scan(bus, org, job_id, start=request.seq if request else 0):
        event = recorded.event
        if isinstance(event, RolloutBatched) and mode == "train" and event.iteration == iteration:
            batched = event
            break
        if not isinstance(event, RolloutCompleted | RolloutFailed) or (event.mode, event.iteration) != (
            mode,
            iteration,
        ):
            continue
        before = members[event.group].get(event.index)
        # A collector that did not know yet that it was replaced may have abandoned a rollout that another completed.
        if before is None or (before.outcome in ("failed", "late") and isinstance(event, RolloutCompleted)):
            members[event.group][event.index] = rollout_view(recorded, rewards.reward(event))
            result = recorded if event.index == index else result
        if result is not None and mode == "eval":
            break
    if result is None:
        raise LookupError
    event = result.event
    assert isinstance(event, RolloutCompleted | RolloutFailed)
    group = dict(sorted(members[event.group].items()))
    return FoundRollout(result, group, request, batched)


def parse_cursor(text: str) -> _Key:
    """Parse a page's `next` into its key. Raises `ValueError` for any other text."""
    reward, _, seq = text.rpartition(":")
    return float(reward), int(seq)


def _cursor(key: _Key) -> str:
    # The repr of a float is the shortest text that gives exactly this float again.
    return f"{key[0]!r}:{key[1]}"


class _Smallest:
    """The first `size` of the added rollouts, in a query's order. Each rollout counts once."""

    def __init__(self, size: int, query: RolloutQuery, rewards: JudgedRewards) -> None:
        self._size = size
        self._query = query
        self._rewards = rewards
        self._heap: list[tuple[float, int, RolloutSummary]] = []
        # A bit for each index, by mode and iteration: a collector that was replaced may have announced a rollout too.
        self._completed: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._failed: defaultdict[tuple[str, int], int] = defaultdict(int)

    @property
    def full(self) -> bool:
        return len(self._heap) >= self._size

    def add(self, recorded: Recorded) -> None:
        """Add an event; an event that is no rollout, or does not match the query, changes nothing."""
        event = recorded.event
        if not isinstance(event, RolloutCompleted | RolloutFailed):
            return
        rollout, query = rollout_view(recorded, self._rewards.reward(event)), self._query
        request, bit = (rollout.mode, rollout.iteration), 1 << rollout.index
        if self._completed[request] & bit:
            return
        if isinstance(event, RolloutCompleted):
            self._completed[request] |= bit
            if self._failed[request] & bit:
                self._heap = [entry for entry in self._heap if entry[2].id != rollout.id]
                heapq.heapify(self._heap)
        elif self._failed[request] & bit:
            return
        else:
            self._failed[request] |= bit
        key = query.key(rollout)
        if not query.wants(rollout) or (query.after is not None and key <= query.after):
            return
        entry = (-key[0], -key[1], rollout)
        if not self.full:
            heapq.heappush(self._heap, entry)
        elif entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def in_order(self) -> list[RolloutSummary]:
        return [rollout for _, _, rollout in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


async def _read_iteration(
    bus: Connection, org: str, job_id: str, query: RolloutQuery, marks: list[RequestMark], found: _Smallest
) -> None:
    """Read the events between the requests of an iteration and their ends."""
    wanted = [m for m in marks if m.iteration == query.iteration and query.mode in (None, m.mode)]
    if marks and not wanted:
        return
    open_modes = {m.mode for m in wanted}
    to_come = next((m.size for m in wanted if m.mode == "eval"), 0)
    evaluated: set[int] = set()
    start = min((m.seq for m in wanted), default=0)
    async for recorded in _scan(bus, org, job_id, start=start):
        found.add(recorded)
        event = recorded.event
        # A batch ends the rollouts for training; an evaluation has no refills, and ends with its last rollout.
        if isinstance(event, RolloutBatched):
            if event.iteration == query.iteration:
                open_modes.discard("train")
        elif isinstance(event, RolloutCompleted | RolloutFailed) and event.mode == "eval":
            if event.iteration == query.iteration:
                evaluated.add(event.index)
            if len(evaluated) >= to_come:
                open_modes.discard("eval")
        if marks and not open_modes:
            return


async def _read_backwards(
    bus: Connection, org: str, job_id: str, query: RolloutQuery, marks: list[RequestMark], found: _Smallest
) -> None:
    """Read the log from its end, in growing stretches that begin at a request, until there are enough rollouts."""
    starts = [m.seq for m in marks]
    end = -query.after[1] if query.after else None
    last, stretch = len(starts), 1
    while True:
        last = max(0, last - stretch)
        start = starts[last] if last else 0
        if end is None or start < end:
            async for recorded in _scan(bus, org, job_id, start=start, end=end):
                found.add(recorded)
            end, stretch = start, stretch * 2
        if found.full or not start:
            return


async def _read_marks(bus: Connection, org: str, job_id: str) -> list[RequestMark]:
    """Return the marks of a job's requests, in order; none for an evaluation job, which has no request events."""
    marks: list[RequestMark] = []
    async for recorded in _read(bus, f"rollout.requested.{org}.{job_id}", start=0):
        if isinstance(recorded.event, RolloutRequested):
            e = recorded.event
            marks.append(_mark(recorded.seq, e))
    return marks


def _mark(seq: int, e: RolloutRequested) -> RequestMark:
    size = len(e.seeds) * e.group_size
    return RequestMark(seq, e.mode, e.iteration, size, e.oldest_version, e.pinned_version)


def _scan(bus: Connection, org: str, job_id: str, *, start: int, end: int | None = None) -> AsyncIterator[Recorded]:
    """Yield every event of a job's rollouts from one sequence up to another."""
    return _read(bus, f"rollout.*.{org}.{job_id}", start=start, before=lambda seq: end is None or seq < end)


async def _read(
    bus: Connection, subject: str, *, start: int, before: Callable[[int], bool] = lambda seq: True
) -> AsyncIterator[Recorded]:
    after = max(0, start - 1)
    while True:
        page = await read_page(bus, subject, after=after, limit=_PAGE)
        for recorded in page.events:
            if not before(recorded.seq):
                return
            yield recorded
        if not page.more or not page.events:
            return
        after = page.events[-1].seq
