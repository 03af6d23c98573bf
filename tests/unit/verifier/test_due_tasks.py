"""Which tasks a job that is not over has queued."""

from __future__ import annotations

import pytest

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.models import Registry
from synth.verifier.tasks.due import due_tasks
from tests.service.jobs import RL, SFT, make_model_dir

EVAL = '[eval]\nmodel = "tiny-qwen3"\nseeds = "0-3"\ntask_app_url = "http://127.0.0.1:9/"\n'


@pytest.mark.parametrize(
    ("config", "facts", "kinds"),
    [
        (SFT, set(), ["train"]),
        (RL, set(), ["collect", "serve"]),
        (RL, {"policy.loaded"}, ["collect", "serve", "train"]),
        (RL, {"policy.loaded", "policy.refused"}, ["collect", "train"]),
        (RL, {"policy.loaded", "rollout.blocked"}, ["serve", "train"]),
        (EVAL, {"policy.loaded"}, ["serve", "collect"]),
        (EVAL, {"policy.refused"}, ["collect"]),
    ],
)
def test_the_facts_of_the_term_decide_which_tasks_are_due(tmp_path, config, facts, kinds):
    registry = Registry(make_model_dir(tmp_path))
    job = resolve_job(read_toml(config, name="job.toml"), overrides=Overrides(), registry=registry).job
    tasks = due_tasks(job, org="org_1", job_id="job_1", pool="p", replicas=1, term=2, facts=facts)
    assert [task.kind for task in tasks] == kinds
    assert {(task.term, task.pool) for task in tasks} == {(2, "p")}
