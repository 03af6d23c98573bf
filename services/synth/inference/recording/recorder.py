"""Keeps the records of open rollouts, the tokens sampled under each credential (cid), in memory until it is closed.

Invariants: a cid takes calls until it is closed or expires, and never again; a close returns all of its records, in
the order in which the calls arrived; a repeated close returns the same bytes for a minute; nothing that a task app
reports about tokens is trusted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from synth.chat.messages import Conversation, Message
from synth.errors import InvalidKey, SynthError, Transient
from synth.inference.chat.prompts import TokenHistory
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.recording.response_log import ResponseLog
from synth.keys import Cid
from synth.rollout_credential import CID_FIX
from synth.trajectories import CompletionRecord, records_to_bytes
from synth.transcripts.conversation_log import ConversationLog
from synth.transcripts.transcript import RecordedChat

_CLOSED_KEPT_S = 60.0
# A sweep checks every rollout of the last minutes, so a sweep at each close would cost more the longer a job runs.
_SWEEP_INTERVAL_S = 1.0


class CidClosed(SynthError):
    """The rollout of a credential is over: it was closed, or has expired."""

    @classmethod
    def to_calls(cls, what: str = "this rollout is over, and its credential takes no more calls") -> CidClosed:
        """Return the refusal of a call, with the way to correct it."""
        return cls(f"{what}; in the next rollout, {CID_FIX}")


class CallBudgetExceeded(SynthError):
    """The credential has used its budget of calls."""


@dataclass(eq=False, slots=True)
class OpenRollout:
    """A rollout whose cid takes calls. calls: the choices that count against its budget; a failed one does not.

    calls_begun: all choices. time: for its calls, from its first one on.
    records: by choice number. aborts: by choice number, the function that aborts it while it
    runs.
    """

    cid: Cid
    time: SamplingTime | None = None
    calls: int = 0
    calls_begun: int = 0
    records: dict[int, CompletionRecord] = field(default_factory=dict[int, CompletionRecord])
    aborts: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])
    history: TokenHistory = field(default_factory=TokenHistory)
    conversations: ConversationLog = field(default_factory=ConversationLog)
    responses: ResponseLog = field(default_factory=ResponseLog)
    nbytes: int = 0
    closed: bool = False

    @property
    def expires(self) -> float:
        """The end of its time, in Unix seconds: later than the credential's by the time that the policy had to wait."""
        return self.cid.expires + self.stood_still

    @property
    def stood_still(self) -> float:
        """See `SamplingTime`."""
        return 0.0 if self.time is None else self.time.stood_still


class ChoiceRecording:
    """The recording of one choice of a rollout's chat call, from `Recorder.begin_choices` until `finish` or `fail`."""

    def __init__(self, recorder: Recorder, rollout: OpenRollout, number: int) -> None:
        self._recorder = recorder
        self._rollout = rollout
        self._number = number
        self._chat: RecordedChat | None = None
        self.settled = False

    @property
    def cid(self) -> Cid:
        return self._rollout.cid

    @property
    def time(self) -> SamplingTime:
        """The time that its rollout has left for sampling."""
        return self._recorder.time_of(self._rollout)

    @property
    def history(self) -> TokenHistory:
        return self._rollout.history

    @property
    def closed(self) -> bool:
        """Whether its rollout is over, so that nothing of it is kept."""
        return self._rollout.closed

    def on_close(self, abort: Callable[[], None]) -> None:
        """Register the function that aborts this choice, called if the rollout is closed, or expires, while it runs."""
        self._rollout.aborts[self._number] = abort

    def chat(self, conversation: Conversation, reply: Message) -> RecordedChat:
        """Return the call as text, for its record, without the messages of earlier calls of the rollout."""
        self._chat = self._rollout.conversations.record(self._number, conversation, reply)
        return self._chat

    @property
    def responses(self) -> ResponseLog:
        """The responses of the rollout's earlier calls to the Responses API."""
        return self._rollout.responses

    def keep_items(self, response: str, items: Sequence[dict[str, Any]]) -> None:
        """Keep the items of a response by their ids, for later calls of the rollout."""
        if not self._rollout.closed:
            self._recorder.hold(self._rollout, self.responses.add_items(response, items))

    def keep_response(self, response: str, messages: Sequence[Message], reply: Message, *, instructed: bool) -> None:
        """Keep a response's conversation, for calls that continue it.

        instructed: whether the first message is the instructions of this call.
        """
        if self._chat is not None and not self._rollout.closed:
            size = self.responses.add_call(response, self._number, messages, reply, self._chat, instructed=instructed)
            self._recorder.hold(self._rollout, size)

    def finish(self, record: CompletionRecord) -> None:
        """Keep the sampled tokens. After the close they are dropped and counted: the rollout is scored without them."""
        self.settled = True
        self._rollout.aborts.pop(self._number, None)
        self._recorder.store(self._rollout, self._number, record)

    def fail(self) -> None:
        """End the choice without a record, and give it back to the budget. Does nothing after `finish`."""
        if self.settled:
            return
        self.settled = True
        self._rollout.aborts.pop(self._number, None)
        self._rollout.calls -= 1


class Recorder:
    """All open rollouts of one inference process.

    read: decodes a credential, expired or not; raises `InvalidKey` if we did not sign it (`keys.read_cid` with
    `now=0`). max_bytes: of the records of all open rollouts, and again of all closed ones; new calls beyond it are
    refused with `Transient`. end_s: how long an engine may take to end a reply whose rollout's time is over.
    now: returns unix seconds.
    """

    def __init__(
        self,
        read: Callable[[str], Cid],
        *,
        max_bytes: int = 1 << 30,
        end_s: float = 600.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._end_s = end_s
        self._now = now
        self._open: dict[str, OpenRollout] = {}
        self._closed: dict[str, tuple[float, bytes]] = {}  # cid text -> (kept until, bytes), in the order of closing
        self._closed_bytes = 0
        self._expiry_of_closed: dict[str, int] = {}  # closed before they expired: cid text -> expiry
        self._sweep_due = 0.0
        self.nbytes = 0
        self.late_records = 0
        self.branch_breaks = 0

    @property
    def open(self) -> int:
        """Rollouts under way."""
        return len(self._open)

    def begin_choices(self, cid_text: str, choices: int) -> list[ChoiceRecording]:
        """Begin to record a request's choices, each of which counts as a call: all of them, or none.

        Raises `InvalidKey` if it is not ours, `CidClosed` after its close or expiry, `CallBudgetExceeded` beyond its
        calls, `Transient` when the records held for the collectors fill their memory.
        """
        rollout = self._accepting(cid_text)
        if rollout.calls + choices > rollout.cid.calls:
            left = rollout.cid.calls - rollout.calls
            raise CallBudgetExceeded(f"n = {choices} are {choices} calls, and this rollout has {left} of them left")
        if self.nbytes >= self._max_bytes:
            raise Transient(
                f"{len(self._open)} open rollouts fill the recorder's {self._max_bytes} bytes (SYNTH_RECORDER_BYTES)",
                delay=5,
            )
        self._open[cid_text] = rollout
        first = rollout.calls_begun + 1
        rollout.calls += choices
        rollout.calls_begun += choices
        return [ChoiceRecording(self, rollout, number) for number in range(first, first + choices)]

    def check(self, cid_text: str) -> Cid:
        """Return a credential that may make one more call now. Raises as `begin_choices`, except `Transient`."""
        return self._accepting(cid_text).cid

    def _accepting(self, cid_text: str) -> OpenRollout:
        rollout = self._open.get(cid_text)
        if rollout is None:
            cid = self._read(cid_text)
            if cid_text in self._expiry_of_closed:
                raise CidClosed.to_calls()
            rollout = OpenRollout(cid)
        if rollout.expires <= self._now():
            raise CidClosed.to_calls("the rollout credential has expired: its rollout is over")
        if rollout.calls >= rollout.cid.calls:
            raise CallBudgetExceeded(f"this rollout has made all of its {rollout.cid.calls} calls")
        return rollout

    def store(self, rollout: OpenRollout, number: int, record: CompletionRecord) -> None:
        """See `ChoiceRecording.finish`."""
        if rollout.closed:
            self.late_records += 1
            return
        rollout.records[number] = record
        self.hold(rollout, record.nbytes)

    def hold(self, rollout: OpenRollout, nbytes: int) -> None:
        """Count bytes that are kept until a rollout is closed."""
        rollout.nbytes += nbytes
        self.nbytes += nbytes

    def responses(self, cid_text: str) -> ResponseLog:
        """Return the Responses of an open rollout; none of a rollout that has made no call."""
        rollout = self._open.get(cid_text)
        return ResponseLog() if rollout is None else rollout.responses

    def require_job(self, cid_text: str, job_id: str) -> None:
        """Raise `InvalidKey` unless this is a credential of a rollout of this job."""
        if self._read(cid_text).job_id != job_id:
            raise InvalidKey(f"this credential is for another job than {job_id}")

    def close(self, cid_text: str) -> bytes:
        """End a rollout, and abort its running calls. Returns its records, for `synth.trajectories.records_from_bytes`.

        A credential that was never used has no records. Raises `InvalidKey` if it is not ours, and `CidClosed` if it
        was closed too long ago, or expired before it was closed.
        """
        now = self._now()
        if now >= self._sweep_due:
            self.sweep()
        until, body = self._closed.get(cid_text, (0.0, b""))
        if until > now:
            return body
        rollout = self._open.pop(cid_text, None)
        if rollout is None:
            rollout = OpenRollout(self._read(cid_text))
            if cid_text in self._expiry_of_closed or rollout.cid.expires <= now:
                raise CidClosed("this rollout's records are no longer held")
        elif rollout.expires <= now:
            self._end(cid_text, rollout)
            raise CidClosed("this rollout's credential has expired, and its records with it")
        self._end(cid_text, rollout)
        body = records_to_bytes(_in_order(rollout.records))
        self._closed[cid_text] = (now + _CLOSED_KEPT_S, body)
        self._closed_bytes += len(body)
        self._evict_closed(now)
        return body

    def time_of(self, rollout: OpenRollout) -> SamplingTime:
        """Return the time of an open rollout, which ends with its credential."""
        if rollout.time is None:
            rollout.time = SamplingTime(rollout.cid.ends - self._now(), over_after_s=self._end_s)
        return rollout.time

    def stood_still(self, cid_text: str) -> float:
        """Return the seconds that the policy of an open rollout had to wait; 0 for one that has made no call."""
        rollout = self._open.get(cid_text)
        return 0.0 if rollout is None else rollout.stood_still

    def sweep(self) -> None:
        """Drop open rollouts that expired, and the bytes of closed ones that are too old or too many."""
        now = self._now()
        self._sweep_due = now + _SWEEP_INTERVAL_S
        for cid_text in [t for t, r in self._open.items() if r.expires <= now]:
            self._end(cid_text, self._open.pop(cid_text))
        self._evict_closed(now)
        for cid_text in [t for t, expires in self._expiry_of_closed.items() if expires <= now]:
            del self._expiry_of_closed[cid_text]

    def _evict_closed(self, now: float) -> None:
        """Drop the bytes of closed rollouts, oldest first: after a minute, or when together they exceed `max_bytes`."""
        while self._closed:
            cid_text, (until, body) = next(iter(self._closed.items()))
            if until > now and self._closed_bytes <= self._max_bytes:
                return
            del self._closed[cid_text]
            self._closed_bytes -= len(body)

    def _end(self, cid_text: str, rollout: OpenRollout) -> None:
        rollout.closed = True
        self.nbytes -= rollout.nbytes
        self.branch_breaks += rollout.history.branch_breaks
        self._expiry_of_closed[cid_text] = math.ceil(rollout.expires)
        for abort in list(rollout.aborts.values()):
            abort()


def _in_order(records: dict[int, CompletionRecord]) -> list[CompletionRecord]:
    """Return the records in the order of their calls. A chat then continues an index of them, no longer a number."""
    numbers = sorted(records)
    index = {number: i for i, number in enumerate(numbers)}
    ordered: list[CompletionRecord] = []
    for record in (records[number] for number in numbers):
        if (chat := record.chat) is not None and chat.continues is not None:
            record = replace(record, chat=msgspec.structs.replace(chat, continues=index[chat.continues]))
        ordered.append(record)
    return ordered
