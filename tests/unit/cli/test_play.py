"""`synthctl play`: one rollout of a task app, read by a person or a program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from synth.cli.play.relay import Call
from synth.cli.play.show import transcript_of
from synth.cli.tui.rollout.conversation import conversation
from tests.forked_cli import forked_cli
from tests.unit.cli.backend import Answer, Request, backend_that
from tests.unit.cli.test_command_line import CLEAN

DOORS = """
from openai import OpenAI

from synth.taskapp.sdk import Episode, TaskApp

doors = TaskApp("doors", name="Doors", description="Open a door.", max_turns=3)
TOOL = {"type": "function", "function": {"name": "open", "parameters": {"properties": {"door": {}}}}}
agent = TaskApp("agent", name="Agent", description="An agent of its own.", max_turns=2)
crash = TaskApp("crash", name="Crash", description="Breaks.")


@doors.episode
async def play(ep: Episode) -> None:
    print("the app's own words")
    messages = [{"role": "user", "content": f"Seed {ep.seed}.\\nOpen one."}]
    for turn in range(2):
        reply = await ep.chat(messages, tools=[TOOL])
        call = reply.require_tool_call()
        seen = f"behind {call.arguments['door']}: a goat"
        messages += [reply.message, {"role": "tool", "tool_call_id": call.id, "content": seen}]
        ep.step(obs=seen, reward=0.25, info={"left": 2 - turn}, done=turn == 1)


@agent.episode
def talk(ep: Episode) -> None:
    with OpenAI(base_url=ep.base_url, api_key=ep.api_key, timeout=30) as client:
        for asked in ("Hello.", "Forget that."):
            chunks = client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": asked}], stream=True, temperature=0.1
            )
            said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    ep.step(obs=said, reward=float(len(said)), done=True)


def look(seed: int) -> int:
    return [][seed]


@crash.episode
async def fall(ep: Episode) -> None:
    await ep.chat([{"role": "user", "content": "hi"}])
    look(ep.seed)


number = TaskApp("number", name="Number", description="Returns its reward.")
silent = TaskApp("silent", name="Silent", description="Says nothing of a reward.")


@number.episode
async def count(ep: Episode) -> bool:
    return (await ep.chat([{"role": "user", "content": "hi"}])).content == "hello"


@silent.episode
def forget(ep: Episode) -> None:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doors.py").write_text(DOORS)
    return tmp_path


def play(folder: Path, *arguments: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """What the command prints; lines that are typed come through a pipe."""
    environment = {k: v for k, v in CLEAN.items() if not k.startswith("OPENAI")} | env
    return forked_cli().run(("play", *arguments), folder=folder, environment=environment, timeout=90, input=typed)


def test_a_rollout_reads_turn_by_turn_with_tools_steps_and_reward(folder: Path):
    typed = '/call open {"door": "left"}\n/call open {"door": "right"}\n'
    run = play(folder, "doors.py:doors", "--seed", "7", typed=typed)
    assert run.returncode == 0, run.stderr
    assert run.stdout.replace("the app's own words\n", "").splitlines() == [
        "",
        "turn 1",
        "user       Seed 7.",
        "           Open one.",
        "tools      open(door)",
        'calls      open(door="left")',
        "step 1     reward 0.25",
        "  obs      behind left: a goat",
        '  info     {"left": 2}',
        "",
        "turn 2",
        "tool       behind left: a goat",
        'calls      open(door="right")',
        "step 2     reward 0.25, done",
        "  obs      behind right: a goat",
        '  info     {"left": 1}',
        "",
        "outcome",
        "reward     0.5",
    ]


def test_what_the_policy_failed_at_is_said_and_is_no_error_of_the_app(folder: Path):
    run = play(folder, "doors.py:doors", typed="I open none\n")
    assert run.returncode == 0
    assert "none: the policy failed (no_tool_call: the model made no tool call)" in run.stdout


def completion(text: str) -> Answer:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return Answer(body={"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage})


def test_a_model_anywhere_plays_with_the_sampling_that_is_asked_for(folder: Path):
    def answer(request: Request) -> Answer:
        return completion("hello") if request.headers["Authorization"] == "Bearer sk-1" else Answer(401)

    with backend_that(answer) as (endpoint, _):
        flags = ("doors.py:agent", "--model", "small", "--temperature", "0.7", "--max-tokens", "9", "-o", "json")
        run = play(folder, *flags, OPENAI_BASE_URL=endpoint.url, OPENAI_API_KEY="sk-1")
        assert run.returncode == 0, run.stderr
        sent: list[dict[str, Any]] = [json.loads(request.body) for request in endpoint.requests]
        told = play(folder, *flags[:-2], OPENAI_BASE_URL=endpoint.url, OPENAI_API_KEY="sk-1").stdout
        refused = play(folder, *flags, "--model-url", endpoint.url, OPENAI_API_KEY="sk-2")
    assert [(s["model"], s["temperature"], s["max_tokens"], s["stream"]) for s in sent] == [
        ("small", 0.7, 9, False)
    ] * 2
    found = json.loads(run.stdout)
    assert (found["app"], found["seed"], found["model"], found["reward"]) == ("agent", 0, "small", 5.0)
    assert [call["reply"]["content"] for call in found["calls"]] == ["hello", "hello"]
    assert found["steps"][0]["obs"] == "hello"
    assert "turn 2  (5 + 2 tokens)" in told
    assert "note       a conversation of its own: it goes on from no earlier turn" in told
    assert "note       the reply was cut off at the token limit" in told
    assert refused.returncode == 4
    assert "the model's endpoint refuses OPENAI_API_KEY (environment)" in refused.stderr
    assert refused.stdout == ""


def test_what_the_app_raises_is_shown_at_its_own_lines_alone(folder: Path):
    run = play(folder, "doors.py:crash", "--seed", "3", typed="hello\n")
    assert run.returncode == 1
    assert run.stdout.splitlines()[-2:] == ["user       hi", "reply      hello"]
    assert [line.strip() for line in run.stderr.splitlines() if "doors.py" in line or "IndexError" in line] == [
        "doors.py:42, in fall",
        "doors.py:36, in look",
        "IndexError: list index out of range",
        "error: doors.py:36: the app raised IndexError: list index out of range",
    ]
    assert "Traceback" not in run.stderr
    assert "synth/" not in run.stderr


def test_what_an_episode_returns_is_the_reward(folder: Path):
    run = play(folder, "doors.py:number", typed="hello\n")
    assert (run.returncode, run.stdout.splitlines()[-2:]) == (0, ["outcome", "reward     1"])


def test_an_episode_that_says_nothing_of_a_reward_is_an_error_at_its_line(folder: Path):
    run = play(folder, "doors.py:silent")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-4:] == [
        "doors.py:55, in forget",
        "  def forget(ep: Episode) -> None:",
        "the episode returned nothing, and recorded no step and no outcome; expected a number, which is the reward, or "
        "nothing, after ep.step(reward=…) or ep.outcome(…)",
        "error: doors.py:55: the episode returned nothing, and recorded no step and no outcome; expected a number, "
        "which is the reward, or nothing, after ep.step(reward=…) or ep.outcome(…)",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("doors.py:doors",), 2, "no further line to answer with"),
        (("doors.py:doors", "--env-name", "door"), 2, 'write env_name = "doors"'),
        (("doors.py:doors", "--model", "m"), 4, "no API key"),
        (("doors.py:doors", "--model", "m", "--model-url", "http://127.0.0.1:9/v1"), 7, "cannot be reached"),
        (("http://127.0.0.1:9",), 1, "cannot be reached"),
    ],
)
def test_what_cannot_be_played_says_why(folder: Path, arguments: tuple[str, ...], code: int, words: str):
    run = play(folder, *arguments)
    assert (run.returncode, words in run.stderr) == (code, True), run.stderr
    assert "Traceback" not in run.stderr


def called(asked: list[tuple[str, str]], reply: str) -> Call:
    messages = [{"role": role, "content": content} for role, content in asked]
    choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
    return Call({"messages": messages}, {"choices": [choice]}, 0.0)


def test_a_turn_says_where_it_goes_on_from_and_what_training_makes_of_it():
    first = called([("system", "Dig."), ("user", "Where?")], "Left.")
    on = called([("system", "Dig."), ("user", "Where?"), ("assistant", "Left."), ("user", "Sand.")], "Right.")
    cut = called([("system", "Dig."), ("user", "Once more: where?")], "Down.")
    back = called([("system", "Dig."), ("user", "Where?"), ("assistant", "Left."), ("user", "Gold!")], "Done.")
    transcript = transcript_of([first, on, cut, back], [])
    assert [(turn.continues, turn.kept, len(turn.messages)) for turn in transcript.turns] == [
        (None, 0, 2),
        (0, 3, 1),
        (0, 1, 1),
        (0, 3, 1),
    ]
    notes = [text for label, text in conversation(transcript) if label == "note"]
    leaves = "and leaves the rest of it out: in training, another sequence begins here"
    assert notes == [f"goes on from 1 message of turn 1 {leaves}", "goes on from 3 messages of turn 1"]
