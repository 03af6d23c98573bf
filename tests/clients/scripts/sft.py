"""An SFT job by the SDK: ROOT KEY DATASET MODEL. Uploads, creates and starts it, and follows it with each poller."""

import asyncio
import json
import sys

from synth_ai.learning import FtClient, JobHandle, LearningClient

root, key, dataset, model = sys.argv[1:]


async def main() -> None:
    client = FtClient(root, key)
    file = await client.upload_training_file(dataset)
    hyperparameters = {"n_epochs": 1, "global_batch": 16, "sequence_length": 64, "learning_rate": 5e-3}
    created = await client.create_sft_job(
        model=model, training_file_id=file, hyperparameters=hyperparameters, metadata={"by": "the sdk"}
    )
    job = created.get("job_id") or created["id"]
    await client.start_job(job)
    followed = {}
    for name, poller in {"strict": JobHandle(root, key, job), "loose": JobHandle(root, key, job, strict=False)}.items():
        events, metrics = [], []
        result = await poller.poll_until_terminal(
            interval_seconds=0.5, max_seconds=200, on_event=events.append, on_metric=metrics.append
        )
        followed[name] = {"result": result, "events": events, "metrics": metrics}
    events = []
    job_object = await LearningClient(root, key).poll_until_terminal(job, interval_seconds=0.5, on_event=events.append)
    timeline = await LearningClient(root, key).get_timeline(job)
    print(json.dumps({"followed": followed, "job": job_object, "events": events, "timeline": timeline}, default=str))


asyncio.run(main())
