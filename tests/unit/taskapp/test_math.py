"""The Math task: what is asked, what is paid, what is taught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from synth.demo.math import app as math_app
from synth.demo.math.dataset import estimate, rows, worked
from synth.demo.math.problems import HELD_OUT_FROM, is_exact, operands, pairs
from synth.taskapp.contract import RolloutResponse
from synth.taskapp.llm import ChatClients
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion


def test_every_pair_is_on_one_side_of_the_split_and_b_plus_a_goes_with_a_plus_b() -> None:
    train, held_out = set(pairs(held_out=False)), set(pairs(held_out=True))
    assert not train & held_out
    assert len(train | held_out) == 8100
    assert {(b, a) for a, b in held_out} == held_out
    assert 1000 < len(held_out) < 1700


def test_the_split_is_fixed() -> None:
    assert (operands(0), operands(HELD_OUT_FROM)) == ((45, 40), operands(HELD_OUT_FROM + len(pairs(held_out=True))))


def test_512_held_out_seeds_are_512_problems_that_no_training_seed_or_row_has() -> None:
    held_out = {operands(HELD_OUT_FROM + i) for i in range(512)}
    assert len(held_out) == 512
    trained = {operands(seed) for seed in range(100_000)}
    taught = {str(row["messages"][0]["content"]) for row in dataset(16_000)}
    assert not held_out & trained
    assert not {f"What is {a} + {b}?" for a, b in held_out} & taught


def dataset(count: int) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row)) for row in rows(count, seed=0)]


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("8+7+0=15; 5+6+1=12; answer 125", True),
        ("125", True),
        ("125.", True),
        ("0125", True),
        ("answer 125 or 126", False),
        ("at least 110", False),
        ("answer -125", False),
        ("1250", False),
        ("", False),
        ("no idea", False),
        ("1" * 10_000, False),
    ],
)
def test_only_the_last_whole_number_counts(text: str, exact: bool) -> None:
    assert is_exact(text, 58, 67) is exact


def test_a_worked_answer_is_right_for_every_pair_and_an_estimate_is_true() -> None:
    for a, b in [*pairs(held_out=False), *pairs(held_out=True)]:
        assert is_exact(worked(a, b), a, b)
        assert int(estimate(a, b).split()[-1]) <= a + b
    assert worked(58, 67) == "8+7+0=15; 5+6+1=12; answer 125"
    assert worked(10, 11) == "0+1+0=01; 1+1+0=02; answer 21"
    assert estimate(58, 67) == "at least 110"


def test_two_rows_in_five_are_worked_out() -> None:
    replies = [row["messages"][1]["content"] for row in dataset(16_000)]
    assert sum("answer" in r for r in replies) / len(replies) == pytest.approx(0.4, abs=0.02)


def test_the_dataset_command_writes_the_same_jsonl_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        command = ["-m", "synth.demo.math.dataset", "--out", str(tmp_path / name), "--rows", "50", "--seed", "3"]
        subprocess.run([sys.executable, *command], check=True, timeout=60)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert len(lines) == 50
    assert [m["role"] for m in lines[0]["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("finish_reason", "right", "reward"), [("stop", True, 1.0), ("stop", False, 0.0), ("length", True, 0.0)]
)
async def test_it_pays_for_an_exact_answer_that_was_finished(
    finish_reason: str, right: bool, reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(5)
    llm = ScriptedLlm(completion(f"answer {a + b + (not right)}", finish_reason=finish_reason))
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "k")
    monkeypatch.setattr(math_app.math, "_clients", ChatClients(transport=llm.transport()))
    body = {
        "run_id": "r",
        "mode": "rl",
        "env": {"env_name": "math", "seed": 5},
        "policy": {"policy_name": "p", "config": {"inference_url": "http://llm/?cid=trace_1"}},
    }
    transport = httpx.ASGITransport(math_app.math.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://app", headers={"x-api-key": "k"}) as http:
        reply = RolloutResponse.model_validate((await http.post("/rollout", json=body)).json())
        info = (await http.get(f"/task_info?seed={HELD_OUT_FROM}")).json()
    assert reply.reward() == reward
    assert reply.policy_failure() is None
    assert llm.bodies[0]["messages"] == [{"role": "user", "content": f"What is {a} + {b}?"}]
    assert info["task_metadata"]["split"] == "held_out"
