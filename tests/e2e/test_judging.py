"""RL that judges pay: over HTTP, by a rubric, through a judge that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import JOB_S, Platform, rl
from tests.e2e.task_apps import Served, paying, served
from tests.judge_server import JudgeCall, JudgeServer, Script, failing, ordered, prose, scored

pytestmark = pytest.mark.timeout(1200)

ITERATIONS = 45


def reply_of(event: dict[str, Any]) -> str:
    return event["reply"].get("content") or ""


def vowels_of(text: str) -> float:
    """The share of vowels among its characters."""
    return sum(c in "aeiouAEIOU" for c in text) / max(len(text), 1)


def vowels(call: JudgeCall) -> float:
    """What a rubric of vowels gives: to the whole episode, or to the one event that is shown."""
    shown = call.data
    return vowels_of("".join(reply_of(e) for e in shown.get("events", [shown]) if "reply" in e))


CRITERION = {"id": "vowels", "description": "The reply has many vowels."}


@pytest.fixture(scope="module")
def flat_app() -> Iterator[Served]:
    """Pays each reply the same, and has a rubric of its own for the outcome."""
    with served(paying(0.5, {"outcome": {"criteria": [CRITERION]}})) as app:
        yield app


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(scored(vowels)) as server:
        yield server


def judged(
    app: Served, judge: JudgeServer, *, weights: str, options: str = "", criteria: bool = True, **job: Any
) -> str:
    """An RL job whose rubric asks for vowels, of each turn and of the whole. options: lines of `[judge]`.

    criteria: whether the job has them; else the task app's rubric is applied.
    """
    criterion = (
        '[[rubric.{}.criteria]]\nid = "vowels"\ndescription = "The reply has many vowels."\n' if criteria else ""
    )
    tail = f"""
[rubric.weights]
{weights}
{criterion.format("event")}{criterion.format("outcome")}
[judge]
{options}
[[judge.judges]]
model = "a-judge"
url = "{judge.url}"
{job.pop("tail", "")}
"""
    return rl("tiny-qwen3", app.url, tail=tail, **job)


OUTCOME = "env = 1.0\nevent = 0.0\noutcome = 1.0"


def test_the_policy_learns_what_the_rubric_pays_and_the_environment_does_not(
    platform: Platform, flat_app: Served, judge: JudgeServer
):
    text = judged(
        flat_app,
        judge,
        weights=OUTCOME,
        env="paying",
        iterations=ITERATIONS,
        training="async_level = 1",
        tail=f'[evaluation]\nevery_n_iters = {ITERATIONS}\nseeds = "1000-1007"',
    )
    made = platform.submit(text.replace("learning_rate = 1e-3", "learning_rate = 3e-3"))
    found = platform.succeeded(made)
    before, after = [e["values"] for e in platform.events(made, "eval.completed")]
    assert (before["reward_env_mean"], after["reward_env_mean"]) == (0.5, 0.5)
    earned = [step["reward_outcome_mean"] for step in platform.steps(made)]
    assert sum(earned[-5:]) / 5 > sum(earned[:5]) / 5 + 0.1, earned
    assert after["reward_mean"] == pytest.approx(0.5 + after["reward_outcome_mean"])
    rollouts = found["rollouts"]["completed"]
    assert found["judge"]["judged"] == rollouts
    # Rollouts of one prompt in which the policy says the same word for word share a judge's answer.
    told_apart = {e["transcript"] for e in platform.events(made, "rollout.judged")}
    assert len(told_apart) == found["judge"]["calls"] == len(judge.calls)
    assert f"{rollouts} rollouts, " in platform.shell.ok("jobs", "get", made)


def test_a_judge_that_is_away_for_a_while_costs_no_step_and_no_reward(
    platform: Platform, flat_app: Served, judge: JudgeServer
):
    text = judged(flat_app, judge, weights=OUTCOME, env="paying", iterations=8, criteria=False)
    made = platform.submit(text)
    log = platform.shell.folder / ".synth" / "logs" / "rollouts.log"
    # In its third iteration of eight: a look at the job takes a busy machine as long as some of them.
    judge.wait_for_calls(2 * 16 + 1, timeout=JOB_S)
    told = log.read_text().count("judges are away")
    judge.stop()
    eventually(lambda: log.read_text().count("judges are away") > told, timeout=JOB_S)
    judge.start()
    found = platform.succeeded(made)
    assert (found["step"], found["judge"]["unscored"]) == (8, 0)
    events = platform.events(made, "rollout.judged")
    assert len({e["rollout_id"] for e in events}) == len(events) == 8 * 16
    assert all(e["reward"] == pytest.approx(0.5 + e["outcome"]) for e in events)


def test_turns_and_outcome_are_blended_and_turns_have_their_own_credit(
    platform: Platform, countdown_app: Served, judge: JudgeServer
):
    weights = "env = 0.5\nevent = 0.25\noutcome = 2.0"
    text = judged(
        countdown_app, judge, weights=weights, env="countdown", turns=3, training='loss = "gspo_token"\nasync_level = 0'
    )
    made = platform.submit(text)
    found = platform.succeeded(made)
    assert found["resolved"]["rewards"]["turn_discount"] == 1.0
    for event in platform.events(made, "rollout.judged"):
        blend = 0.5 * event["environment"] + 0.25 * event["events"] + 2.0 * event["outcome"]
        assert event["reward"] == pytest.approx(blend)
        assert event["calls"] == 4, "three turns and the episode"
    assert all(step["reward_event_mean"] > 0 for step in platform.steps(made))


@pytest.mark.long
def test_a_ranking_gives_every_group_the_places_from_first_to_last(
    platform: Platform, flat_app: Served, judge: JudgeServer
):
    order = ordered(lambda attempt: vowels_of("".join(reply_of(e) for e in attempt["events"] if "reply" in e)))
    judge.script = lambda call: order(call) if call.ranks else scored(vowels)(call)
    evaluation = '[evaluation]\nevery_n_iters = 3\nseeds = "1000-1003"'
    text = judged(flat_app, judge, weights=OUTCOME, options="ranking = true", env="paying", tail=evaluation)
    made = platform.submit(text)
    found = platform.succeeded(made)
    groups: dict[tuple[int, int], list[float]] = {}
    for event in platform.events(made, "rollout.judged"):
        if event["mode"] == "train":
            groups.setdefault((event["iteration"], event["index"] // 4), []).append(event["outcome"])
    assert len(groups) == 3 * 4
    assert all(sorted(places) == pytest.approx([0, 1 / 3, 2 / 3, 1]) for places in groups.values())
    # A rollout of an evaluation has no group to be ranked in: it is scored for itself.
    assert [e["instances"] for e in platform.events(made, "eval.completed")] == [4, 4]
    assert found["judge"]["calls"] == len(groups) + 8 == judge.calls[-1].number


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (prose, "max_attempts = 2", "no scores"),
        (failing(401, "wrong key"), "", "wrong key"),
        (scored(vowels), "max_calls = 20", "budget is spent: 20 of [judge].max_calls = 20"),
        (failing(500), "max_outage_s = 1.0", "no judge has answered"),
    ],
    ids=["unreadable", "refused", "budget", "away for good"],
)
def test_a_judge_that_gives_no_scores_ends_the_job_with_the_reason(
    platform: Platform, flat_app: Served, judge: JudgeServer, script: Script, options: str, said: str
):
    judge.script = script
    made = platform.submit(judged(flat_app, judge, weights=OUTCOME, options=options, env="paying"))
    code, job = platform.outcome(made)
    assert (code, job["state"], job["code"]) == (3, "failed", "judge_failed")
    [problem] = job["problems"]
    assert said in problem["what"]
    rewards = [e["reward"] for e in platform.events(made, "rollout.judged") if e["problem"]]
    assert all(reward is None for reward in rewards), "no score is not a score of 0"


def test_a_judge_that_nobody_could_ask_is_refused_before_the_job_starts(
    platform: Platform, flat_app: Served, countdown_app: Served, judge: JudgeServer
):
    weights = "env = 1.0\nevent = 1.0"
    for app, env, said in (
        (countdown_app, "countdown", "has no criteria"),
        (flat_app, "paying", "no criteria for the event"),
    ):
        lacking = judged(app, judge, weights=weights, env=env, criteria=False)
        code, job = platform.outcome(platform.submit(lacking))
        assert (code, job["code"]) == (3, "refused")
        assert said in job["problems"][0]["what"]
    text = judged(flat_app, judge, weights=OUTCOME, env="paying")
    for said, named in (("nobody", 'provider = "nobody"'), ("unstored", f'url = "{judge.url}"\nkey = "unstored"')):
        wrong = text.replace(f'url = "{judge.url}"', named)
        checked = platform.shell.run("config", "check", platform.write(wrong))
        assert (checked.returncode, said in checked.stderr) == (2, True), checked
        code, job = platform.outcome(platform.submit(wrong, "--no-preflight"))
        assert (code, job["code"]) == (3, "refused")
        assert said in job["problems"][0]["what"]
    assert judge.calls == []
