"""Our states and events in the words of the clients."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from rich.text import Text

from synth.bus.recorded import Recorded, UnknownEvent
from synth.errors import Problem
from synth.events import (
    EvalCompleted,
    JobCreated,
    JobFailed,
    JobPaused,
    JobRejected,
    JobStarted,
    JobSucceeded,
    JobVerified,
    ModelRef,
    RolloutRequested,
    TrainStep,
    TrainWarned,
)
from synth.events.catalogue import CATALOGUE, Event
from synth.gateway.presentation.vocabulary import EVENT_DESCRIPTIONS, STATUS, describe_event, metric_name, our_metric
from synth.jobs.lifecycle import State

#: What one client or another takes for the end of a job.
_ENDS = {
    *(f"{job}.{word}" for job in ("sft", "sft.workflow", "rl.job", "workflow") for word in ("completed", "failed")),
    *("rl.train.completed", "rl.train.failed", "sft.job.completed", "sft.job.failed"),
    *("training.completed", "training.failed"),
}
_TERMINAL = {"job.succeeded", "job.failed", "job.rejected", "job.refused"}


def recorded(type_: str, event: Event) -> Recorded:
    return Recorded(seq=3, time=datetime(2026, 1, 1, tzinfo=UTC), type=type_, org="o", key="job_1", id="", event=event)


def test_every_event_of_a_job_is_in_the_table():
    assert set(EVENT_DESCRIPTIONS) == {type_ for type_ in CATALOGUE if not type_.startswith("file.")}


def test_every_state_has_a_word_in_both_apis():
    assert set(STATUS) == set(State)
    assert {s.synth for s in STATUS.values()} == {"queued", "running", "succeeded", "failed", "cancelled"}
    assert STATUS[State.PAUSED] == ("running", "paused")


def test_only_the_end_of_a_job_bears_the_name_of_an_end():
    for type_, row in EVENT_DESCRIPTIONS.items():
        if row is None:
            continue
        names = {row.sft, row.rl}
        if type_ in _TERMINAL:
            assert row.sft in ("workflow.completed", "workflow.failed")
            assert row.rl in ("rl.job.completed", "rl.job.failed")
        else:
            assert not names & _ENDS, type_
            assert not any(name.endswith(".failed") for name in names), "its printer would look for an error"
        assert row.sft.startswith(("sft.", "workflow."))
        assert row.rl.startswith("rl.")


def test_the_result_is_in_the_last_event():
    event = JobSucceeded(steps=3, model="rl:b:job_1", values={"loss": 0.25})
    for kind, type_ in (("sft", "workflow.completed"), ("rl", "rl.job.completed"), (None, "rl.job.completed")):
        words = describe_event(recorded("job.succeeded", event), kind)
        assert words
        assert (words.type, words.level, words.data["fine_tuned_model"]) == (type_, "info", "rl:b:job_1")


@pytest.mark.parametrize(
    ("type_", "event"),
    [
        ("job.rejected", JobRejected(problems=[Problem(what="bad", fix="mend it", where="rl.json [a]")])),
        ("job.failed", JobFailed(code="x", problem=Problem(what="bad", fix="mend it", where="rl.json [a]"))),
    ],
)
def test_a_failure_says_what_is_wrong_where_printers_look(type_, event):
    words = describe_event(recorded(type_, event), "rl")
    assert words
    assert (words.type, words.level) == ("rl.job.failed", "error")
    assert words.data["detail"] == "rl.json [a]: bad; mend it"


def test_a_step_s_figures_are_in_its_sentence():
    values = {"loss": 0.123456, "reward_mean": 0.75, "sequences": 64.0}
    words = describe_event(recorded("train.step", TrainStep(step=2, of=9, attempt=1, values=values)), "rl")
    assert words
    assert words.message == "step 2 of 9: loss 0.1235, reward 0.75"
    assert words.data["values"] == values


def test_a_collapse_is_a_warning_with_its_numbers_and_a_pause_for_it_says_why():
    problem = Problem(what="the entropy is 0.01", expected="at least 0.08", fix="lower the learning rate")
    event = TrainWarned(step=9, rule="entropy_low", value=0.01, threshold=0.08, over=5, action="pause", problem=problem)
    words = describe_event(recorded("train.warned", event), "rl")
    assert words
    assert (words.type, words.level) == ("rl.train.warned", "warning")
    assert (
        words.message == words.data["detail"] == "the entropy is 0.01; expected at least 0.08; lower the learning rate"
    )
    assert (words.data["value"], words.data["threshold"], words.data["over"]) == (0.01, 0.08, 5)
    paused = describe_event(recorded("job.paused", JobPaused(step=9, reason="the entropy is 0.01")), "rl")
    assert paused
    assert paused.message == "paused after step 9: the entropy is 0.01"


def test_a_step_with_a_validation_is_told_apart():
    words = describe_event(
        recorded("train.step", TrainStep(step=2, of=9, attempt=1, values={"validation_loss": 1.0})), "sft"
    )
    assert words
    assert words.type == "sft.validation.summary"


def test_no_rl_event_holds_a_word_that_hides_it():
    source = ModelRef(id="multimodal-7b")
    event = JobVerified(source=source, task_url="https://x.modal.run", task_name="Hatchet Modal")
    words = describe_event(recorded("job.verified", event), "rl")
    assert words
    text = msgspec.json.encode(words).decode().lower()
    assert "modal" not in text
    assert "hatchet" not in text
    assert words.message.replace("\u200b", "").count("multimodal-7b") == 1
    in_sft = describe_event(recorded("job.verified", event), "sft")
    assert in_sft
    assert in_sft.data["task_url"] == "https://x.modal.run"


def test_a_stand_in_is_named_and_a_configuration_is_not_repeated():
    words = describe_event(
        recorded("job.verified", JobVerified(source=ModelRef(id="Qwen/Qwen3-4B", stand_in="tiny"))), "sft"
    )
    assert words
    assert "tiny" in words.message
    created = JobCreated(config="very long", config_name="a.toml", body_sha256="d", model="m", created_by="key")
    words = describe_event(recorded("job.created", created), "sft")
    assert words
    assert words.message == "job created from a.toml for m"
    assert not {"config", "body_sha256", "created_by"} & set(words.data)


def test_what_a_newer_version_says_is_still_a_sign_of_life():
    words = describe_event(recorded("train.step", UnknownEvent(body={"strange": 1})), "rl")
    assert words
    assert (words.type, words.message, words.data) == ("rl.train.step", "train.step", {})
    assert describe_event(recorded("newer.thing", UnknownEvent(body=1)), "rl") is None


def test_of_the_rollouts_that_the_trainer_asks_for_only_evaluations_are_told():
    asked = {
        mode: RolloutRequested(iteration=1, mode=mode, seeds=[1, 2], group_size=1, oldest_version=0)
        for mode in ("train", "eval")
    }
    assert describe_event(recorded("rollout.requested", asked["train"]), "rl") is None
    words = describe_event(recorded("rollout.requested", asked["eval"]), "rl")
    assert words
    assert (words.type, words.message) == ("rl.eval.started", "evaluation over 2 seeds")


def test_an_evaluation_trains_nothing():
    words = describe_event(recorded("job.started", JobStarted(attempt=1, worker="w")), "eval")
    assert words
    assert (words.type, words.message) == ("rl.eval.started", "evaluation started")
    done = describe_event(recorded("job.succeeded", JobSucceeded(steps=0, values={"reward_mean": 0.5})), "eval")
    assert done
    assert (done.type, done.message) == ("rl.job.completed", "done: reward 0.5")


def test_an_evaluation_s_reward_is_in_its_sentence():
    event = EvalCompleted(model="m", instances=4, values={"reward_mean": 0.5})
    words = describe_event(recorded("eval.completed", event), "rl")
    assert words
    assert words.message == "m over 4 instances: reward 0.5"


@pytest.mark.parametrize("name", ["loss", "reward_mean", "ppo_kl", "validation_loss", "eval.reward_mean", "entropy"])
def test_a_metric_s_name_goes_there_and_back(name):
    assert our_metric(metric_name(name)) == name


def test_metrics_have_the_names_that_clients_know():
    names = ["loss", "reward_mean", "validation_loss", "eval.reward_mean", "grad_norm", "ppo_kl"]
    assert [metric_name(n) for n in names] == [
        *("train.loss", "train.reward_mean", "val.loss", "eval.reward_mean", "train.grad_norm", "train.kl")
    ]


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_table_in_a_message_is_not_taken_for_markup(kind: str):
    """The client's live table prints messages with rich, which reads `[compute]` as a style."""
    problem = Problem(what="[compute].gpu_count is 0", where="j.toml:3 [compute].gpu_count")
    described = describe_event(recorded("job.rejected", JobRejected(problems=[problem])), kind)
    assert described is not None
    shown = Text.from_markup(described.message).plain.replace("\u200b", "")
    assert shown.count("[compute].gpu_count") == 2
