"""An RL job by the SDK: ROOT KEY TASK_URL CONFIG_JSON MODEL. Follows it to its terminal event, then streams it."""

import asyncio
import json
import sys

from synth_ai.learning import RlClient, stream_job_events

root, key, task_url, config, model = sys.argv[1:]


async def main() -> None:
    client = RlClient(root, key)
    created = await client.create_job(
        model=model,
        task_app_url=task_url,
        trainer={"batch_size": 8, "group_size": 8},
        inline_config=json.loads(config),
    )
    job = created.get("job_id") or created["id"]
    await client.start_job_if_supported(job)
    events, metrics = [], []
    # The default interval: after five polls without any event this poller gives up.
    result = await client.poll_until_terminal(job, max_seconds=250, on_event=events.append, on_metric=metrics.append)
    streamed = {}
    # It opens a second address when the first stream has ended, and so hears everything twice.
    await stream_job_events(root, key, job, seconds=20, on_event=lambda event: streamed.setdefault(event["seq"], event))
    print(
        json.dumps(
            {"result": result, "events": events, "metrics": metrics, "streamed": list(streamed.values())}, default=str
        )
    )


asyncio.run(main())
