"""Decoders that hostile bytes have taken over: no call reaches another one, or a key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.errors import UserError
from synth.sandbox.command import why_not
from synth.sandbox.decoders import DecoderEnded, Decoders
from synth.sandbox.modes import MODES, Mode

FUNCTION = "tests.unit.sandbox.hostile_decoder:decode"
MAP_BYTES = 1 << 29


@pytest.fixture(scope="module", params=[*MODES, "without a sandbox"])
async def decoders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Decoders]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTH_CLUSTER_SECRET", "a-key-of-the-service")
        if request.param == "without a sandbox":

            async def none(mode: Mode) -> str:
                return "the test"

            patch.setattr("synth.sandbox.command.why_not", none)
            opened = Decoders(FUNCTION, at_once=1)
        elif why := await why_not(request.param):
            pytest.skip(f"this machine cannot start the sandbox {request.param}: {why}")
        else:
            opened = Decoders(FUNCTION, at_once=1, sandbox=request.param)
        # The function of the tests lies beside the code.
        patch.setattr("synth.__path__", [*__import__("synth").__path__, str(Path(__file__).parents[3] / "tests")])
        await call(opened, b"start")
        yield opened
        await opened.close()


async def call(decoders: Decoders, body: bytes) -> bytes:
    return bytes(await decoders.call(body, seconds=60.0, cpu_s=1, map_bytes=MAP_BYTES))


async def test_nothing_of_a_call_is_left_for_the_next_one(decoders: Decoders) -> None:
    assert [await call(decoders, b"x") for _ in range(3)] == [b"1"] * 3


@pytest.mark.parametrize("body", [b"crash", b"memory", b"time", b"daemon", b"parent"])
async def test_a_call_that_breaks_is_reported_and_the_next_one_works(decoders: Decoders, body: bytes) -> None:
    if body == b"parent" and decoders.mode is None and os.geteuid() == 0:
        pytest.skip("root reads the memory of every process outside of a sandbox")
    with pytest.raises(DecoderEnded):
        await call(decoders, body)
    assert await call(decoders, b"x") == b"1"


async def test_a_call_has_no_key_of_the_service_and_no_descriptor_but_its_own(decoders: Decoders) -> None:
    assert b"a-key-of-the-service" not in await call(decoders, b"environment")
    descriptors, _, _ = (await call(decoders, b"descriptors")).partition(b"]")
    assert descriptors.count(b",") == 0, descriptors


async def test_a_call_in_a_sandbox_reads_no_file_of_the_service(decoders: Decoders, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    if decoders.mode is None:
        pytest.skip("without a sandbox, files are as open as to the service")
    with pytest.raises(DecoderEnded):
        await call(decoders, b"read " + os.fsencode(tmp_path / "key"))


async def test_a_mode_that_was_asked_for_and_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.sandbox.modes.find_bubblewrap", lambda: None)
    with pytest.raises(UserError, match="SYNTH_SANDBOX: no sandbox starts"):
        await call(Decoders(FUNCTION, at_once=1, sandbox="bubblewrap"), b"x")
