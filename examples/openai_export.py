"""A small OpenAI account as a folder of exported files: one fine-tuning job, its training file and its validation file.

    python -m examples.openai_export --out exported

The job teaches a model to route support tickets: the reply is a JSON object with the queue and the urgency. The objects
are as OpenAI's API returns them; docs/from-openai.md imports them.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

_QUEUES = {
    "billing": ("the invoice", "my last payment", "the refund", "the price on my bill"),
    "access": ("my password", "the login page", "my account", "the verification code"),
    "shipping": ("the parcel", "my delivery", "the tracking number", "the courier"),
    "product": ("the battery", "the screen", "the charger", "the left button"),
}
_COMPLAINTS = ("is wrong", "does not work", "is missing", "has a problem", "needs your attention")
_URGENT = ("I need help today!", "This is urgent!", "Please answer at once!")
_CALM = ("There is no hurry.", "Thank you in advance.", "Whenever you have time.")
_HELD_OUT = 64


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return conversations, each with another ticket."""
    draw = random.Random(seed)
    tickets = [
        (queue, f"Hello, {thing} {complaint}. {end}", end in _URGENT)
        for queue, things in _QUEUES.items()
        for thing in things
        for complaint in _COMPLAINTS
        for end in (*_URGENT, *_CALM)
    ]
    draw.shuffle(tickets)
    return [
        {
            "messages": [
                {"role": "user", "content": text},
                {"role": "assistant", "content": json.dumps({"queue": queue, "urgent": is_urgent})},
            ]
        }
        for queue, text, is_urgent in tickets[:count]
    ]


def write_export(folder: Path) -> None:
    """Write the objects and the contents of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    all_rows = rows(480, seed=0)
    files = {"file-tickets": all_rows[_HELD_OUT:], "file-held-out": all_rows[:_HELD_OUT]}
    for id, content in files.items():
        (folder / f"{id}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in content))
    hyperparameters = {"n_epochs": 12, "batch_size": 16, "learning_rate_multiplier": 300.0}
    job = {
        "object": "fine_tuning.job",
        "id": "ftjob-tickets",
        "model": "gpt-4.1-nano-2025-04-14",
        "created_at": 1767225600,
        "finished_at": 1767226500,
        "fine_tuned_model": "ft:gpt-4.1-nano-2025-04-14:example::tickets",
        "organization_id": "org-example",
        "result_files": [],
        "status": "succeeded",
        "training_file": "file-tickets",
        "validation_file": "file-held-out",
        "hyperparameters": hyperparameters,
        "trained_tokens": 100_000,
        "seed": 7,
        "user_provided_suffix": "tickets",
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
    }
    (folder / "jobs.json").write_text(json.dumps({"object": "list", "data": [job]}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("exported"))
    write_export(parser.parse_args().out)


if __name__ == "__main__":
    main()
