"""Records of open rollouts: their order, their end, their budget, their memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from synth.chat.messages import Conversation, Message
from synth.errors import InvalidKey, Transient
from synth.inference.recording.recorder import CallBudgetExceeded, ChoiceRecording, CidClosed, Recorder
from synth.keys import Cid, mint_cid, read_cid
from synth.trajectories import CompletionRecord, records_from_bytes
from tests.keyrings import credentials

SECRET = credentials()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def credential(rollout: str = "job_1_t0_0", *, calls: int = 5, expires: int = 2000) -> str:
    return mint_cid(
        Cid(rollout_id=rollout, nonce=1, replica="r", version=None, calls=calls, ends=expires, expires=expires), SECRET
    )


def record(n: int) -> CompletionRecord:
    ids = np.arange(n, dtype=np.int32)
    return CompletionRecord(ids, ids, ids.astype(np.float32), ids, np.ones(n, np.bool_), "stop")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    return Recorder(lambda text: read_cid(text, SECRET, now=0), now=clock, max_bytes=4000)


def begin(recorder: Recorder, cid: str) -> ChoiceRecording:
    [choice] = recorder.begin_choices(cid, 1)
    return choice


def sizes(body: bytes) -> list[int]:
    return [len(r.prompt_ids) for r in records_from_bytes(body)]


def test_records_come_in_the_order_of_the_calls_not_of_their_ends(recorder: Recorder) -> None:
    cid = credential()
    first, second, third = (begin(recorder, cid) for _ in range(3))
    third.finish(record(3))
    second.fail()
    first.finish(record(1))
    begin(recorder, cid).finish(record(4))
    assert sizes(recorder.close(cid)) == [1, 3, 4]


def test_a_repeated_close_gets_the_same_bytes_for_a_minute_then_is_refused(recorder: Recorder, clock: Clock) -> None:
    cid = credential()
    begin(recorder, cid).finish(record(2))
    body = recorder.close(cid)
    clock.now += 59
    assert recorder.close(cid) == body
    clock.now += 2
    with pytest.raises(CidClosed, match="no longer held"):
        recorder.close(cid)


def test_a_closed_credential_takes_no_calls_and_late_records_are_dropped(recorder: Recorder) -> None:
    cid, aborted = credential(), []
    late = begin(recorder, cid)
    late.on_close(lambda: aborted.append(1))
    assert sizes(recorder.close(cid)) == []
    late.finish(record(5))
    with pytest.raises(CidClosed, match="this rollout is over"):
        begin(recorder, cid)
    assert (aborted, recorder.late_records, recorder.nbytes) == ([1], 1, 0)
    assert sizes(recorder.close(cid)) == []


def test_an_expired_credential_is_void_and_its_memory_is_freed(recorder: Recorder, clock: Clock) -> None:
    cid = credential(expires=1100)
    begin(recorder, cid).finish(record(5))
    clock.now = 1101
    with pytest.raises(CidClosed, match="expired"):
        begin(recorder, cid)
    recorder.sweep()
    assert (recorder.open, recorder.nbytes) == (0, 0)
    with pytest.raises(CidClosed):
        recorder.close(cid)


def test_the_call_budget_is_kept_and_a_failed_call_is_given_back(recorder: Recorder) -> None:
    cid = credential(calls=2)
    begin(recorder, cid).fail()
    begin(recorder, cid).finish(record(1))
    begin(recorder, cid)
    with pytest.raises(CallBudgetExceeded, match="all of its 2 calls"):
        begin(recorder, cid)


def test_a_forged_credential_is_refused_everywhere(recorder: Recorder) -> None:
    forged = credential()[:-1] + "x"
    for act in (partial(begin, recorder), recorder.close):
        with pytest.raises(InvalidKey):
            act(forged)


def test_memory_is_bounded(recorder: Recorder) -> None:
    begin(recorder, credential("job_1_t0_0")).finish(record(300))
    with pytest.raises(Transient, match="fill the recorder's 4000 bytes"):
        begin(recorder, credential("job_1_t0_1"))
    recorder.close(credential("job_1_t0_0"))
    begin(recorder, credential("job_1_t0_1"))


def test_a_rollout_that_never_called_closes_empty(recorder: Recorder) -> None:
    assert sizes(recorder.close(credential())) == []


def test_closed_records_are_let_go_when_they_fill_the_memory_the_oldest_first(recorder: Recorder) -> None:
    cids = [credential(f"job_1_t0_{i}") for i in range(4)]
    for cid in cids:
        begin(recorder, cid).finish(record(80))
        recorder.close(cid)
    assert sizes(recorder.close(cids[-1])) == [80]
    with pytest.raises(CidClosed, match="no longer held"):
        recorder.close(cids[0])


def test_an_open_rollout_that_expired_cannot_be_closed(recorder: Recorder, clock: Clock) -> None:
    recorder.close(credential("job_1_t0_1"))  # has just swept
    cid = credential(expires=1000)
    clock.now = 999.5
    begin(recorder, cid).finish(record(5))
    clock.now = 1000.0
    with pytest.raises(CidClosed, match="expired"):
        recorder.close(cid)
    assert recorder.nbytes == 0


def test_a_chat_goes_on_from_a_record_by_its_place_though_a_call_in_between_failed(recorder: Recorder) -> None:
    cid = credential()
    ask, reply = Message(role="user", content="where?"), Message(role="assistant", content="there")
    first, failed, last = (begin(recorder, cid) for _ in range(3))
    failed.fail()
    first.finish(replace(record(1), chat=first.chat(Conversation([ask]), reply)))
    more = Conversation([ask, reply, Message(role="user", content="and then?")])
    last.finish(replace(record(2), chat=last.chat(more, reply)))
    chats = [r.chat for r in records_from_bytes(recorder.close(cid))]
    assert chats[0] is not None
    assert chats[1] is not None
    assert (chats[1].continues, chats[1].kept) == (0, 2)
    assert chats[1].messages == [{"role": "user", "content": "and then?"}]
    assert chats[0].reply == {"role": "assistant", "content": "there"}
