"""How large a job may be: what no collector could hold is rejected, with the setting that says so."""

from __future__ import annotations

import pytest

from synth.errors import Problem
from synth.events import JobRejected, JobValidated
from tests.service.jobs import RL, make_model_dir
from tests.service.process import running
from tests.service.validator.test_validator import outcome

EVAL = """\
[eval]
model = "tiny-qwen3"
task_app_url = "http://127.0.0.1:8001"
seeds = "0-999"
"""


@pytest.fixture(scope="module")
def validator(settings_of, bus_admin, cluster_dir, tmp_path_factory):
    make_model_dir(cluster_dir)
    log = tmp_path_factory.mktemp("validator") / "log"
    with running(
        "validator", settings_of("validator"), log, SYNTH_MAX_ROLLOUT_RETRIES="5", SYNTH_MAX_ROLLOUT_TIMEOUT_S="600"
    ) as process:
        yield process


async def refused(bus_as, config: str) -> list[Problem]:
    found = await outcome(bus_as, config, name="job.toml")
    assert isinstance(found, JobRejected), found
    return found.problems


async def test_a_million_rollouts_at_a_time_are_refused_with_the_setting(validator, bus_as):
    [problem] = await refused(bus_as, _with_rollouts(1_000_000))
    assert "1,000,000" in problem.what
    assert problem.expected == "at most 4,096 on this cluster"
    assert "SYNTH_MAX_CONCURRENT_ROLLOUTS" in problem.fix
    assert problem.where.endswith("[rollout].max_concurrent_rollouts")
    assert isinstance(await outcome(bus_as, _with_rollouts(4096)), JobValidated)


def _with_rollouts(count: int) -> str:
    return RL.replace("[rollout]\n", f"[rollout]\nmax_concurrent_rollouts = {count}\n")


async def test_an_iteration_of_too_many_rollouts_is_refused(validator, bus_as):
    [problem] = await refused(bus_as, RL.replace("batch_size = 2", "batch_size = 100000").replace("0-9", "0-999999"))
    assert "batch_size 100,000 x group_size" in problem.what
    assert "SYNTH_MAX_ROLLOUTS_AN_ITERATION" in problem.fix
    assert problem.where.endswith("[training].batch_size")


async def test_an_evaluation_of_too_many_rollouts_is_refused(validator, bus_as):
    [problem] = await refused(bus_as, EVAL + "rollouts_per_seed = 1000\n")
    assert "1,000 seeds x 1,000 rollouts" in problem.what
    assert "SYNTH_MAX_ROLLOUTS_AN_ITERATION" in problem.fix
    assert problem.where.endswith("[eval].rollouts_per_seed")


async def test_the_operator_says_how_many_retries_there_are(validator, bus_as):
    [problem] = await refused(bus_as, EVAL + "max_retries = 6\n")
    assert problem.expected == "at most 5 on this cluster"
    assert isinstance(await outcome(bus_as, EVAL + "max_retries = 5\n"), JobValidated)


@pytest.mark.parametrize(("config", "table"), [(EVAL, "eval"), (RL, "rollout")])
async def test_the_operator_bounds_the_time_of_a_rollout(validator, bus_as, config, table):
    def with_timeout(seconds: float) -> str:
        text = config.replace(f"[{table}]\n", f"[{table}]\nrollout_timeout_s = {seconds}\n")
        assert text != config
        return text

    [problem] = await refused(bus_as, with_timeout(600.5))
    assert (problem.what, problem.expected) == ("rollout_timeout_s is 600.5", "at most 600 on this cluster")
    assert problem.fix == "lower it, or have the operator raise SYNTH_MAX_ROLLOUT_TIMEOUT_S"
    assert problem.where.endswith(f"[{table}].rollout_timeout_s")
    assert isinstance(await outcome(bus_as, with_timeout(600)), JobValidated)
