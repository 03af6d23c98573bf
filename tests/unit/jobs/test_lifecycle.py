"""The lifecycle of a job: every state with every fact."""

from __future__ import annotations

import itertools

import pytest

from synth.events.catalogue import CATALOGUE, Write
from synth.jobs.lifecycle import TERMINAL, IllegalTransition, JobStatus, State, apply

FACTS = sorted(name for name, spec in CATALOGUE.items() if spec.write is Write.CAS)
STATES = [None, *State]

#: Written out by hand, apart from the table that it is compared with: state → fact → state.
ALLOWED: dict[State | None, dict[str, State]] = {
    None: {"job.created": State.CREATED},
    State.CREATED: {
        "job.validated": State.VALIDATED,
        "job.rejected": State.REJECTED,
        "job.withdrawn": State.CANCELLED,
    },
    State.VALIDATED: {
        "job.verified": State.VERIFIED,
        "job.refused": State.REJECTED,
        "job.withdrawn": State.CANCELLED,
    },
    State.VERIFIED: {
        "job.started": State.STARTED,
        "job.withdrawn": State.CANCELLED,
        "job.parked": State.PAUSED,
    },
    State.STARTED: {
        "job.started": State.STARTED,
        "job.cancel_requested": State.CANCELLING,
        "job.pause_requested": State.PAUSING,
        "job.paused": State.PAUSED,
        "job.succeeded": State.SUCCEEDED,
        "job.failed": State.FAILED,
    },
    State.CANCELLING: {
        "job.started": State.CANCELLING,
        "job.cancel_requested": State.CANCELLING,
        "job.cancelled": State.CANCELLED,
        "job.failed": State.FAILED,
    },
    State.PAUSING: {
        "job.started": State.PAUSING,
        "job.paused": State.PAUSED,
        "job.cancel_requested": State.CANCELLING,
        "job.succeeded": State.SUCCEEDED,
        "job.failed": State.FAILED,
    },
    State.PAUSED: {"job.resumed": State.VERIFIED, "job.withdrawn": State.CANCELLED},
}


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(STATES, FACTS)))
def test_every_fact_in_every_state_is_either_a_step_or_refused(state, fact):
    after = ALLOWED.get(state, {}).get(fact)
    if after is None:
        with pytest.raises(IllegalTransition, match=fact.replace(".", r"\.")):
            apply(state, fact)
    else:
        assert apply(state, fact) is after


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(sorted(TERMINAL), FACTS)))
def test_nothing_follows_an_end(state, fact):
    with pytest.raises(IllegalTransition):
        apply(state, fact)


def test_every_fact_of_the_catalogue_is_a_step_somewhere():
    assert {fact for steps in ALLOWED.values() for fact in steps} == set(FACTS)


def test_every_state_can_be_reached_and_every_other_one_can_end():
    reached, ends = {State.CREATED}, set(TERMINAL)
    for _ in State:
        reached |= {after for state, steps in ALLOWED.items() if state in reached for after in steps.values()}
        ends |= {state for state, steps in ALLOWED.items() if state and ends & set(steps.values())}
    assert reached == set(State)
    assert ends == set(State)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ([], None),
        (["created", "validated", "verified", "started", "succeeded"], State.SUCCEEDED),
        (["created", "validated", "verified", "started", "started", "failed"], State.FAILED),
        (["created", "validated", "verified", "started", "cancel_requested", "started", "cancelled"], State.CANCELLED),
        (["created", "validated", "refused"], State.REJECTED),
    ],
)
def test_a_job_is_the_fold_of_its_facts(facts, state):
    assert after(*facts).state == state


def after(*facts: str) -> JobStatus:
    standing = JobStatus()
    for fact in facts:
        standing.add(f"job.{fact}")
    return standing


@pytest.mark.parametrize(
    ("facts", "over"),
    [
        (["started"], [False, False]),
        (["started", "pause_requested"], [False, False]),
        (["started", "pause_requested", "paused"], [True, False]),
        (["started", "pause_requested", "paused", "resumed"], [True, False]),
        (["started", "pause_requested", "paused", "resumed", "started", "pause_requested", "paused"], [True, True]),
        (["started", "succeeded"], [True, True]),
    ],
)
def test_a_task_is_over_when_its_job_is_paused_in_its_term_resumed_after_it_or_ended(facts, over):
    standing = after("created", "validated", "verified", *facts)
    assert [standing.is_over(term) for term in (0, 1)] == over


def test_a_fact_that_only_a_newer_version_knows_leaves_a_job_as_it_is():
    assert after("created", "annotated", "validated").state is State.VALIDATED
    with pytest.raises(IllegalTransition):
        after("created", "annotated", "started")
