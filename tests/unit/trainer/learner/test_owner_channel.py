"""The pipes of a training process: what waits for the owner, and what does not."""

from __future__ import annotations

import io
import os
import threading

import msgspec

from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.protocol import Pause, Progressed, Saved, Stored

DEADLINE_S = 30


def test_a_process_waits_while_two_of_its_checkpoints_are_not_stored() -> None:
    read, write = os.pipe()  # never closed: a process whose owner is gone ends at once
    out = io.BytesIO()
    channel = OwnerChannel(os.fdopen(read, "rb"), out)
    for step in (1, 2):
        channel.send(Saved(step=step, folder="f", sha256={}))
    waits = threading.Thread(target=channel.wait_stored, daemon=True)
    waits.start()
    os.write(write, msgspec.json.encode(Pause()) + b"\n")
    assert isinstance(channel.recv(), Pause)  # all that came before it was read, and no store was among it
    assert waits.is_alive()
    os.write(write, msgspec.json.encode(Stored(step=1)) + b"\n")
    waits.join(DEADLINE_S)
    assert not waits.is_alive()
    assert not channel.has_message()
    said = [msgspec.json.decode(line, type=Saved | Progressed) for line in out.getvalue().splitlines()]
    assert any(isinstance(message, Progressed) and message.stage == "store" for message in said)
