"""Typical mistakes in a job file, each with its whole output: what is wrong, where, what was expected, the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.backend import Backend
from tests.unit.cli.checking import RL, ROW, Run, sent

ALGORITHM = '[algorithm]\ntype = "online"\nmethod = "policy_gradient"\nvariety = "gspo"\n\n[services]'

#: By mistake: what of the job file is replaced, by what, and all that is printed.
IN_A_JOB_FILE = {
    "a misspelt model": (
        "tiny-qwen3",
        "tiny-qwen",
        "error: rl.toml:5 [model].base: unknown model 'tiny-qwen'\n"
        "  expected a Qwen3 id, a directory of the models folder, or a fine-tuned id\n"
        "  did you mean 'tiny-qwen3'?\n",
    ),
    "a model without weights": (
        "tiny-qwen3",
        "Qwen/Qwen3-0.6B",
        "error: rl.toml:5 [model].base: 'Qwen/Qwen3-0.6B' has no weights on this cluster\n"
        "  expected its files in the models folder, as Qwen/Qwen3-0.6B/config.json\n"
        "  fetch them: `synthctl models pull Qwen/Qwen3-0.6B`, or let a local model stand in: "
        "`synthctl models alias Qwen/Qwen3-0.6B tiny-qwen3`\n",
    ),
    "no model": (
        'base = "tiny-qwen3"\n',
        "",
        "error: rl.toml:4 [model]: neither base nor source is given\n"
        "  expected exactly one of [model].base (a base model) and [model].source (a fine-tuned one)\n"
        "  set one of them, or pass --model\n",
    ),
    "max_tokens beyond the context": (
        "max_tokens = 12",
        "max_tokens = 64",
        "error: rl.toml:11 [rollout.policy_config].max_tokens: max_tokens = 64, and the context of 'tiny-qwen3' has 64 "
        "tokens, for the prompt and its reply\n"
        "  expected less than 64\n"
        "  lower it, so that the prompt has room beside the reply\n",
    ),
    "fewer seeds than groups": (
        '"0-15"',
        "[1, 2, 3]",
        "error: rl.toml:19 [data].seeds: 3 seeds, and an iteration has 4 groups (batch_size), each on a seed of its "
        "own\n"
        "  expected at least 4 seeds\n"
        "  give more seeds, or lower [training] batch_size\n",
    ),
    "seeds that are no range": (
        '"0-15"',
        '"0..15"',
        "error: rl.toml:19 [data].seeds: seeds = '0..15' is not valid\n"
        '  expected a range such as "0-99", first and last seed, both included\n'
        '  seeds: a list, "0-99", or {start, count}; default: 0-99999 without the seeds of `[evaluation]`\n',
    ),
    "a misspelt key": (
        "group_size = 2",
        "grup_size = 2",
        "error: rl.toml:16 [training].grup_size: unknown key 'grup_size'\n  did you mean 'group_size'?\n",
    ),
    "a misspelt section": (
        "[training]",
        "[trainig]",
        "error: rl.toml:13 [trainig]: unknown section 'trainig'\n  did you mean 'training'?\n",
    ),
    "a key below another section": (
        "[model]",
        "[model]\nlearning_rate = 1e-5",
        "error: rl.toml:5 [model].learning_rate: unknown key 'learning_rate'\n"
        "  did you mean to put it into [training]?\n",
    ),
    "an unknown kind of job": (
        "[services]",
        ALGORITHM.replace("online", "rl"),
        "error: rl.toml:2 [algorithm].type: type = 'rl' is not valid\n"
        "  expected 'online' or 'offline'\n"
        '  type: "online" for RL, "offline" for SFT and DPO\n',
    ),
    "an unknown loss": (
        "[services]",
        ALGORITHM.replace("gspo", "ppo"),
        "error: rl.toml:4 [algorithm].variety: variety = 'ppo' is not valid\n"
        "  expected 'gspo', 'gspo_token', 'grpo', 'dppo', 'cispo', 'fft', 'lora' or 'qlora'\n"
        '  variety: the loss for RL: "gspo", "gspo_token", "grpo", "dppo" or "cispo"; "fft", "lora" or "qlora" '
        "for SFT and DPO\n",
    ),
    "a learning rate in quotes": (
        "group_size = 2",
        'group_size = 2\nlearning_rate = "1e-5"',
        "error: rl.toml:17 [training].learning_rate: learning_rate = '1e-5' is not valid\n"
        "  expected a number\n"
        "  write it without quotes: learning_rate = 1e-5\n",
    ),
    "a number in words": (
        "group_size = 2",
        'group_size = "two"',
        "error: rl.toml:16 [training].group_size: group_size = 'two' is not valid\n"
        "  expected a whole number\n"
        "  group_size: rollouts of each seed: a rollout is judged against its own group, so two at least; default 8\n",
    ),
    "a negative number of steps": (
        "iterations_per_epoch = 3",
        "iterations_per_epoch = -3",
        "error: rl.toml:14 [training].iterations_per_epoch: iterations_per_epoch = -3 is not valid\n"
        "  expected a number of at least 1\n"
        "  iterations_per_epoch: the job runs num_epochs x iterations_per_epoch iterations; default 10\n",
    ),
    "an environment that the app does not have": (
        '"guess"',
        '"gues"',
        "error: rl.toml:8 [rollout].env_name: 'gues' is not an environment of the task app at APP\n"
        "  expected 'guess'\n"
        '  write env_name = "guess"\n',
    ),
    "a list that is not closed": (
        '"0-15"',
        "[1, 2, 3",
        "error: rl.toml:19: the '[' at line 19, column 9 is not closed: `seeds = [1, 2, 3`\n"
        "  expected ']' at its end\n",
    ),
    "a section that is not closed": (
        "[training]",
        "[training",
        "error: rl.toml:13: the '[' at line 13, column 1 is not closed: `[training`\n  expected ']' at its end\n",
    ),
    "a text that is not closed": (
        '"tiny-qwen3"',
        '"tiny-qwen3',
        'error: rl.toml:5: the text at line 5, column 8 is not closed: `base = "tiny-qwen3`\n'
        "  expected '\"' at its end, on the same line\n",
    ),
    "a text without quotes": (
        '"tiny-qwen3"',
        "tiny-qwen3",
        'error: rl.toml:5: the text tiny-qwen3 is not in quotes: `base = tiny-qwen3`\n  expected base = "tiny-qwen3"\n',
    ),
    "a colon": (
        'base = "tiny-qwen3"',
        "base: tiny-qwen3",
        "error: rl.toml:5: a ':' after the key 'base': `base: tiny-qwen3`\n  expected base = \"tiny-qwen3\"\n",
    ),
    "a key that is there twice": (
        "batch_size = 4",
        "batch_size = 4\nbatch_size = 8",
        "error: rl.toml:16: `batch_size = 8` repeats line 15\n  expected each key once\n  remove one of the two\n",
    ),
    "a section that is there twice": (
        "[data]",
        "[model]\n\n[data]",
        "error: rl.toml:18: `[model]` repeats line 4\n"
        "  expected each section once\n"
        "  put the keys of both below one header\n",
    ),
    "no task app": (
        'task_url = "{app}"\n',
        "",
        "error: rl.toml:1 [services].task_url: there is no task app\n"
        '  expected an address such as "http://127.0.0.1:8001"\n'
        "  set it here, or pass --task-url or --app\n",
    ),
    "an address without http": (
        '"{app}"',
        '"localhost:8001"',
        "error: rl.toml:2 [services].task_url: 'localhost:8001' is not the address of a task app: it does not "
        "begin with http:// or https://\n"
        '  expected an address such as "http://127.0.0.1:8001"\n',
    ),
}
#: By mistake: the whole file, and all that is printed.
WHOLE_FILES = {
    "JSON": (
        '{\n  "model": {"base": "tiny-qwen3"}\n}\n',
        "error: rl.toml:1: this is JSON, not TOML: `{`\n"
        '  expected lines such as key = "value" below a [section]\n'
        "  `synthctl config init` writes a job file to start from; a dataset is named in it, or by --dataset\n",
    ),
    "YAML": (
        "# a job\nmodel:\n  base: tiny-qwen3\n",
        "error: rl.toml:2: this is YAML, not TOML: `model:`\n"
        '  expected [model] on a line of its own, and lines such as key = "value" below it\n'
        "  `synthctl config init` writes a job file to start from\n",
    ),
    "a dataset": (
        ROW,
        'error: rl.toml:1: this is JSON, not TOML: `{"messages": [{"role": "user", "content": "hi"}, {"role": "a`\n'
        '  expected lines such as key = "value" below a [section]\n'
        "  `synthctl config init` writes a job file to start from; a dataset is named in it, or by --dataset\n",
    ),
    "an empty file": (
        "",
        "error: rl.toml: cannot tell what kind of job this is\n"
        "  expected [algorithm], or [rollout] for RL, [hyperparameters] for SFT, [eval] for an evaluation\n"
        '  start from `synthctl config init`, or add [algorithm] type = "online" (RL) or "offline" (SFT)\n',
    ),
}


@pytest.mark.parametrize("mistake", IN_A_JOB_FILE)
def test_a_mistake_in_a_job_file_is_refused_before_anything_is_sent(mistake: str, run: Run, backend: Backend):
    before, after, told = IN_A_JOB_FILE[mistake]
    app = backend.url.removesuffix("/api")
    Path("rl.toml").write_text(RL.replace(before, after).format(app=app))
    code, out, err = run("submit", "rl.toml", "--detach")
    well = "task app: APP answers /health and /task_info; no ENVIRONMENT_API_KEY is set\n"
    assert (code, out, err.removeprefix(well)) == (2, "", told)
    assert sent(backend) == []


@pytest.mark.parametrize("mistake", WHOLE_FILES)
def test_a_file_that_is_no_job_file_is_refused(mistake: str, run: Run, backend: Backend):
    text, told = WHOLE_FILES[mistake]
    Path("rl.toml").write_text(text)
    assert run("submit", "rl.toml", "--detach") == (2, "", told)
    assert sent(backend) == []
