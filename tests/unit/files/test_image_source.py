"""A file's images: had once, looked at, stored by their content; and what is said of one that cannot be had."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.blobs import BlobStore
from synth.datasets.check import FileCheck
from synth.events import FileReady, FileRejected
from synth.files.image_source import ImageSource
from synth.files.rewrite import Rewriter
from synth.files.settings import FilesSettings
from synth.outbound.http_guard import guarded_client
from tests.decoders import DECODER
from tests.image_server import GIF, PNG, data_uri, images


def turn(*urls: str, text: str = "what is this?") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": text}]},
        {"role": "assistant", "content": "a picture"},
    ]


def row(*urls: str, **more: Any) -> dict[str, Any]:
    return {"messages": turn(*urls), **more}


TEXT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


class Ingest:
    """The files service's work on one file, without its bus."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore.open(f"file:{folder / 'blobs'}")
        self.folder = folder

    async def __call__(self, *rows: dict[str, Any] | bytes, **settings: Any) -> FileReady | FileRejected:
        lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
        body = b"\n".join(lines) + b"\n"
        check = FileCheck()
        check.feed(body)
        verdict = check.finish()
        assert isinstance(verdict, FileReady), verdict
        if not check.image_rows:
            return verdict
        given = FilesSettings(**{"allow_loopback": True, "image_deadline_s": 5.0, **settings})
        async with guarded_client(given.guard, timeout=5) as client:
            slots = asyncio.Semaphore(given.image_fetches_at_once)
            source = ImageSource(client, self.blobs, given, replace(DECODER, limits=given.image_limits), slots)
            rewriter = Rewriter(self.blobs, source, self.folder / "work")
            blob = await self.blobs.put_bytes("orgs/org_a/files/f", body)
            return await rewriter.rewrite("org_a", blob, verdict, self.blobs.stream(blob))

    async def rows(self, verdict: FileReady | FileRejected) -> list[dict[str, Any]]:
        assert isinstance(verdict, FileReady), verdict
        assert verdict.rewritten is not None
        return [json.loads(line) for line in (await self.blobs.get_bytes(verdict.rewritten)).splitlines()]

    async def refusal(self, *rows: dict[str, Any], **settings: Any) -> str:
        """Of a file whose second line shows an image that cannot be had."""
        found = await self(TEXT, *rows, **settings)
        assert isinstance(found, FileRejected), found
        assert (found.bad_lines, found.problems[0].line) == (1, 2)
        return f"{found.problems[0].path}: {found.problems[0].reason}"


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    return Ingest(tmp_path)


def blob_of(body: bytes) -> str:
    return f"blob://orgs/org_a/images/{hashlib.sha256(body).hexdigest()}"


async def test_images_of_every_form_become_parts_that_name_their_blobs(ingest: Ingest):
    parts: dict[str, Any] = {"type": "image", "image": data_uri(GIF, "gif")}
    own = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]}
    older = {**TEXT, "images": [data_uri(PNG)], "notes": 7}
    oldest = {**TEXT, "image_url": data_uri(PNG)}
    async with images({"/a.png": (200, PNG)}) as server:
        found = await ingest(row(f"{server.url}/a.png"), TEXT, own, older, oldest)
    rows = await ingest.rows(found)
    png, gif = ({"type": "image", "image": blob_of(body)} for body in (PNG, GIF))
    assert rows[0]["messages"][0]["content"] == [png, {"type": "text", "text": "what is this?"}]
    assert rows[1] == TEXT
    assert rows[2]["messages"][0]["content"] == [gif]
    assert rows[3] == {
        "messages": [{"role": "user", "content": [png, {"type": "text", "text": "q"}]}, TEXT["messages"][1]],
        "notes": 7,
    }
    assert rows[4]["messages"] == rows[3]["messages"]
    assert isinstance(found, FileReady)
    assert (found.rows, found.images) == (5, 4)
    path = ingest.blobs.root
    assert path is not None
    assert (path / blob_of(PNG).removeprefix("blob://")).read_bytes() == PNG


async def test_a_rewritten_file_is_a_good_file_again(ingest: Ingest):
    found = await ingest(row(data_uri(PNG)), TEXT)
    assert isinstance(found, FileReady)
    assert found.rewritten is not None
    check = FileCheck()
    check.feed(await ingest.blobs.get_bytes(found.rewritten))
    again = check.finish()
    assert isinstance(again, FileReady)
    assert (again.rows, again.characters, again.tokens) == (found.rows, found.characters, found.tokens)


async def test_an_image_that_many_rows_show_is_fetched_once(ingest: Ingest):
    async with images({"/a.png": (200, PNG), "/b.png": (200, PNG)}) as server:
        rows = [row(f"{server.url}/{name}.png") for name in "aabaab"] * 300
        found = await ingest(*rows)
        assert sorted(server.asked) == ["/a.png", "/b.png"]
    assert isinstance(found, FileReady)
    assert found.images == 1800


async def test_every_image_of_a_message_is_kept(ingest: Ingest):
    async with images({"/1": (200, PNG), "/2": (200, PNG), "/3": (200, PNG)}) as server:
        urls = [f"{server.url}/{n}" for n in (1, 2, 3)]
        two_messages = {"messages": [*turn(urls[0], urls[2]), *turn(urls[1])]}
        found = await ingest(two_messages, row(*urls, images=urls))
        assert sorted(server.asked) == ["/1", "/2", "/3"]
    assert isinstance(found, FileReady)
    assert found.images == 9
    shown = [m["content"] for r in await ingest.rows(found) for m in r["messages"] if m["role"] == "user"]
    assert [sum(p["type"] == "image" for p in content) for content in shown] == [2, 1, 6]


async def test_few_images_are_fetched_at_one_time(ingest: Ingest):
    async with images({f"/{n}": (200, PNG) for n in range(40)}) as server:
        found = await ingest(*(row(f"{server.url}/{n}") for n in range(40)), image_fetches_at_once=3)
        assert server.at_once <= 3
    assert isinstance(found, FileReady)


async def test_a_server_that_is_away_for_a_moment_is_asked_again(ingest: Ingest):
    def later(number: int) -> tuple[int, bytes]:
        return (200, PNG) if number == 2 else (503, b"")

    async with images({"/a": later}) as server:
        assert isinstance(await ingest(row(f"{server.url}/a")), FileReady)


async def test_a_file_has_a_budget_of_repetitions(ingest: Ingest):
    async with images({f"/{n}": (503, b"") for n in range(3)}) as server:
        rows = [row(f"{server.url}/{n}") for n in range(3)]
        found = await ingest(*rows, image_retries_per_file=1, image_fetches_at_once=1)
        assert len(server.asked) == 4
    assert isinstance(found, FileRejected)
    assert [p.line for p in found.problems] == [1, 2, 3]


async def test_a_redirect_is_followed_as_far_as_the_settings_say(ingest: Ingest):
    routes = {f"/{n}": (302, b"", f"/{n + 1}") for n in range(4)}
    async with images({**routes, "/4": (200, PNG)}) as server:
        assert isinstance(await ingest(row(f"{server.url}/1")), FileReady)
        assert "more than 3 redirects" in await ingest.refusal(row(f"{server.url}/0"))


async def test_an_address_that_is_not_public_is_refused(ingest: Ingest):
    async with images({"/a": (200, PNG)}) as server:
        said = await ingest.refusal(row(f"{server.url}/a"), allow_loopback=False)
        assert server.asked == []
    assert said.startswith("$.messages[0].content[0]: 127.0.0.1 is at 127.0.0.1, which is not a public address")


async def test_a_redirect_to_an_address_that_is_not_public_is_refused(ingest: Ingest):
    async with images({"/a": (302, b"", "http://169.254.169.254/latest/meta-data")}) as server:
        said = await ingest.refusal(row(f"{server.url}/a"))
    assert "169.254.169.254, which is not a public address" in said


async def test_a_redirect_to_a_file_is_refused(ingest: Ingest):
    async with images({"/a": (302, b"", "file:///etc/passwd")}) as server:
        assert "a redirect to 'file:///etc/passwd'" in await ingest.refusal(row(f"{server.url}/a"))


async def test_an_image_that_is_too_large_or_too_slow_is_refused(ingest: Ingest):
    async def never(_: int) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    async with images({"/large": (200, PNG + b"x" * 5000), "/slow": never}) as server:
        large = await ingest.refusal(row(f"{server.url}/large"), max_image_bytes=4096)
        slow = await ingest.refusal(row(f"{server.url}/slow"), image_deadline_s=0.2, image_tries=1)
    assert "more than 4,096 bytes" in large
    assert "did not arrive within 0.2 s" in slow


async def test_all_images_of_a_file_have_one_deadline(ingest: Ingest):
    async def never(_: int) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    async with images({"/slow": never}) as server:
        found = await ingest(row(f"{server.url}/slow"), images_deadline_s=0.2)
    assert isinstance(found, FileRejected)
    assert "have not arrived within 0.2 s" in found.problems[0].reason


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://a/b.png", "expected an https:// address"),
        ("s3://bucket/b.png", "for an object store, sign a link"),
        ("blob://orgs/org_b/images/0", "expected an https:// address"),
        ("/etc/passwd", "expected an https:// address"),
        ("http://", "expected an https:// address"),
        ("http://a:99999/", "is no URL"),
        ("http://xn--/a.png", "is no URL"),
        ("http://nowhere.invalid/a.png", "cannot be resolved"),
        ("data:text/html;base64,AAAA", "not a PNG, JPEG, WebP or GIF image"),
        ("data:image/svg+xml;base64,AAAA", "not a PNG, JPEG, WebP or GIF image"),
        ("data:image/png,AAAA", "not a PNG, JPEG, WebP or GIF image"),
        ("data:image/png;base64,!!", "is not base64"),
        ("data:image/png;base64,é", "is not base64"),
        (data_uri(b"<html>"), "not a PNG, JPEG, WebP or GIF image (its bytes begin with 3c 68"),
        (data_uri(b""), "not a PNG, JPEG, WebP or GIF image (its bytes begin with nothing)"),
        (data_uri(PNG[:17]), "ends after 17 bytes, inside its header"),
        (data_uri(PNG.replace(b"\0\0\0\x40", b"\0\0\0\0")), "a png image of 0×48 pixels"),
        (data_uri(PNG.replace(b"\0\0\0\x40", b"\0\xff\0\0")), "expected at most 50,000,000"),
        (data_uri(PNG[: len(PNG) // 2]), "an image that cannot be decoded: "),
    ],
)
async def test_what_is_no_image_is_said_with_its_place(ingest: Ingest, url: str, reason: str):
    said = await ingest.refusal(row(url), image_tries=1)
    assert said.startswith("$.messages[0].content[0]: ")
    assert reason in said
    assert (await ingest.refusal({**TEXT, "images": [url]}, image_tries=1)).startswith("$.images[0]: ")


async def test_after_twenty_images_that_fail_no_more_are_fetched(ingest: Ingest):
    async with images({}) as server:
        found = await ingest(*(row(f"{server.url}/{n}") for n in range(2000)))
        assert 20 <= len(server.asked) < 40
    assert isinstance(found, FileRejected)
    assert len(found.problems) == 20
    assert "HTTP 404" in found.problems[0].reason


async def test_a_name_that_is_written_with_escapes_shows_its_image_too(ingest: Ingest):
    line = json.dumps(row(data_uri(PNG))).replace("image", "im\\u0061ge", 2).encode()
    found = await ingest(line)
    assert isinstance(found, FileReady)
    assert found.images == 1


async def test_a_file_of_text_is_not_rewritten_whatever_it_says(ingest: Ingest):
    said = [{"role": "user", "content": "draw an image_url"}, {"role": "assistant", "content": "image"}]
    for row in ({"messages": said}, {**TEXT, "images": []}, {**TEXT, "image_url": None, "images": None}):
        found = await ingest(row)
        assert isinstance(found, FileReady)
        assert found.rewritten is None


async def test_nothing_is_left_in_the_scratch_space(ingest: Ingest):
    await ingest(row(data_uri(PNG)))
    await ingest.refusal(row("ftp://a"))
    assert list((ingest.folder / "work").iterdir()) == []
