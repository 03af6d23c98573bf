"""What a training process says of where it is."""

from __future__ import annotations

import io
import os
import re

from synth.trainer.learner.owner_channel import OwnerChannel


def test_a_new_stage_is_said_at_once_and_the_same_one_twice_a_second_at_most():
    reading, _ = os.pipe()  # never closed: the end of its input would end the process
    said = io.BytesIO()
    channel = OwnerChannel(os.fdopen(reading, "rb"), said)
    for stage in ("train", "train", "checkpoint", "checkpoint", "train"):
        channel.send_progress(stage, 0, 1)
    assert re.findall(rb'"stage":"(\w+)"', said.getvalue()) == [b"train", b"checkpoint", b"train"]
