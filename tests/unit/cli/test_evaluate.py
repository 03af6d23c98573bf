"""`synthctl eval`: the result of an evaluation, its seeds, and two of them compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.jobs.lifecycle import State
from tests.unit.cli.backend import Answer, Request, backend_that, job_body
from tests.unit.cli.test_command_line import synthctl

TIME = "2026-01-01T00:00:00Z"


def rollout(seed: int, reward: float, **changes: Any) -> dict[str, Any]:
    data = {"rollout_id": f"r{seed}", "iteration": 0, "mode": "eval", "seed": seed, "reward": reward, "calls": 1}
    return {"type": "rollout.completed", "data": data | {"completion_tokens": 5, "seconds": 0.5} | changes}


def completed(**changes: Any) -> dict[str, Any]:
    return {"type": "eval.completed", "data": {"model": "m", "instances": 1, "values": {}} | changes}


#: The events of each job.
LOGS = {
    "job_1": [rollout(s, float(s % 2)) for s in range(10)] + [completed()],
    "job_2": [rollout(s, 1.0) for s in range(2, 12)] + [completed()],
    "job_3": [rollout(s, s / 8) for s in range(4)] + [completed()],
    "job_4": [
        *(rollout(s, 0.0, iteration=k, mode=mode) for k in (0, 5) for s in range(3) for mode in ("eval", "train")),
        completed(step=0, iteration=0),
        completed(step=5, iteration=5),
        # The evaluation of step 10 is not complete.
        rollout(0, 1.0, iteration=10),
    ],
    "job_5": [],
    # Two rollouts of each of three seeds; seed s succeeds s times.
    "job_6": [
        *(rollout(s, float(i < s), rollout_id=f"r{s}_{i}") for s in range(3) for i in range(2)),
        completed(rollouts_per_seed=2, success_threshold=1.0),
    ],
    "job_7": [
        *(rollout(s, 1.0, rollout_id=f"r{s}_{i}") for s in range(3) for i in range(2)),
        # The judge thinks less of one, and cannot score another.
        {"type": "rollout.judged", "data": {"rollout_id": "r0_0", "iteration": 0, "mode": "eval", "reward": 0.5}},
        {"type": "rollout.judged", "data": {"rollout_id": "r0_1", "iteration": 0, "mode": "eval", "reward": None}},
        completed(rollouts_per_seed=2, success_threshold=1.0),
    ],
}


def answer(request: Request) -> Answer:
    path, _, query = request.path.partition("?")
    if request.method == "GET" and path == "/api/jobs":
        named = query.partition("prefix=")[2].partition("&")[0]
        found = [job_body(State.SUCCEEDED, id=id) for id in LOGS if id.startswith(named)]
        return Answer(body={"data": found, "has_more": False})
    id = path.split("/")[3] if path.count("/") > 2 else "job_1"
    events = [{"seq": i, "time": TIME, "job_id": id, **e} for i, e in enumerate(LOGS[id], start=1)]
    if path.endswith("/events") and request.headers.get("Accept") == "text/event-stream":
        chunks = [f"id: {e['seq']}\nevent: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events]
        return Answer(chunks=[*chunks, "event: end\ndata: {}\n\n"])
    if path.endswith("/events"):
        # Pages of three, so that one is not all.
        after = int(query.partition("after=")[2].partition("&")[0] or 0)
        page = [e for e in events if e["seq"] > after]
        return Answer(body={"events": page[:3], "last_seq": len(events), "more": len(page) > 3})
    return Answer(body=job_body(State.SUCCEEDED, id=id, eval={"reward_mean": 0.5, "rollouts": 10.0}))


def evaluated(*arguments: str, cwd: Path):
    with backend_that(answer) as (backend, _):
        return synthctl("eval", *arguments, cwd=cwd, SYNTH_API_KEY="sk_x", BACKEND_BASE_URL=backend.url)


FLAGS = ("--model", "tiny", "--seeds", "0-9", "--task-url", "http://127.0.0.1:1", "--no-preflight")


@pytest.mark.parametrize("words", [(), ("run",)])
def test_a_pipe_gets_the_result_alone_with_the_interval_of_the_mean(words: tuple[str, ...], tmp_path: Path):
    run = evaluated(*words, *FLAGS, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    assert lines[:2] == [["measure", "result"], ["reward_mean", "0.5"]]
    name, interval = lines[2]
    assert name == "95 % interval (Wilson)"
    assert [round(float(end), 4) for end in interval.split()] == [0.2366, 0.7634]
    assert lines[3:] == [["rollouts", "10"]]
    assert "evaluation" in run.stderr


def test_a_program_gets_the_interval_and_with_per_seed_every_seed(tmp_path: Path):
    found = json.loads(evaluated(*FLAGS, "--per-seed", "-o", "json", cwd=tmp_path).stdout)
    assert (found["job"], found["values"]["reward_mean"], found["interval"]["method"]) == ("job_1", 0.5, "wilson")
    assert [(s["seed"], s["reward"]) for s in found["seeds"]] == [(s, s % 2) for s in range(10)]


def test_seeds_are_shown_the_worst_first(tmp_path: Path):
    run = evaluated("show", "job_3", "--per-seed", cwd=tmp_path)
    assert [line.split("\t")[:2] for line in run.stdout.splitlines()[:5]] == [
        ["seed", "reward"], ["0", "0"], ["1", "0.125"], ["2", "0.25"], ["3", "0.375"]
    ]  # fmt: skip
    assert "95 % interval (Student)" in run.stdout


def test_of_an_rl_job_it_is_the_last_complete_evaluation_or_the_one_that_is_asked_for(tmp_path: Path):
    for flags, step in (((), 5), (("--step", "0"), 0)):
        found = json.loads(evaluated("show", "job_4", *flags, "-o", "json", cwd=tmp_path).stdout)
        assert (found["step"], len(found["seeds"])) == (step, 3)
    wrong = evaluated("show", "job_4", "--step", "10", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "job_4 has no evaluation of step 10" in wrong.stderr
    assert "0, 5" in wrong.stderr


def test_two_evaluations_are_paired_by_the_seeds_that_both_have(tmp_path: Path):
    found = json.loads(evaluated("compare", "job_1", "job_2", "-o", "json", cwd=tmp_path).stdout)["differences"][0]
    assert (found["seeds"], found["mean"], found["better"], found["worse"], found["equal"]) == (8, 0.5, 4, 0, 4)
    run = evaluated("compare", "job_1", "job_2", cwd=tmp_path)
    assert "seeds: B is better on 4, worse on 0, the same on 4" in run.stdout
    assert "B is better: the interval does not contain 0" in run.stdout


def test_seeds_that_are_played_several_times_give_mean_at_k_and_pass_at_k(tmp_path: Path):
    found = json.loads(evaluated("show", "job_6", "-o", "json", cwd=tmp_path).stdout)
    measures = {name: (m["value"], m["seeds"]) for name, m in found["measures"].items()}
    assert measures == {"mean@2": (0.5, 3), "pass@1": (0.5, 3), "pass@2": (pytest.approx(2 / 3), 3)}
    assert len(found["seeds"]) == 6
    shown = evaluated("show", "job_6", "--per-seed", cwd=tmp_path).stdout.splitlines()
    assert [line.split("\t")[0] for line in shown[:8]] == ["seed", "0", "0", "1", "1", "2", "2", "mean reward"]
    rows = dict(line.split("\t") for line in shown[7:])
    assert float(rows["pass@2"]) == pytest.approx(2 / 3)
    # Wilson's, of two seeds out of three.
    assert [round(float(end), 4) for end in rows["pass@2 95 % interval"].split()] == [0.2077, 0.9385]


def test_what_judges_made_of_a_rollout_is_its_reward_and_what_it_earned_is_its_success(tmp_path: Path):
    found = json.loads(evaluated("show", "job_7", "-o", "json", cwd=tmp_path).stdout)
    assert (found["measures"]["mean@2"]["value"], found["failed"]) == (pytest.approx(2.5 / 3), [0])
    assert (found["measures"]["pass@1"]["value"], found["measures"]["pass@2"]["seeds"]) == (1.0, 2)


def test_repeated_evaluations_are_paired_by_seed_in_each_measure_that_both_have(tmp_path: Path):
    found = json.loads(evaluated("compare", "job_6", "job_7", "-o", "json", cwd=tmp_path).stdout)
    assert found["differences"][0]["mean"] == pytest.approx((0.5 + 0.5 + 0) / 3)
    # Of seed 0 one rollout is left: it has no pass@2.
    assert (found["measures"][0]["pass@2"]["seeds"], found["measures"][0]["pass@2"]["mean"]) == (2, 0.0)
    run = evaluated("compare", "job_6", "job_7", cwd=tmp_path)
    assert "B - A\tpass@1\t0.5\t3\t" in run.stdout, run.stdout
    assert "pass@" not in evaluated("compare", "job_1", "job_6", cwd=tmp_path).stdout


def test_what_cannot_be_compared_is_refused(tmp_path: Path):
    for jobs, said in (
        (("job_1",), "1 job"),
        (("job_1", "job_5"), "nothing of job_5 was evaluated"),
    ):
        run = evaluated("compare", *jobs, cwd=tmp_path)
        assert run.returncode != 0
        assert said in run.stderr


@pytest.mark.parametrize(("flags", "turns"), [((), 7), (("--max-turns", "2"), 2)])
def test_an_evaluation_by_flags_plays_as_many_turns_as_the_app_allows_or_as_it_is_told(
    flags: tuple[str, ...], turns: int, tmp_path: Path
):
    def app(request: Request) -> Answer:
        return Answer(body={"limits": {"max_turns": 7}} if request.path == "/api/info" else {})

    with backend_that(app) as (_, client), backend_that(answer) as (backend, _):
        asked = (
            "--model",
            "tiny",
            "--seeds",
            "0-1",
            "--task-url",
            client.root,
            "--no-preflight",
            "--backend",
            backend.url,
        )
        run = synthctl("eval", *asked, *flags, "--detach", cwd=tmp_path, SYNTH_API_KEY="sk_x")
    assert run.returncode == 0, run.stderr
    sent = next(json.loads(r.body) for r in backend.requests if r.method == "POST" and r.path == "/api/jobs")
    assert f"max_turns = {turns}\n" in sent["config"]
