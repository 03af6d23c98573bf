"""The `openai` SDK through a whole life: ROOT KEY DATASET MODEL TASK_URL. Prints what it saw as JSON."""

import json
import sys
import time

from openai import BadRequestError, NotFoundError, OpenAI

root, key, dataset, model, task_url = sys.argv[1:]
client = OpenAI(base_url=f"{root}/v1", api_key=key)


def ended(job_id):
    deadline = time.monotonic() + 250
    while time.monotonic() < deadline:
        job = client.fine_tuning.jobs.retrieve(job_id)
        if job.status in ("succeeded", "failed", "cancelled"):
            return job
        time.sleep(0.5)
    raise SystemExit(f"{job_id} has not ended: {job.status}")


with open(dataset, "rb") as rows:
    file = client.files.create(file=rows, purpose="fine-tune")
file = client.files.wait_for_processing(file.id, poll_interval=0.2)
supervised = client.fine_tuning.jobs.create(
    model=model,
    training_file=file.id,
    seed=7,
    suffix="sums",
    metadata={"who": "openai"},
    method={
        "type": "supervised",
        "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 32, "learning_rate_multiplier": 500}},
    },
)
sft_job = ended(supervised.id)
events = list(client.fine_tuning.jobs.list_events(supervised.id, limit=50))
checkpoints = list(client.fine_tuning.jobs.checkpoints.list(supervised.id))
said = client.chat.completions.create(
    model=sft_job.fine_tuned_model or "", messages=[{"role": "user", "content": "12+34="}], max_tokens=32, temperature=0
)
pieces = client.chat.completions.create(
    model=sft_job.fine_tuned_model or "",
    messages=[{"role": "user", "content": "12+34="}],
    max_tokens=32,
    temperature=0,
    stream=True,
)
streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
reinforced = client.fine_tuning.jobs.create(
    model=sft_job.fine_tuned_model or "",
    training_file="seeds:0-31",
    method={
        "type": "reinforcement",
        "reinforcement": {
            "grader": {"type": "task_app", "url": task_url, "env_name": "letters", "policy_config": {"max_tokens": 32}},
            "hyperparameters": {"n_epochs": 1, "batch_size": 8, "learning_rate_multiplier": 200},
        },
    },
)
another = client.fine_tuning.jobs.create(model=model, training_file=file.id)
cancelled = client.fine_tuning.jobs.cancel(another.id)
learned = ended(reinforced.id)
refused = {}
for name, call in {
    "unknown model": lambda: client.fine_tuning.jobs.create(model="gpt-9", training_file=file.id),
    "unknown file": lambda: client.fine_tuning.jobs.create(model=model, training_file="file_0"),
    "unknown job": lambda: client.fine_tuning.jobs.retrieve("job_0"),
}.items():
    try:
        job = call()
        refused[name] = getattr(ended(job.id).error, "message", None)
    except (BadRequestError, NotFoundError) as error:
        refused[name] = f"{type(error).__name__}: {error}"
print(
    json.dumps(
        {
            "file": file.to_dict(mode="json"),
            "sft_job": sft_job.to_dict(mode="json"),
            "events": [event.to_dict(mode="json") for event in events],
            "checkpoints": [checkpoint.to_dict(mode="json") for checkpoint in checkpoints],
            "said": said.choices[0].message.content,
            "streamed": streamed,
            "learned": learned.to_dict(mode="json"),
            "learned_events": [
                event.to_dict(mode="json") for event in client.fine_tuning.jobs.list_events(reinforced.id, limit=100)
            ],
            "cancelled": [cancelled.status, ended(another.id).status],
            "models": [entry.id for entry in client.models.list()],
            "refused": refused,
        }
    )
)
