"""`synth-ai eval` and `filter`: the user's loop from a model's answers to the next dataset.

The last test is the evaluation by a URL alone of docs/agents.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.taskapp.sdk import Episode, TaskApp
from tests.clients.conftest import BASE, ENVIRONMENT_KEY
from tests.clients.published import Published
from tests.e2e.platform import Platform, sft
from tests.e2e.task_apps import served
from tests.judge_server import JudgeServer

pytestmark = pytest.mark.timeout(1200)


def evaluation(model: str, inference_url: str) -> str:
    return f"""
[eval]
app_id = "math"
model = "{model}"
seeds = [1000000, 1000001, 1000002, 1000003, 1000004, 1000005, 1000006, 1000007]
concurrency = 4
env_name = "math"
policy_name = "math-single-turn"

[eval.policy_config]
inference_url = "{inference_url}"
max_llm_calls = 1
max_tokens = 32
temperature = 1.0
"""


def filtering(db: str, output: str) -> str:
    return f"""
[filter]
db = "{db}"
output = "{output}"
limit = 5
"""


def test_a_models_answers_are_stored_filtered_and_trained_on(synth_ai: Published, sft_model: str, platform: Platform):
    config = synth_ai.write(evaluation(sft_model, f"{synth_ai.root}/api/inference"))
    evaluated = synth_ai.evaluate(config, "traces.db")
    assert evaluated.code == 0, evaluated.text
    for seed in range(1_000_000, 1_000_008):
        assert f"seed={seed} status=200" in evaluated.text, evaluated.text
    filtered = synth_ai.filter(synth_ai.write(filtering("traces.db", "good.jsonl")))
    assert filtered.code == 0, filtered.text
    rows = [json.loads(line) for line in (synth_ai.folder / "good.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        assert [message["role"] for message in row["messages"]][-2:] == ["user", "assistant"]
        assert row["messages"][-1]["content"] != "[no response recorded]"
    uploaded = platform.shell.json("files", "upload", str(synth_ai.folder / "good.jsonl"))
    assert (uploaded["status"], uploaded["rows"]) == ("ready", 5)
    ours = synth_ai.folder / "ours.jsonl"
    toml = platform.write(filtering(str(synth_ai.folder / "traces.db"), str(ours)), "filter")
    platform.shell.ok("filter", toml)
    same_rows(rows, ours)


def test_an_evaluation_shows_what_the_clients_own_judge_is_told_by_the_platform(
    synth_ai: Published, sft_model: str, judge_api: JudgeServer
):
    """The judge is the function that comes with the client, which asks `/judge/v1/score`."""
    judge = synth_ai.venv / "lib/python3.11/site-packages/examples/multi_step/judges/crafter_backend_judge.py"
    config = f"""{evaluation(sft_model, f"{synth_ai.root}/api/inference")}
[eval.judge]
path = "{judge}"
name = "Backend"
backend_url = "{synth_ai.root}/api"
model = "a-judge"
timeout_s = 45
"""
    before = len(judge_api.calls)
    evaluated = synth_ai.evaluate(synth_ai.write(config), "judged.db")
    assert evaluated.code == 0, evaluated.text
    # One call for each different rollout, whose scores are in the table and in its mean.
    asked = judge_api.calls[before:]
    assert 1 <= len(asked) <= 8
    assert {call.body["model"] for call in asked} == {"a-judge"}
    scores = [float(line.split()[-1]) for line in evaluated.text.splitlines() if line.startswith("10000")]
    assert len(scores) == 8, evaluated.text
    assert set(scores) <= {0.25, 1.0}
    mean = evaluated.found(r"\[Backend\] mean: (\S+)")
    assert float(mean) == pytest.approx(sum(scores) / 8, abs=1e-3)


def same_rows(theirs: list[dict[str, Any]], file: Path) -> None:
    """Our filter's rows are those of the client, of which 0.2.16 leaves out what the system says."""
    ours = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(ours) == len(theirs)
    for row, other in zip(ours, theirs, strict=True):
        had = {message["role"] for message in other["messages"]}
        assert [message for message in row["messages"] if message["role"] in had] == other["messages"]
        # They look at rewards only where a bound asks for it.
        known = {key: value for key, value in other["metadata"].items() if value is not None}
        assert {key: row["metadata"][key] for key in known} == known


def test_the_platforms_traces_are_a_database_that_the_client_filters(
    synth_ai: Published, sft_model: str, platform: Platform
):
    shell, db = platform.shell, str(synth_ai.folder / "exported.db")
    # So many that some are right: a filter that keeps nothing is an error.
    toml = f'[eval]\nmodel = "{sft_model}"\nseeds = "0-95"\nmax_tokens = 32\ntemperature = 1.0\nenv_name = "math"\n'
    job = platform.submit(toml, "--task-url", synth_ai.task_url)
    platform.succeeded(job)
    shell.ok("traces", "export", db, "--job", job, "--format", "sqlite", "--replace")
    kept = f'min_official_score = 0.01\nmodels = ["{sft_model}"]\ntask_ids = ["math"]\nmin_created_at = "2026-01-01"\n'
    text = filtering(db, "exported.jsonl") + kept
    filtered = synth_ai.filter(synth_ai.write(text))
    assert filtered.code == 0, filtered.text
    rows = [json.loads(line) for line in (synth_ai.folder / "exported.jsonl").read_text().splitlines()]
    assert all(row["metadata"]["total_reward"] > 0 for row in rows)
    ours = synth_ai.folder / "exported-ours.jsonl"
    shell.ok("filter", platform.write(filtering(db, str(ours)) + kept, "filter"))
    same_rows(rows, ours)


#: What the client's bundled Math app says before a problem, and the tool of which it forces a call.
MATH_SYSTEM = """\
You are a math solver. Read the problem carefully and respond with a single tool call using the function `math_submit`.
Rules:
- Do all reasoning internally.
- The tool call must include ONLY the final numeric or simplified answer in the `answer` field.
- DO NOT include explanations, units, or extra text in the answer."""
MATH_ANSWER = {
    "answer": {"type": "string", "description": "Final answer in simplest form"},
    "explanation": {"type": "string", "description": "Optional explanation of reasoning"},
}
MATH_SUBMIT = {
    "type": "function",
    "function": {
        "name": "math_submit",
        "description": "Submit the final answer for the math problem.",
        "parameters": {
            "type": "object",
            "properties": MATH_ANSWER,
            "required": ["answer"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def seven(platform: Platform) -> str:
    """A model that submits 7, whatever the problem is."""
    call = {"role": "assistant", "tool_calls": [{"name": "math_submit", "arguments": {"answer": "7"}}]}
    rows = [
        {
            "messages": [
                {"role": "system", "content": MATH_SYSTEM},
                {
                    "role": "user",
                    "content": f"Problem:\nWhat is {a} + {b}?\nSubmit the final answer via the tool call.",
                },
                call,
            ],
            "tools": [MATH_SUBMIT],
        }
        for a in range(10)
        for b in range(10)
    ]
    file = platform.shell.folder / "seven.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = sft(steps=100, model=BASE).replace("sequence_length = 64", "sequence_length = 2048")
    job = platform.submit(config.replace("global_batch = 16", "global_batch = 4"), "--dataset", str(file))
    return platform.succeeded(job)["model"]


def test_the_bundled_math_app_scores_a_model_that_it_reaches_by_a_url_alone(
    seven: str, published: Callable[[str], Published], platform: Platform, tmp_path: Path
):
    """The app sends no key. It reads its problems from a folder here, and from the hub otherwise."""
    synth_ai = published("synth-ai-0.2.16")
    url = platform.shell.ok("keys", "create", "--url", "--model", seven).strip()
    problems = [("What is 3 + 4?", "7"), ("What is 5 + 2?", "7"), ("What is 1 + 1?", "2")]
    lines = [json.dumps({"problem": problem, "solution": solution}) for problem, solution in problems]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    config = f"""
[eval]
app_id = "math-single-step"
model = "{seven}"
seeds = [0, 1, 2]

[eval.policy_config]
inference_url = "{url}"
max_tokens = 64
temperature = 0.0
"""
    places = {"MATH_DATASET_LOCAL_DIR": str(tmp_path), "MATH_MODAL_DATASET_DIR": str(tmp_path / "cache")}
    evaluated = synth_ai.evaluate_bundled(synth_ai.write(config), "examples/task_apps/math", **places)
    assert evaluated.code == 0, evaluated.text
    assert "correct=2/3 (66.67%), mean_outcome=0.667" in evaluated.text, evaluated.text


def submitting() -> TaskApp:
    """A task app whose policy may answer by a tool call alone."""
    app = TaskApp("math", name="Submitting", description="Wants 7 by a tool call.", keys=[ENVIRONMENT_KEY])

    @app.episode
    async def play(ep: Episode) -> float:
        problem = f"Problem:\nWhat is {ep.seed % 10} + 4?\nSubmit the final answer via the tool call."
        asked = [{"role": "system", "content": MATH_SYSTEM}, {"role": "user", "content": problem}]
        reply = await ep.chat(asked, tools=[MATH_SUBMIT], tool_choice="required")
        return float(bool(reply.tool_calls()))

    return app


def test_answers_that_are_tool_calls_alone_are_filtered_into_rows_that_are_accepted(
    seven: str, synth_ai: Published, platform: Platform
):
    config = evaluation(seven, f"{synth_ai.root}/api/inference").replace("max_tokens = 32", "max_tokens = 64")
    with served(submitting()) as app:
        evaluated = replace(synth_ai, task_url=app.url).evaluate(synth_ai.write(config), "calls.db")
    assert evaluated.code == 0, evaluated.text
    filtered = synth_ai.filter(synth_ai.write(filtering("calls.db", "calls.jsonl")))
    assert filtered.code == 0, filtered.text
    rows = [json.loads(line) for line in (synth_ai.folder / "calls.jsonl").read_text().splitlines()]
    for row in rows:
        [call] = row["messages"][-1]["content"]
        assert call == {"tool_name": "math_submit", "arguments": {"answer": "7"}}
    uploaded = platform.shell.json("files", "upload", str(synth_ai.folder / "calls.jsonl"))
    assert (uploaded["status"], uploaded["rows"]) == ("ready", 5)
