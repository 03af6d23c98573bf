"""Uploads to a disk that has an error: a 503 that says what is wrong and when to come again, and nothing is kept."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from synth.gateway.commands import multipart

LARGE = b"x" * (3 << 20)


async def upload(user, content: bytes = LARGE) -> httpx.Response:
    files = {"file": ("a.jsonl", content)}
    return await user.http.post("/v1/files", files=files, data={"purpose": "fine-tune"})


def assert_unavailable(reply: httpx.Response, reason: str) -> None:
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["Retry-After"]) > 0
    error = reply.json()["error"]
    assert error["type"] == "unavailable"
    assert f"the cluster's disk cannot store the file ({reason})" in error["message"]


# What is written to the memory of no page is an I/O error.
@pytest.mark.parametrize(
    ("device", "reason"), [("/dev/full", "No space left on device"), ("/proc/self/mem", "Input/output error")]
)
async def test_an_upload_during_an_error_of_the_disk_returns_503(
    start_gateway, client_of, monkeypatch, tmp_path: Path, device: str, reason: str
):
    user = await client_of(await start_gateway(work_dir=tmp_path / "work"))
    folder, name = tmp_path / "work" / multipart.UPLOADS, uuid.uuid4()
    folder.mkdir(parents=True)
    (folder / f"upload-{name.hex}").symlink_to(device)
    with monkeypatch.context() as patch:
        patch.setattr(multipart, "uuid", SimpleNamespace(uuid4=lambda: name))
        assert_unavailable(await upload(user), reason)
    assert list(folder.iterdir()) == []
    assert (await upload(user, b"{}\n")).status_code == 200


async def test_an_upload_whose_folder_cannot_be_made_returns_503(start_gateway, client_of, tmp_path: Path):
    work, blobs = tmp_path / "work", tmp_path / "blobs"
    user = await client_of(await start_gateway(work_dir=work, blob_url=f"file:{blobs}"))
    work.mkdir(exist_ok=True)
    (work / multipart.UPLOADS).write_text("")
    assert_unavailable(await upload(user), "File exists")
    (work / multipart.UPLOADS).unlink()
    blobs.mkdir(exist_ok=True)
    (blobs / "orgs").write_text("")
    assert_unavailable(await upload(user), "Not a directory")
    (blobs / "orgs").unlink()
    assert (await upload(user, b"{}\n")).status_code == 200
