"""Deliveries to short handlers: once when all is well, again when it may help, a dead letter when it does not."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from synth.bus.consumers import watch_consumers
from synth.bus.delivery import GiveUp, make_broker, on_event, release_slot, serve_events
from synth.bus.history.job_log import append_decided
from synth.bus.recorded import Recorded
from synth.bus.server.topology import MAX_DELIVERIES
from synth.errors import Permanent, Problem, Transient
from synth.events import FileUploaded, JobCreated
from synth.events.catalogue import Role
from synth.ids import new_job_id
from tests.service.bus.own_server import ACK_WAIT_S, OwnServer, delivered_up_to, left_in, next_dead_letter

QUEUE = ("EVENTS", "validator-job-created")
Handle = Callable[[Recorded, JobCreated], Awaitable[None]]


@asynccontextmanager
async def validator(
    own: OwnServer, handle: Handle, *, concurrency: int = 1, spare: int = 0, give_up: GiveUp | None = None
):
    """A service in this process, with this handler of `job.created`."""
    bus = await own.connect("validator")
    broker = make_broker(own.settings("validator"), "validator")
    on_event(broker, bus, Role.VALIDATOR, JobCreated, handle, concurrency=concurrency, spare=spare, give_up=give_up)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_events(broker, bus, Role.VALIDATOR, stop, asyncio.Event()))
    try:
        yield serving
    finally:
        stop.set()
        with suppress(Permanent):
            await asyncio.wait_for(serving, 15)


async def submit(own: OwnServer, *names: str, org: str = "org_a", config: str = "the config") -> None:
    gateway = await own.connect("gateway")
    for name in names:
        created = JobCreated(config=config, config_name=name, body_sha256="0")
        await append_decided(gateway, org, new_job_id(), lambda _, c=created: c)


class Handler:
    """Notes each delivery, and does what the test says; `enough` is set at the delivery that it waits for."""

    def __init__(self, act: Callable[[str, int], Awaitable[None] | None], *, enough: int) -> None:
        self.seen: list[tuple[str, float]] = []
        self.enough = asyncio.Event()
        self._act = act
        self._wanted = enough

    async def __call__(self, event: Recorded, created: JobCreated) -> None:
        name = created.config_name
        self.seen.append((name, time.monotonic()))
        tries = len([n for n, _ in self.seen if n == name])
        try:
            doing = self._act(name, tries)
            if doing is not None:
                await doing
        finally:
            if len(self.seen) >= self._wanted:
                self.enough.set()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


async def settled(own: OwnServer) -> None:
    """Everything was delivered and ended."""
    bus = own.opened[0]
    async with asyncio.timeout(10):
        # The consumer may not know of the last event yet.
        last = (await bus.js.get_last_msg("EVENTS", "job.created.>")).seq or 0
        while await left_in(bus, *QUEUE) != (0, 0) or await delivered_up_to(bus, *QUEUE) < last:
            continue


def well(name: str, tries: int) -> None:
    return None


def raising(error: Exception, *, until: int = 10**9) -> Callable[[str, int], None]:
    def act(name: str, tries: int) -> None:
        if tries < until:
            raise error

    return act


async def test_an_event_that_is_handled_is_delivered_once(own):
    await own.provision()
    handler = Handler(well, enough=3)
    async with validator(own, handler):
        await submit(own, "a", "b", "c")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert handler.names == ["a", "b", "c"]


async def test_a_handler_that_leaves_its_place_waits_beside_the_others_and_is_ended_by_itself(own):
    await own.provision()
    go_on = asyncio.Event()

    async def wait() -> None:
        release_slot()
        await go_on.wait()

    handler = Handler(lambda name, _: None if name == "quick" else wait(), enough=4)
    async with validator(own, handler):
        await submit(own, "slow", "slow", "slow", "quick")
        await asyncio.wait_for(handler.enough.wait(), 10)
        assert await left_in(own.opened[0], *QUEUE) != (0, 0)
        go_on.set()
        await settled(own)
    assert handler.names == ["slow", "slow", "slow", "quick"]


@pytest.mark.parametrize("spare", [0, 1])
async def test_an_organisation_with_much_to_do_does_not_keep_another_out(own, spare: int):
    """Its events wait in the process, without their bodies; what another has queued after them comes in its turn."""
    await own.provision()
    go_on, configs = asyncio.Event(), set[str]()

    async def wait(event: Recorded, created: JobCreated) -> None:
        configs.add(created.config)
        names.append(created.config_name)
        if created.config_name == "loud-0":
            await go_on.wait()

    names: list[str] = []
    large = "x" * 8192
    async with validator(own, wait, spare=spare):
        await submit(own, *(f"loud-{n}" for n in range(8)), org="org_loud", config=large)
        await submit(own, "quiet", org="org_quiet", config=large)
        # With a spare slot the other's is handled while the first one goes on. What is delivered after it shows that
        # it is in the process.
        await submit(own, "loud-8", org="org_loud", config=large)
        async with asyncio.timeout(20):
            while await left_in(own.opened[0], *QUEUE) != (0, 10 - spare):
                continue
        assert names == (["loud-0", "quiet"] if spare else ["loud-0"])
        go_on.set()
        await settled(own)
    assert names == ["loud-0", "quiet", *(f"loud-{n}" for n in range(1, 9))]
    assert configs == {large}


async def test_a_handler_that_fails_after_it_left_its_place_gets_its_event_again(own):
    await own.provision()

    async def act(name: str, tries: int) -> None:
        release_slot()
        await asyncio.sleep(0)
        if tries == 1:
            raise Transient("not yet", delay=0.1)

    handler = Handler(act, enough=2)
    async with validator(own, handler):
        await submit(own, "a")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert handler.names == ["a", "a"]


async def test_a_permanent_error_is_one_delivery_and_a_dead_letter_with_payload_and_reason(own):
    bus = await own.provision()
    handler = Handler(raising(Permanent("the world is\nflat")), enough=1)
    async with validator(own, handler):
        await submit(own, "a")
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await settled(own)
    assert handler.names == ["a"]
    assert dead.subject.startswith("dead.validator.job.created.org_a.job_")
    assert b'"config":"the config"' in dead.body
    assert dead.headers["Synth-Reason"] == "the world is flat"
    assert dead.headers["Synth-Seq"] == "1"


async def test_who_waits_for_a_dead_letter_is_told_until_that_has_worked(own):
    bus = await own.provision()
    told: list[Problem] = []
    heard = asyncio.Event()

    async def give_up(event: Recorded, problem: Problem) -> None:
        told.append(problem)
        if len(told) == 1:
            raise Transient("the log is away")
        heard.set()

    handler = Handler(raising(Permanent("the world is flat")), enough=1)
    async with validator(own, handler, give_up=give_up):
        await submit(own, "a")
        await asyncio.wait_for(heard.wait(), 10)
        await settled(own)
    assert told == [told[0]] * 2
    assert told[0].what == "internal error: the world is flat"
    assert (await bus.js.stream_info("DEAD")).state.messages == 1


async def test_a_dead_letter_leaves_its_queue_also_where_the_log_says_of_nobody_who_waits(own):
    bus = await own.provision()

    async def give_up(event: Recorded, problem: Problem) -> None:
        raise Permanent("the log is damaged")

    handler = Handler(raising(Permanent("the world is flat")), enough=1)
    async with validator(own, handler, give_up=give_up):
        await submit(own, "a")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert (await bus.js.stream_info("DEAD")).state.messages == 1


async def test_a_transient_error_brings_the_event_back_after_its_delay(own):
    await own.provision()
    handler = Handler(raising(Transient("not yet", delay=0.3), until=3), enough=3)
    async with validator(own, handler):
        await submit(own, "a")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    times = [t for _, t in handler.seen]
    assert len(times) == 3
    assert all(later - earlier >= 0.29 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("error", [Transient("never", delay=0.05), Transient("never", delay=0.1)])
async def test_what_always_fails_is_a_dead_letter_after_six_deliveries(own, error):
    bus = await own.provision()
    handler = Handler(raising(error), enough=MAX_DELIVERIES)
    async with validator(own, handler):
        await submit(own, "a")
        dead = await asyncio.wait_for(next_dead_letter(bus), 20)
        await settled(own)
    assert len(handler.seen) == MAX_DELIVERIES == 6
    assert "after 6 deliveries" in dead.headers["Synth-Reason"]


async def test_a_bug_in_a_handler_is_retried_with_a_growing_delay(own):
    await own.provision()
    handler = Handler(raising(ValueError("a bug"), until=3), enough=3)
    async with validator(own, handler):
        await submit(own, "a")
        await asyncio.wait_for(handler.enough.wait(), 10)
    first, second, third = [t for _, t in handler.seen]
    assert second - first >= 0.35
    assert third - second >= 0.75


async def test_a_handler_slower_than_ack_wait_has_its_event_once(own):
    await own.provision()

    async def slow() -> None:
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=2.5 * ACK_WAIT_S)

    handler = Handler(lambda name, tries: slow() if name == "slow" else None, enough=2)
    # Somebody else asks for work meanwhile, and would get it.
    async with validator(own, handler, concurrency=2):
        await submit(own, "slow", "next")
        await settled(own)
    assert handler.names == ["slow", "next"]


async def test_an_event_that_fails_does_not_hold_up_the_others(own):
    bus = await own.provision()

    def act(name: str, tries: int) -> None:
        if name == "poison":
            raise Transient("never", delay=0.2)

    handler = Handler(act, enough=9)
    await submit(own, "poison", "b", "c", "d")
    async with validator(own, handler):
        await asyncio.wait_for(next_dead_letter(bus), 20)
        await settled(own)
    assert [name for name in handler.names if name != "poison"] == ["b", "c", "d"]
    assert handler.names[-1] == "poison"
    assert handler.names.count("poison") == MAX_DELIVERIES


@pytest.mark.parametrize(
    ("subject", "body", "whom"), [("job.created.org_a", b"{}", []), ("job.created.org_a.job_a", b"garbage", ["job_a"])]
)
async def test_a_message_that_no_version_can_read_is_a_dead_letter_at_once(own, subject, body, whom):
    bus = await own.provision()
    handler, told = Handler(well, enough=1), []

    async def give_up(event: Recorded, problem: Problem) -> None:
        told.append(event.key)

    async with validator(own, handler, give_up=give_up):
        await bus.js.publish(subject, body, stream="EVENTS")
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await submit(own, "good")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert (dead.body, handler.names, told) == (body, ["good"], whom)


async def test_a_handler_that_waits_does_not_hold_up_others_where_several_run(own):
    await own.provision()
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    handler = Handler(lambda name, tries: wait() if name.startswith("wait") else gate.set(), enough=4)
    async with validator(own, handler, concurrency=4):
        await submit(own, "wait 1", "wait 2", "wait 3", "go")
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert sorted(handler.names) == ["go", "wait 1", "wait 2", "wait 3"]


async def test_the_handlers_go_on_after_the_server_was_killed(own):
    await own.provision()
    after = asyncio.Event()
    handler = Handler(lambda name, tries: after.set() if name == "after" else None, enough=1)
    async with validator(own, handler):
        await submit(own, "before")
        await settled(own)
        own.kill()
        own.start()
        await submit(own, "after")
        await asyncio.wait_for(after.wait(), 15)
    # The server may forget an acknowledgement when it is killed: handlers are idempotent for that reason.
    assert set(handler.names) == {"before", "after"}


async def test_an_event_whose_service_died_goes_to_the_next_one(own):
    await own.provision()
    inside = asyncio.Event()

    async def hang(event: Recorded, created: JobCreated) -> None:
        inside.set()
        await asyncio.Event().wait()

    bus = await own.connect("validator")
    broker = make_broker(own.settings("validator"), "validator")
    on_event(broker, bus, Role.VALIDATOR, JobCreated, hang)
    await broker.start()
    await submit(own, "a")
    await asyncio.wait_for(inside.wait(), 10)
    await broker.stop()
    heir = Handler(well, enough=1)
    async with validator(own, heir):
        await asyncio.wait_for(heir.enough.wait(), 10)
        await settled(own)


async def test_the_service_ends_when_its_consumer_is_deleted(own):
    bus = await own.provision()
    name = QUEUE[1]
    watching = asyncio.create_task(
        watch_consumers(await own.connect("validator"), [("EVENTS", name)], asyncio.Event(), every_s=0.1)
    )
    await bus.js.delete_consumer("EVENTS", name)
    with pytest.raises(Permanent, match=r"validator-job-created is gone; run `synthd bus init`"):
        await asyncio.wait_for(watching, 10)


async def test_the_service_does_not_start_and_declares_nothing_on_a_bus_without_its_consumer(own):
    bus = await own.provision()
    await bus.js.delete_consumer("EVENTS", QUEUE[1])
    async with validator(own, Handler(well, enough=1)) as serving:
        with pytest.raises(Permanent, match="is gone"):
            await asyncio.wait_for(asyncio.shield(serving), 10)
    names = [c.name for c in await bus.js.consumers_info("EVENTS")]
    assert QUEUE[1] not in names


async def test_only_a_queue_of_the_catalogue_can_be_taken_from(own):
    bus = await own.connect("validator")
    broker = make_broker(own.settings("validator"), "validator")

    async def handle(event: Recorded, uploaded: FileUploaded) -> None:
        return None

    with pytest.raises(Permanent, match=r"does not let validator take file\.uploaded"):
        on_event(broker, bus, Role.VALIDATOR, FileUploaded, handle)
