"""The files service: an upload becomes ready, or is rejected with its first bad lines."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence

import pytest

from synth.bus.replay import replay
from synth.datasets.check import FileCheck
from synth.events import BlobRef, FileReady, FileRejected
from synth.ids import file_id_for, new_org_id
from tests.image_server import PNG, data_uri, images
from tests.service.jobs import upload, wait_for
from tests.service.process import running

ROW = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
GOOD = json.dumps(ROW).encode()


def reply(**message: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", **message}]}).encode()


def check(body: bytes, *, piece: int = 1 << 20) -> FileReady | FileRejected:
    file = FileCheck()
    for start in range(0, len(body), piece):
        file.feed(body[start : start + piece])
    return file.finish()


@pytest.fixture(scope="module")
def files_service(settings_of, bus_admin, tmp_path_factory):
    with running("files", settings_of("files"), tmp_path_factory.mktemp("files") / "log") as process:
        yield process


async def test_a_good_file_is_ready_and_counted(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, (GOOD + b"\n") * 1000)
    found = await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")
    assert found.event == FileReady(rows=1000, messages=2000, characters=5000, tokens=14000, lengths=[0, 0, 1000])


async def test_a_broken_line_37_is_named(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    lines = [GOOD] * 50
    lines[36] = b'{"messages": [{"role": "user", "content": "2+2?"'
    file = await upload(gateway, blobs, org, b"\n".join(lines))
    found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(found, FileRejected)
    assert (found.bad_lines, found.problems[0].line) == (1, 37)
    assert "ends too early" in found.problems[0].reason


async def test_a_file_of_several_store_pieces_is_read_as_one(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    rows = (9 << 20) // len(GOOD)
    file = await upload(gateway, blobs, org, b"\n".join([GOOD] * rows))
    found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(found, FileReady)
    assert found.rows == rows


async def test_images_are_stored_under_the_organisation_and_the_rows_name_them(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, json.dumps({**ROW, "images": [data_uri(PNG)]}).encode())
    found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(found, FileReady), found
    assert found.images == 1
    assert found.rewritten is not None
    [row] = (await blobs.get_bytes(found.rewritten)).splitlines()
    uri = f"blob://orgs/{org}/images/{hashlib.sha256(PNG).hexdigest()}"
    assert json.loads(row)["messages"][0]["content"][0] == {"type": "image", "image": uri}


async def test_pairs_of_the_openai_api_are_stored_as_they_are_trained_on(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    prompt = [{"role": "user", "content": "2+2?"}]
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in ("4", "5"))
    openai = {"input": {"messages": prompt}, "preferred_output": chosen, "non_preferred_output": rejected}
    trained = {"messages": prompt, "chosen": chosen, "rejected": rejected}
    lines = [json.dumps(row).encode() for row in (openai, trained, {"prompt": "2+2?", "chosen": "4", "rejected": "5"})]
    file = await upload(gateway, blobs, org, b"\n".join([lines[0], b"", *lines[1:]]))
    found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(found, FileReady), found
    assert (found.rows, found.pairs, found.messages) == (3, 3, 9)
    assert found.converted == {"openai_preference": 1, "chosen_rejected": 1}
    assert found.rewritten is not None
    written = (await blobs.get_bytes(found.rewritten)).splitlines()
    assert written[1] == b""
    assert [json.loads(line) for line in written if line] == [trained] * 3


async def test_a_file_of_pairs_and_conversations_is_refused_by_line(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    pair = json.dumps({"prompt": "q", "chosen": "a", "rejected": "b"}).encode()
    same = json.dumps({"prompt": "q", "chosen": "a", "rejected": [{"role": "assistant", "content": ["a"]}]}).encode()
    file = await upload(gateway, blobs, org, b"\n".join([pair, GOOD, same]))
    found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(found, FileRejected)
    assert [(p.line, p.path) for p in found.problems] == [(2, "$"), (3, "$.rejected")]
    assert "a conversation in a file of preference pairs" in found.problems[0].reason
    assert "the same as the chosen side" in found.problems[1].reason


async def test_an_image_inside_the_cluster_is_not_fetched(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    async with images({"/a.png": (200, PNG)}) as server:
        row = json.dumps({**ROW, "image_url": f"{server.url}/a.png"}).encode()
        file = await upload(gateway, blobs, org, GOOD + b"\n" + row)
        found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
        assert server.asked == []
    assert isinstance(found, FileRejected)
    assert (found.problems[0].line, found.problems[0].path) == (2, "$.image_url")
    assert "not a public address" in found.problems[0].reason


async def test_the_same_bytes_uploaded_again_have_one_verdict(files_service, bus_as, blobs):
    org, gateway = new_org_id(), await bus_as("gateway")
    from synth.bus.publish import Publisher
    from synth.events import FileUploaded

    file = await upload(gateway, blobs, org, GOOD)
    await wait_for(gateway, f"file.*.{org}.{file}", "file.ready")
    known = (await replay(gateway, [f"file.uploaded.{org}.{file}"]))[0].event
    assert isinstance(known, FileUploaded)
    await Publisher(gateway).once(known, org=org, key=file, id="again")
    # The uploads of one service process are handled in order by the time that a later one is ready.
    for i in range(4):
        later = await upload(gateway, blobs, org, GOOD + b"\n" * (i + 1))
        await wait_for(gateway, f"file.*.{org}.{later}", "file.ready")
    assert len(await replay(gateway, [f"file.ready.{org}.{file}"])) == 1


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_the_pieces_in_which_a_file_arrives_do_not_matter(piece):
    body = b"\n".join([GOOD, b"", b"nope", GOOD, GOOD + b" x", b"  ", GOOD])
    found = check(body, piece=piece)
    assert isinstance(found, FileRejected)
    assert [p.line for p in found.problems] == [3, 5]


@pytest.mark.parametrize(
    ("line", "path", "reason"),
    [
        (b"nope", "$", "not JSON"),
        (GOOD + b" {}", "$", "trailing characters"),
        (b"[1]", "$", "a JSON list; expected an object on each line"),
        (b"1", "$", "Expected `object`, got `int`"),
        (b'{"prompt": "x"}', "$", "missing required field `completion`"),
        (b'{"messages": []}', "$.messages", "length >= 2"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "$.messages", "length >= 2"),
        (GOOD.replace(b"assistant", b"bot"), "$.messages[1].role", "expected one of system"),
        (GOOD.replace(b'"2+2?"', b"5"), "$.messages[0].content", "got `int`"),
        (GOOD.replace(b"assistant", b"user"), "$.messages", "no assistant message"),
        (GOOD.replace(b"2+2", b"\xff"), "$", "not UTF-8: byte 0xff at column"),
        (b'{"messages": [], "note": "\xff"}', "$", "not UTF-8"),
        (b"\xef\xbb\xbf" + GOOD, "$", "byte order mark"),
        (GOOD.decode().encode("utf-16"), "$", "UTF-16"),
        (GOOD.replace(b"2+2", b"\\ud800"), "$", "surrogate pair"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "$", "nested too deeply"),
        (b'{"messages": NaN}', "$", "not JSON"),
        (reply(content="x", weight=2), "$.messages[1].weight", "<= 1"),
        (reply(content="x", weight=-0.1), "$.messages[1].weight", ">= 0"),
        (reply(), "$.messages[1].content", "neither content nor tool_calls"),
        (reply(content=None, tool_calls=[{"id": 1}]), "$.messages[1].tool_calls[0]", "`function`"),
        (GOOD.replace(b'"content": "2+2?"', b'"content": "q", "weight": 1'), "$.messages[0].weight", "only assistants"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_place(line, path, reason):
    found = check(GOOD + b"\n" + line + b"\n" + GOOD)
    assert isinstance(found, FileRejected)
    assert found.bad_lines == 1
    assert (found.problems[0].line, found.problems[0].path) == (2, path)
    assert reason in found.problems[0].reason


@pytest.mark.parametrize(
    "line",
    [
        reply(content="x", weight=0.5),
        reply(content=None, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        reply(content=[{"type": "text", "text": "x"}]),
        GOOD + b"\r",
        json.dumps({**ROW, "tools": [], "id": 7}).encode(),
        GOOD.replace(b"2+2", "日本 \\ud83d\\ude00".encode()),
    ],
)
def test_what_the_published_clients_write_is_accepted(line):
    assert isinstance(check(line), FileReady)


@pytest.mark.parametrize("body", [b"", b"\n\n", b"   \n\t"])
def test_a_blank_file_is_rejected(body):
    found = check(body)
    assert isinstance(found, FileRejected)
    assert "no rows" in found.problems[0].reason


def test_all_bad_lines_are_counted_and_the_first_20_kept():
    found = check(b"x\n" * 5000)
    assert isinstance(found, FileRejected)
    assert (found.bad_lines, [p.line for p in found.problems]) == (5000, list(range(1, 21)))


LONGEST = 1 << 20


@pytest.mark.parametrize("extra", [1, LONGEST])
def test_a_line_without_end_costs_no_memory_and_is_one_problem(extra):
    file = FileCheck(max_line_bytes=LONGEST)
    left = LONGEST + extra
    while left > 0:
        file.feed(b"x" * min(left, 1 << 18))
        left -= 1 << 18
    file.feed(b"\n" + GOOD)
    found = file.finish()
    assert isinstance(found, FileRejected)
    assert (found.bad_lines, found.problems[0].line) == (1, 1)
    assert "longer than 1048576 bytes (SYNTH_MAX_LINE_BYTES)" in found.problems[0].reason


async def test_bytes_that_come_back_after_a_deletion_are_checked_again(files_service, bus_as, blobs):
    from synth.bus.publish import Publisher
    from synth.events import FileDeleted, FileUploaded

    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, GOOD)
    first = await wait_for(gateway, f"file.*.{org}.{file}", "file.ready")
    [known] = await replay(gateway, [f"file.uploaded.{org}.{file}"])
    assert isinstance(known.event, FileUploaded)
    publisher = Publisher(gateway)
    await publisher.once(FileDeleted(requested_by="key_1", uploaded_seq=known.seq), org=org, key=file, id="1")
    await publisher.once(known.event, org=org, key=file, id="again")
    async with asyncio.timeout(20):
        while len(verdicts := await replay(gateway, [f"file.ready.{org}.{file}"])) < 2:
            continue
    assert verdicts[1].event == first.event


async def test_a_file_that_was_deleted_before_its_check_gets_no_verdict(files_service, bus_as, blobs):
    from synth.bus.publish import Publisher
    from synth.events import FileDeleted, FileUploaded

    org, gateway = new_org_id(), await bus_as("gateway")
    file = file_id_for(org, "gone")
    blob = BlobRef(uri=f"blob://orgs/{org}/files/gone", size=1, sha256="gone")
    # Deleted with its bytes, in the moment in which it was uploaded.
    publisher = Publisher(gateway)
    seq = await publisher.once(
        FileUploaded(name="a.jsonl", purpose="fine-tune", blob=blob), org=org, key=file, id="gone"
    )
    await publisher.once(FileDeleted(requested_by="key_1", uploaded_seq=seq), org=org, key=file, id="1")
    for i in range(4):
        later = await upload(gateway, blobs, org, GOOD + b"\n" * (i + 1))
        await wait_for(gateway, f"file.*.{org}.{later}", "file.ready")
    facts = [e.type for e in await replay(gateway, [f"file.*.{org}.{file}"])]
    assert facts == ["file.uploaded", "file.deleted"]


async def test_parquet_is_checked_by_row_and_stored_as_the_rows_that_are_trained_on(files_service, bus_as, blobs):
    import pyarrow as pa
    from pyarrow import parquet

    async def verdict(rows: Sequence[Mapping[str, object]]) -> FileReady | FileRejected:
        out = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), out)
        file = await upload(gateway, blobs, org, out.getvalue().to_pybytes())
        found = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
        assert isinstance(found, FileReady | FileRejected)
        return found

    org, gateway = new_org_id(), await bus_as("gateway")
    shown = {**ROW, "images": [{"bytes": PNG, "path": None}]}
    found = await verdict([shown, ROW])
    assert isinstance(found, FileReady), found
    assert (found.rows, found.images, found.converted) == (2, 1, {"parquet": 2})
    assert found.rewritten is not None
    rows = [json.loads(line) for line in (await blobs.get_bytes(found.rewritten)).splitlines()]
    assert rows[1] == ROW
    assert rows[0]["messages"][0]["content"][0]["image"].startswith(f"blob://orgs/{org}/images/")
    turns = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    other = await verdict([{"conversations": turns}])
    assert isinstance(other, FileReady), other
    assert other.converted == {"parquet": 1, "sharegpt": 1}
    assert other.rewritten is not None
    assert json.loads(await blobs.get_bytes(other.rewritten)) == ROW
    wrong = await verdict([ROW, {"messages": ROW["messages"][:1]}])
    assert isinstance(wrong, FileRejected)
    assert (wrong.problems[0].line, wrong.problems[0].path) == (2, "$.messages")
    file = await upload(gateway, blobs, org, b"PAR1 and no more")
    broken = (await wait_for(gateway, f"file.*.{org}.{file}", "file.ready", "file.rejected")).event
    assert isinstance(broken, FileRejected)
    assert "not a Parquet file that can be read" in broken.problems[0].reason
