"""`synthctl filter`: from traces over HTTP, or a client's database, to rows; every key, and what it drops."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.console.errors import CliError
from synth.datasets.check import FileCheck
from synth.errors import SynthError
from synth.events import FileReady
from synth.judging.contract import CriterionScore, Review, RolloutReview
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn
from tests.unit.cli.stored_traces import IMAGE, JOB, run_command, seeds, trace


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command on these traces: its exit code, the rows, the report."""
    monkeypatch.chdir(tmp_path)
    return partial(run_command, tmp_path)


FOUR = [trace(0, 0.0), trace(1, 1.0), trace(2, 0.5), trace(3, 1.0)]


def test_a_trace_is_a_row_that_a_file_may_have_and_a_report_says_what_each_key_dropped(run: Any, tmp_path: Path):
    code, rows, report = run(FOUR, "min_reward=0.75")
    assert code == 0
    assert [row["messages"][-1]["content"] for row in rows] == ["2", "4"]
    assert rows[0]["messages"][0] == {"role": "system", "content": "Add."}
    assert rows[0]["metadata"] | {"created_at": ""} == {
        "session_id": f"{JOB}_e0_1", "job_id": JOB, "mode": "eval", "env_name": "math", "policy_name": None, "seed": 1,
        "total_reward": 1.0, "achievements_count": None, "model": "tiny", "created_at": "",
    }  # fmt: skip
    assert (report["seen"], report["kept"], report["rows"]) == (4, 2, 2)
    assert report["dropped"] == {"min_reward": 2}
    check = FileCheck()
    check.feed((tmp_path / "rows.jsonl").read_bytes())
    verdict = check.finish()
    assert isinstance(verdict, FileReady)
    assert verdict.rows == 2


@pytest.mark.parametrize(
    ("key", "kept", "dropped"),
    [
        ("max_reward=0.5", [0, 2], {"max_reward": 2}),
        ("min_official_score=0.5", [1, 2, 3], {"min_official_score": 1}),
        ("max_official_score=0.25", [0], {"max_official_score": 3}),
        ("success=1.0", [1, 3], {"success": 2}),
        ("models=['large', 'tiny']", [0, 1, 2, 3], {}),
        ("seeds=[2, 3]", [2, 3], {"seeds": 2}),
        ("mode='eval'", [0, 1, 2, 3], {}),
        ("task_ids=['math']", [0, 1, 2, 3], {}),
        ("splits=['eval']", [0, 1, 2, 3], {}),
        ("min_created_at='2026-03-01T00:02:00Z'", [2, 3], {"min_created_at": 2}),
        ("max_created_at='1772323261'", [0, 1], {"max_created_at": 2}),
        ("min_tokens=12", [2, 3], {"min_tokens": 2}),
        ("max_tokens=10", [0], {"max_tokens": 3}),
        ("limit=2", [0, 1], {}),
        ("offset=3", [3], {}),
        ("min_steps_per_episode=1", [0, 1, 2, 3], {}),
        ("min_unique_states=1", [0, 1, 2, 3], {}),
        ("max_repeated_actions=1", [0, 1, 2, 3], {}),
    ],
)
def test_a_key_keeps_the_traces_that_it_says(run: Any, key: str, kept: list[int], dropped: dict[str, int]):
    code, rows, report = run(FOUR, key)
    assert (code, seeds(rows), report["dropped"]) == (0, kept, dropped)
    # The first rows are enough where no later one can take their place.
    assert report["stopped"] == key.startswith("limit")


CALL = [{"name": "move", "arguments": "{}"}]


def episode(**changes: Any) -> Transcript:
    """One of four steps, all of which do and see the same."""
    steps = [TranscriptStep(obs={"at": 0}, tool_calls=CALL, reward=0.0) for _ in range(4)]
    answer = {"status": 200, "steps": steps, "metrics": {"details": {"achievements": {"wood": 1, "stone": 0}}}}
    turn = TranscriptTurn(messages=[{"role": "user", "content": "Go."}], reply={"role": "assistant", "content": "ok"})
    return Transcript(turns=[changes.pop("turn", turn)], answer=TaskAppAnswer(**answer | changes))


@pytest.mark.parametrize(
    ("key", "transcript", "changes"),
    [
        ("splits=['test']", episode(), {}),
        ("task_ids=['chess']", episode(), {}),
        ("mode='train'", episode(), {}),
        ("models=['large']", episode(), {}),
        ("min_steps_per_episode=5", episode(), {}),
        ("max_steps_per_episode=3", episode(), {}),
        ("min_achievements_per_episode=2", episode(), {}),
        ("max_repeated_actions=3", episode(), {}),
        ("min_unique_states=2", episode(), {}),
        ("detect_loops=true", episode(steps=[TranscriptStep(tool_calls=CALL)] * 6), {}),
        ("success=0.5", episode(), {"outcome": "policy_failure"}),
        ("filter_errors=true", episode(), {"outcome": "policy_failure"}),
        ("filter_errors=true", episode(status=500), {}),
        ("filter_timeouts=true", episode(turn=TranscriptTurn(reply={"content": "o"}, finish_reason="length")), {}),
        ("min_judge_scores={tone = 0.5}", episode(), {}),
        ("max_judge_scores={outcome = 0.1}", episode(), {"judged_outcome": 0.25}),
    ],
)
def test_a_key_drops_what_it_says_and_says_so(run: Any, key: str, transcript: Transcript, changes: dict[str, Any]):
    review = RolloutReview(rollout_id="r", outcome=Review(criteria={"tone": CriterionScore(score=0.25)}))
    one = trace(0, 1.0, transcript=transcript, review=review, **changes)
    kept = trace(1, 1.0, transcript=None, expired=True)
    name = key.split("=")[0]
    with pytest.raises(CliError) as left:
        run([one, kept], key)
    assert f"{name}" in str(left.value)
    assert "none of 2 traces is left" in str(left.value)


def test_what_cannot_be_a_row_is_counted_by_its_reason(run: Any):
    reply = TranscriptTurn(messages=[{"role": "user", "content": "?"}], reply={"role": "assistant", "content": ""})
    gone = {"type": "image", "image": f"blob://orgs/o/images/{'0' * 64}"}
    shown = TranscriptTurn(
        messages=[{"role": "user", "content": [gone]}], reply={"role": "assistant", "content": "a cat"}
    )
    bad = [
        trace(0, None, transcript=None, expired=True),
        trace(1, 1.0, transcript=episode(turn=reply)),
        trace(2, 1.0, transcript=Transcript(turns=[shown])),
        trace(3, 1.0, transcript=msgspec.structs.replace(episode(), cut_values=1)),
        trace(4, 1.0),
    ]
    code, rows, report = run(bad)
    assert (code, seeds(rows)) == (0, [4])
    assert report["dropped"] == {"expired": 1, "images": 1, "shortened": 1}
    assert report["dropped_rows"] == {"no reply": 1}
    assert report["without_reward"] == 1


def test_images_are_in_the_row_or_left_out(run: Any):
    part = {"type": "image", "image": f"blob://orgs/o/images/{IMAGE}"}
    asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}
    turn = TranscriptTurn(messages=[asked], reply={"role": "assistant", "content": "a cat"})
    shown = [trace(0, 1.0, transcript=Transcript(turns=[turn]))]
    _, [row], _ = run(shown)
    assert row["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    _, [row], _ = run(shown, "include_images=false", "include_metadata=false")
    assert row == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": "a cat"},
        ]
    }


def test_a_rollout_of_several_turns_is_one_conversation_and_each_reply_of_it_is_learned_once(run: Any):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    call = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    shot = [{"role": "user", "content": "like this"}, {"role": "assistant", "content": "shot"}]
    turns = [
        TranscriptTurn(messages=shot, tools=[tool], reply={"role": "assistant", "tool_calls": [call]}),
        TranscriptTurn(
            continues=0, kept=3, messages=[{"role": "tool", "content": "sand", "tool_call_id": "c0"}],
            reply={"role": "assistant", "content": "dig"},
        ),
        # The client leaves the last reply out, and asks again.
        TranscriptTurn(
            continues=1, kept=4, messages=[{"role": "user", "content": "again"}],
            reply={"role": "assistant", "content": "dug"},
        ),
    ]  # fmt: skip
    _, rows, _ = run([trace(0, 1.0, transcript=Transcript(turns=turns))])
    said = [[(m["role"], m.get("content"), m.get("weight")) for m in row["messages"]] for row in rows]
    assert said == [
        [("user", "like this", None), ("assistant", "shot", 0), ("assistant", None, None), ("tool", "sand", None),
         ("assistant", "dig", None)],
        [("user", "like this", None), ("assistant", "shot", 0), ("assistant", None, 0), ("tool", "sand", None),
         ("user", "again", None), ("assistant", "dug", None)],
    ]  # fmt: skip
    assert all(row["tools"] == [tool] for row in rows)
    assert rows[0]["messages"][2]["tool_calls"] == [call]


def test_the_best_of_each_seed_and_of_copies_that_with_the_highest_reward(run: Any):
    many = [trace(n, r, said=w, seed=n % 2) for n, (r, w) in enumerate([(0, "a"), (1, "b"), (1, "c"), (1, "d")])]
    _, rows, report = run(many, "top_k=1")
    assert [row["messages"][-1]["content"] for row in rows] == ["b", "c"]
    assert report["dropped"] == {"top_k": 2}
    _, rows, _ = run(many, "top_k=2", "top_k_by='task'")
    assert [row["messages"][-1]["content"] for row in rows] == ["b", "c"]
    same = [msgspec.structs.replace(FOUR[n], id=f"{JOB}_e0_{n}", transcript=FOUR[0].transcript) for n in range(4)]
    _, rows, report = run(same, "deduplicate=true")
    assert (seeds(rows), report["dropped_rows"]) == ([1], {"deduplicate": 3})


def test_a_shuffle_is_of_its_seed_and_loses_nothing(run: Any):
    many = [trace(n, 1.0) for n in range(20)]
    _, first, _ = run(many, "shuffle=true", "shuffle_seed=7")
    _, again, _ = run(many, "shuffle=true", "shuffle_seed=7")
    _, other, _ = run(many, "shuffle=true", "shuffle_seed=8")
    assert seeds(first) == seeds(again)
    assert seeds(first) != seeds(other) != list(range(20))
    assert sorted(seeds(first)) == sorted(seeds(other)) == list(range(20))
    _, part, report = run(many, "shuffle=true", "shuffle_seed=7", "limit=5", "offset=2")
    assert (seeds(part), report["stopped"]) == (seeds(first)[2:7], False)


def test_an_older_file_is_split_cleaned_and_told_of(run: Any, tmp_path: Path):
    toml = f"""
[filter]
job = "{JOB}"
output_dir = "out"
export_format = "sft_jsonl"
[sft]
max_sequence_length = 100
deduplicate = true
shuffle = true
require_valid_tool_calls = true
filter_empty_responses = true
[split]
enabled = true
val_fraction = 0.25
stratify_by = "reward"
[output]
save_stats = true
save_filtered_episode_ids = true
"""
    long = trace(16, 1.0, said="word " * 400)
    malformed = TranscriptTurn(reply={"role": "assistant", "content": "x"}, malformed_call=True)
    many = [*(trace(n, float(n % 2)) for n in range(16)), long, trace(17, 1.0, transcript=episode(turn=malformed))]
    code, _, report = run(many, toml=toml)
    assert code == 0
    assert report["dropped"] == {"sft.require_valid_tool_calls": 1}
    assert report["dropped_rows"] == {"sft.max_sequence_length": 1}
    aside = [json.loads(line) for line in (tmp_path / "out" / "val.jsonl").read_text().splitlines()]
    trained = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert (len(aside), len(trained)) == (4, 12)
    assert sorted(row["metadata"]["total_reward"] for row in aside) == [0.0, 0.0, 1.0, 1.0]
    stats = json.loads((tmp_path / "out" / "filter_stats.json").read_text())
    assert len(stats["episode_ids"]) == 16
    assert stats["dropped"] == report["dropped"]


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        ('[filter]\noutput = "a.jsonl"\n', "no source"),
        ('[filter]\njob = "j"\ndb = "x"\noutput = "a.jsonl"\n', "together"),
        ('[filter]\njob = "j"\noutput = "a.csv"\n', "no JSONL"),
        ('[filter]\njob = "j"\noutput = "a.jsonl"\nmin_created_at = "soon"\n', "no moment"),
        ('[filter]\njob = "j"\noutput = "a.jsonl"\nshuffle_seed = 3\n', "shuffle_seed without"),
        ('[filter]\njob = "j"\noutput = "a.jsonl"\nmin_reward = 1.0\nmax_reward = 0.5\n', "above"),
        ('[filter]\ndb = "none.db"\noutput = "a.jsonl"\n', "no such file"),
        ('[filter]\ndb = "libsql://x"\noutput = "a.jsonl"\n', "is a server"),
        ('[eval]\nmodel = "tiny"\n', "this is a job"),
    ],
)
def test_a_wrong_filter_is_told_what_is_wrong(run: Any, toml: str, what: str):
    with pytest.raises(SynthError, match=what):
        run(FOUR, toml=toml)


def test_a_job_without_traces_is_said_so(run: Any):
    with pytest.raises(CliError) as left:
        run([])
    assert "there is no trace" in str(left.value)
