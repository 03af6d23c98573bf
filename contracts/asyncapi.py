"""The AsyncAPI 3.0 document of the bus: a channel for each event and each kind of task, with senders and receivers."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import yaml

from synth.bus.recorded import MSG_ID, SCHEMA, TRACEPARENT
from synth.bus.server.topology import EVENTS, WORK
from synth.events.catalogue import CATALOGUE, EventSpec
from synth.work import TASKS, Task

_SCHEMA_REF = "#/components/schemas/{name}"
_ABOUT = """\
Every fact of the platform is one event of the JetStream stream EVENTS, on `<entity>.<fact>.<org>.<key>`; the key is
the job's id, or the file's for `file.*`. The stream's sequence is the event's place in the one order of everything,
the server's timestamp its time. Tasks are work, not facts: they wait in the work-queue stream WORK, at most one a
subject, until their owner is done with them. Events carry references to blobs, never tensors.
"""
_PARAMETERS: dict[str, dict[str, Any]] = {
    "org": {"description": "The organisation, a generated token: `org_` and letters and digits"},
    "job_id": {"description": "The job's id: `job_` and letters and digits"},
    "file_id": {"description": "The file's id: `file_` and letters and digits"},
    "pool": {"description": "The worker pool; `default` unless workers were given another"},
    "term": {"description": "How often the job had been resumed when the task was queued, from 0"},
    "index": {"description": "Which of the job's replicas the task is, from 0"},
}


class _Plain(yaml.SafeDumper):
    """No anchors, and a text of several lines as it stands: a person reads this."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Plain.add_representer(str, _Plain.represent_str)


def asyncapi() -> str:
    """Return the document as YAML."""
    return yaml.dump(document(), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)


def document() -> dict[str, Any]:
    """Return the document as data."""
    types = [spec.event for spec in CATALOGUE.values()]
    _, schemas = msgspec.json.schema_components([*types, Task], ref_template=_SCHEMA_REF)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for spec in CATALOGUE.values():
        messages[spec.event.__name__] = _message(spec)
        channels[spec.type] = _channel(_address(spec), spec.event.__name__, {"x-stream": EVENTS})
        operations[f"publish.{spec.type}"] = _operation("send", spec.type, spec.event.__name__, spec.by.value)
        for reader, reading in spec.reads.items():
            received = _operation("receive", spec.type, spec.event.__name__, reader.value)
            operations[f"{reader.value}.{spec.type}"] = received | {"x-reading": reading.value}
    messages["Task"] = {
        "name": "Task",
        "summary": _first(Task.__doc__),
        "payload": {"$ref": "#/components/schemas/Task"},
    }
    for kind, (taker, queuers) in TASKS.items():
        channel = f"work.{kind}"
        channels[channel] = _channel(_task_address(kind), "Task", {"x-stream": WORK})
        for queuer in queuers:
            operations[f"{queuer.value}.queue.{channel}"] = _operation("send", channel, "Task", queuer.value)
        operations[f"{taker.value}.{channel}"] = _operation("receive", channel, "Task", taker.value)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Synth events", "version": "1", "description": _ABOUT},
        "defaultContentType": "application/json",
        "servers": {"cluster": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "SYNTH_NATS_URL"}},
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "schemas": schemas,
            "messageTraits": {"event": {"headers": _headers()}},
        },
    }


def _message(spec: EventSpec) -> dict[str, Any]:
    return {
        "name": spec.type,
        "summary": _first(spec.event.__doc__),
        "payload": {"$ref": _SCHEMA_REF.format(name=spec.event.__name__)},
        "traits": [{"$ref": "#/components/messageTraits/event"}],
        "x-schema-version": spec.version,
        "x-write": spec.write.value,
    }


def _channel(address: str, message: str, extra: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in _PARAMETERS if f"{{{name}}}" in address]
    return {
        "address": address,
        "messages": {message: {"$ref": f"#/components/messages/{message}"}},
        "parameters": {name: _PARAMETERS[name] for name in names},
        **extra,
    }


def _operation(action: str, channel: str, message: str, role: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
        "x-role": role,
    }


def _headers() -> dict[str, Any]:
    words = {
        MSG_ID: "The event's deterministic id: a retry of a publish has the same",
        SCHEMA: "The schema version of the body",
        TRACEPARENT: "W3C trace context, from the request that began it all",
    }
    return {"type": "object", "properties": {name: {"type": "string", "description": w} for name, w in words.items()}}


def _address(spec: EventSpec) -> str:
    key = "file_id" if spec.type.startswith("file.") else "job_id"
    return f"{spec.type}.{{org}}.{{{key}}}"


def _task_address(kind: str) -> str:
    tail = ".{index}" if kind == "serve" else ""
    return f"work.{kind}.{{pool}}.{{org}}.{{job_id}}.{{term}}{tail}"


def _first(doc: str | None) -> str:
    return cast(str, doc).strip().splitlines()[0]
