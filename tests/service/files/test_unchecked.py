"""A file that cannot be checked does not stay in the works: it fails with its cause, and a retry checks it again."""

from __future__ import annotations

import json

from synth.bus.publish import enqueue_redelivery
from synth.bus.replay import replay
from synth.events import FileReady, FileRejected, FileUploaded
from synth.ids import new_org_id
from synth.work import Redelivery
from tests.service.jobs import upload, wait_for
from tests.service.process import running

ROW = {"messages": [{"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "6"}]}


async def test_a_file_whose_bytes_are_away_fails_as_unchecked_and_is_ready_once_they_are_back(
    settings_of, bus_as, blobs, tmp_path
):
    org, gateway = new_org_id(), await bus_as("gateway")
    body = json.dumps(ROW).encode()
    file = await upload(gateway, blobs, org, body)
    [uploaded] = await replay(gateway, [f"file.uploaded.{org}.{file}"])
    assert isinstance(uploaded.event, FileUploaded)
    path = blobs.root / uploaded.event.blob.uri.removeprefix("blob://")
    path.rename(tmp_path / "aside")
    with running("files", settings_of("files"), tmp_path / "log"):
        found = await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected", timeout=60)
        assert isinstance(found.event, FileRejected)
        assert found.event.unchecked
        assert "files, dead letter " in found.event.problems[0].reason
        (tmp_path / "aside").rename(path)
        again = Redelivery(seq=uploaded.seq, letter=1)
        await enqueue_redelivery(gateway, again, queue="files-file-uploaded", org=org, key=file)
        found = await wait_for(gateway, f"file.ready.{org}.{file}", "file.ready", timeout=60)
        assert isinstance(found.event, FileReady)
        assert found.event.rows == 1
