"""OpenAI's documented fine-tuning examples with other content: ROOT KEY JUDGE_MODEL. Prints what it saw as JSON."""

import base64
import io
import json
import struct
import sys
import time
import zlib

from openai import OpenAI

root, key, judge = sys.argv[1:]
client = OpenAI(base_url=f"{root}/v1", api_key=key)
jobs, seen = client.fine_tuning.jobs, {}
ENDED = ("succeeded", "failed", "cancelled")


def upload(name, rows):
    body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    file = client.files.create(file=(name, body), purpose="fine-tune")
    return client.files.wait_for_processing(file.id, poll_interval=0.1).id


def wait(job_id, *statuses):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        job = jobs.retrieve(job_id)
        if job.status in (*statuses, *ENDED):
            return job
        time.sleep(0.2)
    raise SystemExit(f"{job_id} is still {job.status}")


def picture(red):
    """A PNG of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress((b"\0" + bytes([red, 0, 255 - red]) * 32) * 32)
    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


# Supervised: function calls, and turns that are not learnt from.
tool = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Set a kitchen timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}


def timer(minutes):
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "set_timer", "arguments": json.dumps({"minutes": minutes})}
    return {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "What do you want?", "weight": 0},
            {"role": "user", "content": f"Boil an egg for {minutes} minutes"},
            {"role": "assistant", "tool_calls": [call]},
        ],
        "tools": [tool],
        "parallel_tool_calls": False,
    }


timers = upload("timers.jsonl", [timer(n) for n in range(1, 17)])
tools_job = jobs.create(
    model="tiny-qwen3",
    training_file=timers,
    validation_file=upload("held-out.jsonl", [timer(n) for n in range(20, 24)]),
    suffix="kitchen",
    metadata={"example": "tools"},
    method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4}}},
)
# Vision.
colours = [
    {
        "messages": [
            {"role": "system", "content": "You name colours."},
            {"role": "user", "content": "What colour is this?"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture(red), "detail": "auto"}}]},
            {"role": "assistant", "content": "red" if red > 128 else "blue"},
        ]
    }
    for red in (0, 40, 80, 120, 140, 180, 220, 255)
]
vision_job = jobs.create(
    model="tiny-qwen3-vl",
    training_file=upload("colours.jsonl", colours),
    method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 4}}},
)
# Preferences.
pairs = [
    {
        "input": {
            "messages": [{"role": "user", "content": f"Greet guest {n}"}],
            "tools": [],
            "parallel_tool_calls": True,
        },
        "preferred_output": [{"role": "assistant", "content": f"Welcome, guest {n}!"}],
        "non_preferred_output": [{"role": "assistant", "content": f"You again, {n}."}],
    }
    for n in range(16)
]
dpo_job = jobs.create(
    model="tiny-qwen3",
    training_file=upload("pairs.jsonl", pairs),
    method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.1, "n_epochs": 1, "batch_size": 4}}},
)
# Reinforcement, by every type of grader.
OUTPUT, ANSWER = "{{sample.output_text}}", "{{item.answer}}"
ASK = [{"role": "user", "content": f"Expected: {ANSWER}. Reply: {OUTPUT}"}]
GRADERS = {
    "check": {"type": "string_check", "name": "check", "operation": "ilike", "input": OUTPUT, "reference": ANSWER},
    "near": {
        "type": "text_similarity",
        "name": "near",
        "evaluation_metric": "fuzzy_match",
        "input": OUTPUT,
        "reference": ANSWER,
    },
    "score": {"type": "score_model", "name": "score", "model": judge, "range": [0, 10], "input": ASK},
    "label": {
        "type": "label_model",
        "name": "label",
        "model": judge,
        "labels": ["good", "bad"],
        "passing_labels": ["good"],
        "input": ASK,
    },
    "code": {
        "type": "python",
        "name": "code",
        "source": "def grade(sample, item):\n    return 1.0 if item['answer'] in sample['output_text'] else 0.25",
    },
}
GRADERS["all"] = {
    "type": "multi",
    "name": "all",
    "graders": {name: GRADERS[name] for name in ("check", "near", "score", "label", "code")},
    "calculate_output": "(check + near + score / 10 + label + code) / 5",
}
grading = client.fine_tuning.alpha.graders
seen["graded"] = {}
for name, grader in GRADERS.items():
    grading.validate(grader=grader)
    ran = grading.run(grader=grader, model_sample="the answer is 8", item={"answer": "8"})
    errors = [field for field, value in ran.metadata.errors.to_dict().items() if value is True]
    seen["graded"][name] = [ran.reward, errors]
prompts = upload(
    "prompts.jsonl",
    [{"messages": [{"role": "user", "content": f"What is {n} + {n}?"}], "answer": str(2 * n)} for n in range(8)],
)


def reinforce(grader):
    hyperparameters = {"n_epochs": 1, "batch_size": 4, "compute_multiplier": 0.5, "reasoning_effort": "default"}
    reinforcement = {"grader": grader, "hyperparameters": hyperparameters}
    return jobs.create(
        model="tiny-qwen3",
        training_file=prompts,
        method={"type": "reinforcement", "reinforcement": reinforcement},
    )


by_near, by_all = reinforce(GRADERS["near"]), reinforce(GRADERS["all"])
# A job's life: pause, resume, cancel.
long_job = jobs.create(model="tiny-qwen3", training_file=timers, hyperparameters={"n_epochs": 2000, "batch_size": 4})
wait(long_job.id, "running")
jobs.pause(long_job.id)
seen["paused"] = wait(long_job.id, "paused").status
seen["resumed"] = jobs.resume(long_job.id).status
wait(long_job.id, "running")
jobs.cancel(long_job.id)
seen["cancelled"] = wait(long_job.id).status

named = {"tools": tools_job, "vision": vision_job, "dpo": dpo_job, "near": by_near, "all": by_all}
seen["jobs"] = {name: wait(job.id).to_dict(mode="json") for name, job in named.items()}
# Lists, a page of one or two at a time.
created = [tools_job, vision_job, dpo_job, by_near, by_all, long_job]
seen["listed"] = [job.id for job in jobs.list(limit=2)] == [job.id for job in reversed(created)]
page = jobs.list(limit=2)
seen["page"] = [len(page.data), page.has_next_page()]
seen["found"] = [job.id for job in jobs.list(metadata={"example": "tools"})] == [tools_job.id]
events = list(jobs.list_events(tools_job.id, limit=2))
seen["events"] = {
    "types": sorted({event.type for event in events}),
    "unique": len({event.id for event in events}) == len(events),
    "newest_first": [event.created_at for event in events] == sorted((e.created_at for e in events), reverse=True),
    "steps": [event.data["step"] for event in events if event.type == "metrics"],
}
checkpoints = list(jobs.checkpoints.list(tools_job.id, limit=1))
seen["checkpoints"] = [[c.step_number, c.fine_tuned_model_checkpoint] for c in checkpoints]
results = jobs.retrieve(tools_job.id).result_files[0]
seen["results"] = io.BytesIO(client.files.content(results).read()).readline().decode().strip()
model = seen["jobs"]["tools"]["fine_tuned_model"]
reply = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Boil an egg for 7 minutes"}],
    tools=[tool],
    tool_choice={"type": "function", "function": {"name": "set_timer"}},
)
seen["called"] = json.loads(reply.choices[0].message.tool_calls[0].function.arguments)
print(json.dumps(seen))
