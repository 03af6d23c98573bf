"""A worker's hold on a task: sure for as long as the server has said so in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from synth.bus.tasks.lease import Lease
from synth.work import Task

ACK_WAIT_S = 1.0
TASK = Task(kind="train", pool="default", org="org_a", job_id="job_1")


class Server:
    """A bus that answers after so many seconds, as its client and as a delivery see it."""

    is_connected = True
    reply = "the delivery"

    def __init__(self, *, answers_after_s: float) -> None:
        self.answers_after_s = answers_after_s
        self.asked: list[bytes] = []
        self.handed_back = 0

    async def request(self, subject: str, payload: bytes, *, timeout: float) -> None:
        self.asked.append(payload)
        await asyncio.sleep(self.answers_after_s)

    async def nak(self, delay: float | None) -> None:
        self.handed_back += 1


def lease_of(server: Any) -> Lease:
    no_failures: Any = None
    return Lease(TASK, server, failures=no_failures, ack_wait=ACK_WAIT_S)


async def test_an_answer_in_time_makes_it_sure_from_when_it_was_asked_for():
    server: Any = Server(answers_after_s=ACK_WAIT_S / 4)
    lease = lease_of(server)
    for _ in range(6):
        await lease.keep(server, timeout=1)
        assert not lease.in_doubt


@pytest.mark.parametrize("again", [False, True])
async def test_an_answer_that_comes_in_doubt_leaves_it_in_doubt(again: bool):
    server: Any = Server(answers_after_s=0.6 * ACK_WAIT_S)
    lease = lease_of(server)
    await asyncio.sleep(0.6 * ACK_WAIT_S)
    # Less than `ack_wait` ago when the answer comes, and yet it may be of the next owner's delivery.
    await lease.keep(server, timeout=1)
    assert lease.in_doubt
    server.answers_after_s = 0.0
    if again:
        await lease.keep(server, timeout=1)
    await lease.give_back(server)
    assert (server.asked, server.handed_back) == ([b"+WPI"], 0)


async def test_a_task_is_handed_back_once_the_server_has_said_that_it_hears():
    server: Any = Server(answers_after_s=0.0)
    await lease_of(server).give_back(server)
    assert (server.asked, server.handed_back) == ([b"+WPI"], 1)
