"""The collector plays the rollouts that a grader pays: one reply to a row, and its score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from synth.blobs import BlobCorrupt, BlobStore
from synth.errors import UserError
from synth.graders.python.pool import open_pool
from synth.graders.python.settings import PythonPoolSettings
from synth.graders.schema import parse_grader
from synth.ids import RolloutId
from synth.methods.rollouts import GradedRows
from synth.outbound.answer_memory import AnswerMemory
from synth.rollouts.clients.graded import FAILED, GradedPlayer
from synth.rollouts.clients.prompt_rows import PromptRows
from synth.rollouts.collection.types import CollectionBlocked, CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply
from tests.unit.rollouts.clients.test_task_app import SETTINGS

GRADER = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


async def _rows(folder: Path, lines: list[str]) -> PromptRows:
    blobs = BlobStore.open(folder.as_uri())
    ref = await blobs.put_bytes("rows", "\n".join(lines).encode())
    return await PromptRows.open(blobs, ref, parse_grader(GRADER), where="training_file")


async def test_rows_are_read_by_their_number(tmp_path: Path):
    made = [json.dumps({"messages": [], "answer": f"ä{i}"}, ensure_ascii=False) for i in range(3)]
    rows = await _rows(tmp_path, [made[0], "", "  ", made[1], made[2]])
    assert [(await rows.row(i))["answer"] for i in range(3)] == ["ä0", "ä1", "ä2"]


async def test_a_row_that_has_changed_since_the_file_was_read_is_refused(tmp_path: Path):
    rows = await _rows(tmp_path, ['{"answer": 1}', '{"answer": 2}'])
    (tmp_path / "rows").write_text('{"answer": 1}\n{"answer": 3}')
    assert await rows.row(0) == {"answer": 1}
    with pytest.raises(BlobCorrupt, match="row 1 of"):
        await rows.row(1)


async def test_a_row_without_what_the_grader_reads_is_told_with_its_line(tmp_path: Path):
    with pytest.raises(UserError) as refused:
        await _rows(tmp_path, ['{"messages": [], "answer": 1}', "", '{"messages": []}'])
    [problem] = refused.value.problems
    assert (problem.where, "there is no 'answer'" in problem.what) == ("training_file:3", True)


async def test_a_field_that_no_training_reads_is_told_with_its_line_too(tmp_path: Path):
    with pytest.raises(UserError) as refused:
        await _rows(tmp_path, ['{"messages": [], "answer": 1}', '{"messages": [], "answer": 1, "a": 1e999}'])
    [problem] = refused.value.problems
    assert problem.where == "training_file:2"


async def _played(folder: Path, status: int, answer: dict[str, Any], lines: list[str]) -> TaskAppReply:
    """What becomes of the rollout of row 1, at a model that answers so. It is asked for the row's messages alone."""
    bodies: list[dict[str, Any]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        bodies.append(json.loads(await reader.readexactly(length)))
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    graded = GradedRows(grader=GRADER, training_file="file_1", validation_file=None)
    rows = {"training_file": await _rows(folder, lines)}
    pool = await open_pool(PythonPoolSettings(python_graders=True))
    player = GradedPlayer(graded, SETTINGS, rows, job_id="job_1", max_characters=100, answer_within_s=60.0, python=pool)
    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions?cid=trace_a"
        request = CollectRequest(iteration=1, mode="eval", seeds=[1], group_size=1, oldest_version=0)
        spec = RolloutSpec(rollout_id=RolloutId("job_1_e1_0"), index=0, group=0, seed=1)
        with AnswerMemory(1 << 30, wait_s=5).hold("org_1") as room:
            reply = await player.play(request, spec, inference_url=url, cid="trace_a", room=room)
        await player.aclose()
    assert bodies == [{"model": "job_1", "messages": [{"role": "user", "content": "2 + 2?"}]}]
    return reply


_ROWS = [json.dumps({"messages": [{"role": "user", "content": f"{i} + 2?"}], "answer": str(i + 2)}) for i in (1, 2)]


def _said(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(("text", "reward"), [("4", 1.0), ("5", 0.0)])
async def test_the_reply_to_a_row_is_graded(tmp_path: Path, text: str, reward: float):
    reply = await _played(tmp_path, 200, _said(text), _ROWS)
    assert (reply.status, reply.body["metrics"]["mean_return"]) == (200, reward)


async def test_a_reply_that_is_too_long_to_compare_scores_0_and_is_not_sampled_again(tmp_path: Path):
    reply = await _played(tmp_path, 200, _said("4" * 200), _ROWS)
    metrics = reply.body["metrics"]
    assert (reply.status, metrics["mean_return"]) == (200, 0.0)
    assert "the output is too long" in next(iter(metrics["details"]["grader"]["lacking"].values()))


async def test_a_grader_that_cannot_grade_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    divides = {"type": "multi", "name": "m", "graders": {"exact": GRADER}, "calculate_output": "1 / exact"}
    monkeypatch.setitem(globals(), "GRADER", divides)
    with pytest.raises(CollectionBlocked) as blocked:
        await _played(tmp_path, 200, _said("5"), _ROWS)
    assert blocked.value.broken.code == "grader_failed"
    assert "row 1: '1 / exact' has no value for exact = 0" in blocked.value.broken.problem.what


async def test_code_grades_a_reply_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = "def grade(sample, item):\n    return 10 / (int(sample['output_text']) - int(item['answer']))"
    monkeypatch.setitem(globals(), "GRADER", {"type": "python", "name": "p", "source": source})
    assert (await _played(tmp_path, 200, _said("9"), _ROWS)).body["metrics"]["mean_return"] == 2.0
    failed = FAILED.labels(cause="PythonFailed")._value.get()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(CollectionBlocked) as blocked:
        await _played(tmp_path, 200, _said("4"), _ROWS)
    assert blocked.value.broken.code == "grader_failed"
    assert "row 1: the python grader 'p': ZeroDivisionError" in blocked.value.broken.problem.what
    assert FAILED.labels(cause="PythonFailed")._value.get() == failed + 1  # pyright: ignore[reportPrivateUsage]


async def test_what_models_are_asked_is_told_and_is_no_reward_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asking = [{"role": "user", "content": "{{sample.output_text}} or {{item.answer}}?"}]
    score = {"type": "score_model", "name": "s", "model": "m", "input": asking}
    monkeypatch.setitem(globals(), "GRADER", score)
    told = (await _played(tmp_path, 200, _said("5"), _ROWS)).body["metrics"]["details"]["grader"]
    pieces = told["asked"][0]["messages"][0]["pieces"]
    assert (told["score"], "".join(piece["text"] for piece in pieces)) == (None, "5 or 4?")


async def test_a_model_that_refuses_is_no_reward_and_no_credential_is_told(tmp_path: Path):
    reply = await _played(tmp_path, 404, {"error": {"message": "no trace_a"}}, _ROWS)
    assert reply.problem is not None
    assert ("[secret]" in reply.problem.what, "trace_a" in reply.problem.what) == (True, False)


async def test_a_conversation_that_outgrew_the_model_is_the_policys_failure(tmp_path: Path):
    reply = await _played(tmp_path, 400, {"error": {"code": "context_length_exceeded"}}, _ROWS)
    assert reply.body["aborted"] is True
    assert "mean_return" not in reply.body["metrics"]
