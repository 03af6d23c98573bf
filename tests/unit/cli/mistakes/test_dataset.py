"""Typical mistakes in a dataset, each with its whole output: what is wrong, where, what was expected, the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.backend import Backend
from tests.unit.cli.checking import ROW, Run, sent

#: By mistake: what is in the dataset (None: no file), and all that is printed.
DATASETS = {
    "a dataset that is not there": (
        None,
        "error: sft.toml:3 [job].data 'rows.jsonl': there is no such file\n"
        "  expected a JSONL or Parquet file, a folder, or a pipe\n"
        "  a path is relative to the folder in which the command runs\n",
    ),
    "an empty dataset": (
        "",
        "error: sft.toml:3 [job].data 'rows.jsonl': the file is empty\n  expected lines such as {\"messages\": […]}\n",
    ),
    "a line that is no JSON": (
        ROW + "hello\n",
        "error: rows.jsonl:2: not JSON: invalid character (byte 0)\n"
        '  expected an object on each line, such as {"messages": […]}\n',
    ),
    "a line that ends too early": (
        ROW + ROW[:40] + "\n",
        "error: rows.jsonl:2: not JSON: the line ends too early\n  expected a whole conversation on each line\n",
    ),
    "a JSON list": (
        f"[{ROW.strip()}]\n",
        "error: rows.jsonl:1: a JSON list\n"
        "  expected an object on each line\n"
        "  make them of a list: jq -c '.[]' FILE > rows.jsonl\n",
    ),
    "a row without messages": (
        ROW + '{"msgs": [{"role": "user", "content": "hi"}]}\n',
        "error: rows.jsonl:2: a row of no known shape, with 'msgs'\n"
        "  expected messages, conversations (ShareGPT), instruction and output (Alpaca), prompt and completion, "
        "query and response, or prompt, chosen and rejected\n",
    ),
    "a text without turns": (
        ROW + '{"text": "hi"}\n',
        'error: rows.jsonl:2: $.text: text without turns\n  expected a conversation, such as {"messages": […]}\n',
    ),
    "prompts without answers": (
        '{"messages": [{"role": "user", "content": "hi"}]}\n',
        "error: rows.jsonl: 'rows.jsonl' holds prompts without answers, and this job learns from answers\n"
        "  expected a file of conversations, each with an assistant message\n"
        "  add the answers, or train on the prompts by reinforcement, with a [grader]\n",
    ),
    "a role that nobody has": (
        ROW + '{"messages": [{"role": "user", "content": "hi"}, {"role": "assitant", "content": "ho"}]}\n',
        "error: rows.jsonl:2: $.messages[1].role: 'assitant' is no role\n"
        "  expected one of system, developer, user, assistant, tool, human, gpt, chatgpt, bing, model, "
        "function_call, tool_call, observation, function_response, tool_response, function\n"
        "  did you mean 'assistant'?\n",
    ),
}


@pytest.mark.parametrize("mistake", DATASETS)
def test_a_mistake_in_the_dataset_is_refused_before_it_is_uploaded(mistake: str, run: Run, backend: Backend):
    rows, told = DATASETS[mistake]
    if rows is None:
        Path("rows.jsonl").unlink()
    else:
        Path("rows.jsonl").write_text(rows)
    assert run("submit", "sft.toml", "--detach") == (2, "", told)
    assert sent(backend) == []
