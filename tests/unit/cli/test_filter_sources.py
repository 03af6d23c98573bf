"""Where `synthctl filter` reads and what it holds: a database that was exported, and very many traces."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.chat.messages import Message, template_messages
from synth.cli.filtering.rules import Candidate, Judged, Rules
from synth.cli.filtering.run import run_filter
from synth.cli.filtering.sources import ReadTrace
from synth.cli.traces.database import TraceDatabase
from synth.cli.traces.export import export_traces
from synth.datasets.conversations import read_line
from synth.traces.facts import EpisodeFacts
from synth.transcripts.transcript import Transcript, TranscriptTurn
from tests.unit.cli.backend import backend_that
from tests.unit.cli.stored_traces import IMAGE, Traces, run_command, seeds, trace


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command on these traces: its exit code, the rows, the report."""
    monkeypatch.chdir(tmp_path)
    return partial(run_command, tmp_path)


def test_an_exported_database_is_read_back_message_by_message(run: Any, tmp_path: Path):
    """Its rows are pairs, as the published clients make them: tests/clients/test_evaluation.py compares."""
    call = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    part = {"type": "image", "image": f"blob://orgs/o/images/{IMAGE}"}
    turns = [
        TranscriptTurn(
            messages=[{"role": "system", "content": "Dig."}, {"role": "user", "content": '{"content": "5"}'}],
            reply={"role": "assistant", "tool_calls": [call]},
        ),
        TranscriptTurn(
            continues=0, kept=3, messages=[{"role": "user", "content": [{"type": "text", "text": "See"}, part]}],
            reply={"role": "assistant", "content": "7"}, sampled_tokens=4,
        ),
    ]  # fmt: skip
    kept = [trace(0, 0.25, transcript=Transcript(turns=turns)), trace(1, 1.0), trace(2, 1.0, transcript=None)]
    with backend_that(Traces(kept).answer) as (_, client):
        done = export_traces(client, tmp_path / "traces.db", kind="sqlite", inline=True, limit=None)
        assert (done.traces, done.expired, done.images_gone) == (2, 1, 0)
        lines = tmp_path / "traces.jsonl"
        export_traces(client, lines, kind="synth", inline=False, limit=None)
    assert [json.loads(line)["id"] for line in lines.read_text().splitlines()] == [t.id for t in kept[:2]]
    toml = '[filter]\ndb = "traces.db"\noutput = "rows.jsonl"\n'
    _, rows, _ = run([], toml=toml)
    assert [[m["content"] for m in row["messages"]] for row in rows[:1]] == [
        ["Dig.", '{"content": "5"}', [{"tool_name": "look", "arguments": {"at": 1}}]]
    ]
    system, asked, reply = rows[1]["messages"]
    assert (system["content"], reply["content"]) == ("Dig.", "7")
    assert asked["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert rows[0]["metadata"]["total_reward"] == 0.25
    _, rows, report = run([], toml=toml + 'min_official_score = 0.5\nmodels = ["tiny"]\ntask_ids = ["math"]\n')
    assert (seeds(rows), report["dropped"]) == ([1], {"min_official_score": 1})
    _, rows, _ = run([], toml=toml + "max_tokens = 3\ninclude_images = false\n")
    assert seeds(rows) == [1]


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


@pytest.mark.parametrize(
    ("stored", "record"),
    [
        # As this SDK's task apps have it, in a database of `synth-ai eval`.
        ([{"tool_name": "look", "arguments": {"at": 1}}], {}),
        # As other task apps have it: the reply says nothing, and the call of the model has the tool calls.
        ("", {"output_messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]}),
        ("", {"output_tool_calls": [{"name": "look", "arguments_json": '{"at": 1}'}]}),
    ],
)
def test_a_reply_of_tool_calls_alone_is_a_row_that_can_be_trained_on(
    run: Any, tmp_path: Path, stored: Any, record: dict[str, Any]
):
    asked = {"content": {"text": "where?"}, "message_type": "user"}
    content = {"text": stored} if isinstance(stored, str) else {"text": None, "json_payload": json.dumps(stored)}
    moment = {"time_record": {"event_time": 0.0, "message_time": 0}, "metadata": {}}
    event = moment | {"system_instance_id": "policy", "call_records": [{"tools": [LOOK]} | record]}
    session = {
        "session_id": "s0",
        "created_at": "2026-01-01T00:00:00+00:00",
        "event_history": [event],
        "markov_blanket_message_history": [asked | moment, {"content": content, "message_type": "assistant"} | moment],
        "metadata": {"seed": 0},
        "outcome_rewards": [],
        "event_rewards": [],
    }
    db = TraceDatabase(tmp_path / "traces.db")
    db.add(session)
    db.commit()
    db.close()
    code, [row], _ = run([], toml='[filter]\ndb = "traces.db"\noutput = "rows.jsonl"\n')
    assert (code, row["tools"]) == (0, [LOOK])
    read = read_line(json.dumps(row).encode())
    assert not isinstance(read, tuple), read
    reply = msgspec.convert(row["messages"][-1], Message)
    [rendered] = template_messages([reply], thinks=False, sees=False)
    assert rendered["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": 1}}


def test_thousands_of_traces_are_held_on_disk_and_not_in_memory(tmp_path: Path):
    """Rows of four megabytes together, in a process that may grow by half of that."""

    class Many:
        name = "many"

        def episodes(self, wanted: Any) -> Iterator[ReadTrace]:
            for n in range(4_000):
                candidate = Candidate(id=str(n), seed=n % 100, reward=float(n % 7), environment=1.0)
                if wanted(candidate):
                    said = [{"role": "user", "content": f"{n} " * 200}, {"role": "assistant", "content": "x" * 50}]
                    yield ReadTrace(candidate, Judged(EpisodeFacts(), {}), [{"messages": said}])

    values = {"output": str(tmp_path / "rows.jsonl"), "sft": {}, "split": {}, "stats": {}}
    rules = Rules.of(values | {"top_k": 3, "deduplicate": True, "shuffle": True, "min_reward": 1.0})
    tracemalloc.start()
    try:
        report = run_filter(rules, Many())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.seen, report.rows) == (4_000, 300)
    assert peak < 2 << 20, peak
