"""A log that this version cannot continue is refused before a service starts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from synth.bus.history.log_format import FORMAT, FORMAT_KEY, admit_log
from synth.bus.recorded import EVENTS
from synth.errors import UserError
from tests.service.process import environment


async def test_an_earlier_log_is_refused_until_jobs_that_cannot_be_read_have_ended(bus_as, own_bus):
    admin = await bus_as("bus")
    stored = b'{"job":{"kind":"rl","a_setting_of_old":1},"origins":{},"warnings":[]}'
    await admin.js.publish("job.validated.org_a.job_a", stored, stream=EVENTS)
    with pytest.raises(UserError, match=r"1 jobs that have not ended cannot be read: job_a.*start the version"):
        await admit_log(admin)
    settings = own_bus.settings("bus")
    command = [sys.executable, "-m", "synth.synthd", "bus", "init"]
    env = os.environ | environment(settings)
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "job_a" in done.stderr) == (1, True)
    await admin.js.publish("job.withdrawn.org_a.job_a", b"{}", stream=EVENTS)
    await admit_log(admin)
    info = await admin.js.stream_info(EVENTS)
    assert (info.config.metadata or {})[FORMAT_KEY] == str(FORMAT)

    newer = (info.config.metadata or {}) | {FORMAT_KEY: str(FORMAT + 1)}
    await admin.js.update_stream(replace(info.config, metadata=newer))
    with pytest.raises(UserError, match="of a newer version"):
        await admit_log(admin)
