"""Typical mistakes on the command line, in the environment and with a task app, each with its whole output."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from synth.keys import new_api_key
from tests.unit.cli.backend import Answer, Backend
from tests.unit.cli.checking import JOB, RL, Cluster, Run, sent

#: By mistake: the command, the exit code, and all that is printed.
COMMANDS = {
    "a job file that is not there": (
        "submit rll.toml",
        2,
        "error: rll.toml: there is no such file\n"
        "  expected a TOML job file\n"
        "  `synthctl config init` writes one to start from\n",
    ),
    "no job file": (
        "submit",
        2,
        "error: synthctl submit: missing argument 'FILE'\n"
        "  expected synthctl submit [OPTIONS] FILE\n"
        "  see synthctl submit --help\n",
    ),
    "an unknown command": (
        "sumbit rl.toml",
        2,
        "error: synthctl: no such command 'sumbit'\n"
        "  expected synthctl [OPTIONS] COMMAND [ARGS]...\n"
        "  did you mean 'submit'?\n",
    ),
    "an unknown command of a group": (
        "jobs list",
        2,
        "error: synthctl jobs: no such command 'list'\n"
        "  expected synthctl jobs [OPTIONS] COMMAND [ARGS]...\n"
        "  did you mean 'ls'?\n",
    ),
    "an unknown option": (
        "submit rl.toml --detatch",
        2,
        "error: synthctl submit: no such option: --detatch\n"
        "  expected synthctl submit [OPTIONS] FILE\n"
        "  did you mean '--detach'?\n",
    ),
    "an unknown kind to begin with": (
        "config init grpo",
        2,
        "error: kind: 'grpo' is not one of 'rl', 'sft', 'dpo', 'eval'\n"
        "  expected synthctl config init [OPTIONS] [KIND]\n"
        "  see synthctl config init --help\n",
    ),
    "--set of an unknown key": (
        "submit rl.toml -d --set training.learning_rat=1e-5",
        2,
        "error: --set training.learning_rat: unknown key 'learning_rat'\n  did you mean 'learning_rate'?\n",
    ),
    "--set without a section": (
        "submit rl.toml -d --set learning_rate=1e-5",
        2,
        "error: --set learning_rate: unknown key 'learning_rate'\n  did you mean to put it into [training]?\n",
    ),
    "--set without a value": (
        "submit rl.toml -d --set training.learning_rate",
        2,
        "error: --set 'training.learning_rate': there is no =\n"
        "  expected key=value, such as training.learning_rate=1e-5\n",
    ),
    "--set of a wrong type": (
        "submit rl.toml -d --set training.batch_size=many",
        2,
        "error: --set training.batch_size: batch_size = 'many' is not valid\n"
        "  expected a whole number\n"
        "  batch_size: groups (seeds) an iteration; default 8\n",
    ),
    "--app of no file": (
        "submit rl.toml --app gues.py",
        2,
        "error: gues.py: there is no such file\n"
        "  expected a task app: its id, a file (app.py), a module (pkg.app), or one of their names (app.py:math)\n",
    ),
    "a backend without http": (
        "--backend localhost:8000 jobs ls",
        2,
        "error: --backend (flag): 'localhost:8000' is not the address of a backend: it does not begin with "
        "http:// or https://\n"
        "  expected a URL such as http://127.0.0.1:8000/api\n",
    ),
    "an unknown job": (
        "jobs get job_00000000000000zz",
        6,
        "error: there is no job 'job_00000000000000zz'\n  `synthctl jobs ls` shows yours\n",
    ),
    "an unknown metric": (
        f"jobs metrics {JOB} --name reward_men",
        2,
        "error: --name: job_0000000000000001 has no metric 'reward_men'\n"
        "  expected one of reward_mean, eval.reward_mean, loss\n"
        "  did you mean 'reward_mean'?\n",
    ),
    "a deletion without a confirmation": (
        "models rm tiny-qwen3",
        2,
        "error: delete tiny-qwen3? there is no terminal on which to confirm it\n  pass --yes\n",
    ),
}


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_on_the_command_line_is_refused(mistake: str, run: Run, backend: Backend):
    line, code, told = COMMANDS[mistake]
    assert run(*shlex.split(line)) == (code, "", told)
    assert sent(backend) == []


#: By mistake: what the app answers at a path, and what is printed of it.
NO_APPS = {
    "nobody listens": ("", None, "http://127.0.0.1:9/health cannot be reached ({reason})"),
    "another server": ("/health", Answer(404, {}), "APP/health answers HTTP 404: '{{}}'"),
    "no task": ("/task_info", Answer(body={"a": 1}), "APP/task_info answers without a task: '{{\"a\": 1}}'"),
    "a web page": ("/health", Answer(body=b"<html>"), "APP/health does not answer a JSON object: '<html>'"),
}


@pytest.mark.parametrize("mistake", NO_APPS)
def test_a_task_app_that_neither_this_machine_nor_the_cluster_can_use_is_refused(
    mistake: str, run: Run, backend: Backend, cluster: Cluster
):
    path, answer, what = NO_APPS[mistake]
    fix = "is it running" if answer is None else "is it a task app"
    file = Path("rl.toml")
    if answer is None:
        file.write_text(RL.format(app="http://127.0.0.1:9"))
    else:
        cluster.answers[path] = answer
    code, out, err = run("submit", "rl.toml", "--detach")
    assert (code, out) == (2, "")
    assert err == (
        f"error: rl.toml:2 [services].task_url: {what.format(reason='nothing listens at this address')}\n"
        "  expected a task app that the cluster can use; the cluster reports: it does not answer\n"
        f"  {fix}, and is this its address? --no-preflight submits it all the same\n"
    )
    assert sent(backend) == []


def test_without_a_key_or_a_cluster_the_way_to_one_is_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BACKEND_BASE_URL", "http://127.0.0.1:9")
    code, out, err = run("submit", "sft.toml", "--detach")
    assert (code, out) == (7, "")
    assert err == (
        "error: http://127.0.0.1:9/api (environment): cannot reach the backend (nothing listens at this address)\n"
        "  is the cluster running? `synthctl status` shows it, `synthctl up` starts it\n"
    )
    monkeypatch.delenv("SYNTH_API_KEY")
    code, out, err = run("submit", "sft.toml", "--detach")
    assert (code, out) == (4, "")
    assert err == (
        "error: no API key\n"
        "  expected SYNTH_API_KEY in the environment, or in a .env here or in a folder above\n"
        "  `synthctl up` starts a cluster here and writes one to .env; for another cluster, ask who runs it, and keep "
        "it with `synthctl setup`\n"
    )


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            "synth_live_nonsense",
            "error: SYNTH_API_KEY (environment): this API key is mistyped: its checksum is wrong\n"
            "  copy SYNTH_API_KEY again, whole\n",
        ),
        (
            new_api_key(),
            "error: SYNTH_API_KEY (environment): this API key is not known here\n"
            "  check SYNTH_API_KEY (`synthctl up` writes it to .env)\n",
        ),
    ],
    ids=["mistyped", "unknown"],
)
def test_a_wrong_key_is_named_with_its_place(key: str, told: str, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SYNTH_API_KEY", key)
    assert run("submit", "rl.toml", "--detach") == (4, "", told)
