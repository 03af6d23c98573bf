"""The records of open rollouts: what was sampled under each credential (cid), kept in memory until it is closed.

Invariants: a cid takes calls from its first to its close or expiry, and never again; its records are handed over
whole, in the order in which the calls arrived; a close that is repeated gets the same bytes for a while; nothing that
a task app says about tokens is believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from synth.errors import SynthError, Transient
from synth.inference.chat.prompts import TokenHistory
from synth.keys import Cid
from synth.trajectories import CompletionRecord, records_to_bytes

_CLOSED_KEPT = 60.0
# A sweep looks at every rollout of the last minutes: one for each close would cost more the longer a job runs.
_SWEEP_PAUSE = 1.0


class CidVoid(SynthError):
    """The credential was closed, or its time is over."""


class BudgetSpent(SynthError):
    """The credential has made all the calls that it may."""


@dataclass(eq=False, slots=True)
class OpenCid:
    """One rollout under way. calls: that count against its budget; begun: all of them, failed ones too.

    records: by the number of the call. running: what ends each call in flight.
    """

    cid: Cid
    calls: int = 0
    begun: int = 0
    records: dict[int, CompletionRecord] = field(default_factory=dict[int, CompletionRecord])
    running: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])
    history: TokenHistory = field(default_factory=TokenHistory)
    nbytes: int = 0
    void: bool = False


class Call:
    """One chat call of a rollout, from `Recorder.begin` until `finish` or `fail`."""

    def __init__(self, recorder: Recorder, rollout: OpenCid, number: int) -> None:
        self._recorder = recorder
        self._rollout = rollout
        self._number = number
        self.settled = False

    @property
    def cid(self) -> Cid:
        return self._rollout.cid

    @property
    def history(self) -> TokenHistory:
        return self._rollout.history

    def ends_with(self, abort: Callable[[], None]) -> None:
        """What to call if the rollout is closed, or expires, while this call runs."""
        self._rollout.running[self._number] = abort

    def finish(self, record: CompletionRecord) -> None:
        """Keep what was sampled. After a close it is dropped and counted: the rollout has been judged without it."""
        self.settled = True
        self._rollout.running.pop(self._number, None)
        self._recorder.keep(self._rollout, self._number, record)

    def fail(self) -> None:
        """It came to nothing through no fault of the caller: it does not count. Does nothing after `finish`."""
        if self.settled:
            return
        self.settled = True
        self._rollout.running.pop(self._number, None)
        self._rollout.calls -= 1


class Recorder:
    """All open rollouts of one inference process.

    read: the credential in a text, expired or not; raises `InvalidKey` if we did not sign it (`keys.read_cid` with
    `now=0`). max_bytes: of the records of open rollouts together, and again of the closed ones; beyond it new calls
    are refused with `Transient`. now: unix seconds.
    """

    def __init__(
        self, read: Callable[[str], Cid], *, max_bytes: int = 1 << 30, now: Callable[[], float] = time.time
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._now = now
        self._open: dict[str, OpenCid] = {}
        self._closed: dict[str, tuple[float, bytes]] = {}  # by the time of the close
        self._closed_bytes = 0
        self._gone: dict[str, int] = {}  # closed before it expires: text -> expiry
        self._sweep_due = 0.0
        self.nbytes = 0
        self.late_records = 0
        self.branch_breaks = 0

    @property
    def open(self) -> int:
        """Rollouts under way."""
        return len(self._open)

    def begin(self, text: str) -> Call:
        """Start a call under a credential. Raises what `begin_all` raises."""
        return self.begin_all(text, 1)[0]

    def begin_all(self, text: str, choices: int) -> list[Call]:
        """Start a call for each of a request's choices: all of them, or none.

        Raises `InvalidKey` if it is not ours, `CidVoid` after its close or expiry, `BudgetSpent` beyond its calls,
        `Transient` when the records held for the collectors fill their memory.
        """
        rollout = self._open.get(text)
        if rollout is None:
            cid = self._read(text)
            if text in self._gone:
                raise CidVoid("this rollout has been closed; its credential takes no more calls")
            rollout = OpenCid(cid)
        if rollout.cid.expires <= self._now():
            raise CidVoid("this rollout's credential has expired")
        if rollout.calls >= rollout.cid.calls:
            raise BudgetSpent(f"this rollout has made all of its {rollout.cid.calls} calls")
        if rollout.calls + choices > rollout.cid.calls:
            left = rollout.cid.calls - rollout.calls
            raise BudgetSpent(f"n = {choices} are {choices} calls, and this rollout has {left} of them left")
        if self.nbytes >= self._max_bytes:
            raise Transient(f"{len(self._open)} open rollouts fill the recorder's {self._max_bytes} bytes", delay=5)
        self._open[text] = rollout
        first = rollout.begun + 1
        rollout.calls += choices
        rollout.begun += choices
        return [Call(self, rollout, number) for number in range(first, first + choices)]

    def keep(self, rollout: OpenCid, number: int, record: CompletionRecord) -> None:
        """See `Call.finish`."""
        if rollout.void:
            self.late_records += 1
            return
        rollout.records[number] = record
        size = sum(
            a.nbytes for a in (record.prompt_ids, record.sampled_ids, record.logprobs, record.versions, record.sampled)
        )
        rollout.nbytes += size
        self.nbytes += size

    def close(self, text: str) -> bytes:
        """End a rollout: its records, for `synth.trajectories.records_from_bytes`. Calls in flight are aborted.

        A credential that was never used closes with no records. Raises `InvalidKey` if it is not ours, `CidVoid` if
        its records have been handed over too long ago, or it expired unclosed.
        """
        now = self._now()
        if now >= self._sweep_due:
            self.sweep()
        until, body = self._closed.get(text, (0.0, b""))
        if until > now:
            return body
        rollout = self._open.pop(text, None)
        if rollout is None:
            rollout = OpenCid(self._read(text))
            if text in self._gone or rollout.cid.expires <= now:
                raise CidVoid("this rollout's records are no longer held")
        elif rollout.cid.expires <= now:
            self._end(text, rollout)
            raise CidVoid("this rollout's credential has expired, and its records with it")
        self._end(text, rollout)
        body = records_to_bytes([rollout.records[n] for n in sorted(rollout.records)])
        self._closed[text] = (now + _CLOSED_KEPT, body)
        self._closed_bytes += len(body)
        self._shed(now)
        return body

    def sweep(self) -> None:
        """Drop what expired: open rollouts, and closed bytes past their minute or beyond the memory."""
        now = self._now()
        self._sweep_due = now + _SWEEP_PAUSE
        for text in [t for t, r in self._open.items() if r.cid.expires <= now]:
            self._end(text, self._open.pop(text))
        self._shed(now)
        for text in [t for t, expires in self._gone.items() if expires <= now]:
            del self._gone[text]

    def _shed(self, now: float) -> None:
        """Drop closed bytes, the oldest first: those past their minute, and what is beyond the memory."""
        while self._closed:
            text, (until, body) = next(iter(self._closed.items()))
            if until > now and self._closed_bytes <= self._max_bytes:
                return
            del self._closed[text]
            self._closed_bytes -= len(body)

    def _end(self, text: str, rollout: OpenCid) -> None:
        rollout.void = True
        self.nbytes -= rollout.nbytes
        self.branch_breaks += rollout.history.branch_breaks
        self._gone[text] = rollout.cid.expires
        for abort in list(rollout.running.values()):
            abort()
