"""Judge a trace with the client's own judge client, and once without a rubric: ROOT KEY MODEL."""

import asyncio
import json
import sys
from datetime import UTC, datetime

from synth_ai.evals.client import JudgeClient
from synth_ai.tracing_v3.abstractions import EnvironmentEvent, LMCAISEvent, SessionTrace, TimeRecord
from synth_ai.tracing_v3.lm_call_record_abstractions import LLMCallRecord, LLMContentPart, LLMMessage

root, key, model = sys.argv[1:]
at = TimeRecord(event_time=1.0)
call = LLMCallRecord(
    call_id="1",
    api_type="chat_completions",
    input_messages=[LLMMessage(role="user", parts=[LLMContentPart(type="text", text="go")])],
    output_messages=[LLMMessage(role="assistant", parts=[LLMContentPart(type="text", text="went")])],
)
trace = SessionTrace(
    session_id="s",
    created_at=datetime.now(UTC),
    session_time_steps=[],
    event_history=[
        LMCAISEvent(system_instance_id="llm", time_record=at, model_name="policy", call_records=[call]),
        EnvironmentEvent(system_instance_id="env", time_record=at, reward=1.0, terminated=True),
    ],
    markov_blanket_message_history=[],
)
criteria = {"criteria": [{"id": "ok", "description": "?", "scale": "binary"}]}
options = {"provider": "synth", "model": model, "event": True, "outcome": True}


async def main():
    client = JudgeClient(root, key)
    asked = {"trace": trace, "policy_name": "policy", "task_app_id": "app"}
    overrides = {"rubric_overrides": {"event": criteria, "outcome": criteria}}
    reply = await client.score(**asked, options={**options, **overrides})
    try:
        await client.score(**asked, options=options)
        refused = None
    except ValueError as error:
        refused = str(error)
    print(json.dumps({"reply": reply, "refused": refused}))


asyncio.run(main())
