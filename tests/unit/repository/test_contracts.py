"""The generated documents are what the code says, and are valid documents of their kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from openapi_spec_validator import validate

from contracts.documents import DOCUMENTS
from synth.events.catalogue import CATALOGUE
from synth.work import TASKS, Task

DOCS = Path(__file__).parents[3] / "docs"
ASYNC: dict[str, Any] = yaml.safe_load((DOCS / "asyncapi.yaml").read_text())
#: AsyncAPI 3.0.0: what a component's key may be made of.
_COMPONENT = re.compile(r"[a-zA-Z0-9.\-_]+")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def found(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_committed_document_is_what_the_code_says(name: str):
    assert (DOCS / name).read_text() == DOCUMENTS[name](), "run `make contracts`"


def test_the_openapi_document_is_valid():
    validate(json.loads((DOCS / "openapi.json").read_text()))


def test_a_route_of_one_job_answers_with_its_configuration():
    paths = json.loads((DOCS / "openapi.json").read_text())["paths"]
    of_one_job = [("/api/jobs", "post", "201", "SubmittedJob"), ("/api/jobs/{job_id}", "get", "200", "JobWithConfig")]
    for verb in ("cancel", "pause", "resume"):
        of_one_job.append((f"/api/jobs/{{job_id}}/{verb}", "post", "202", "JobWithConfig"))
    for path, method, status, schema in of_one_job:
        answer = paths[path][method]["responses"][status]["content"]["application/json"]["schema"]
        assert answer == {"$ref": f"#/components/schemas/{schema}"}, path


def test_a_task_travels_on_the_subject_that_the_documents_show():
    for kind in TASKS:
        index = 0 if kind == "serve" else None
        task = Task(kind=kind, pool="{pool}", org="{org}", job_id="{job_id}", term=7, index=index)
        shown = ASYNC["channels"][f"work.{kind}"]["address"]
        assert shown.replace("{term}", "7").replace("{index}", "0") == task.subject


def test_every_reference_of_the_asyncapi_document_leads_somewhere():
    assert ASYNC["asyncapi"] == "3.0.0"
    assert {"info", "channels", "operations", "components"} <= set(ASYNC)
    for reference in references(ASYNC):
        assert found(ASYNC, reference), reference
    for kind in ASYNC["components"].values():
        assert all(_COMPONENT.fullmatch(name) for name in kind)


def test_a_channels_parameters_are_those_of_its_address():
    for channel in ASYNC["channels"].values():
        assert set(channel["parameters"]) == set(re.findall(r"{(\w+)}", channel["address"]))


def test_an_operation_uses_messages_of_its_own_channel():
    for operation in ASYNC["operations"].values():
        channel = operation["channel"]["$ref"]
        assert operation["action"] in ("send", "receive")
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


def test_every_event_and_task_has_a_channel_and_every_reader_an_operation():
    assert set(ASYNC["channels"]) == set(CATALOGUE) | {f"work.{kind}" for kind in TASKS}
    receivers = {
        (o["channel"]["$ref"].removeprefix("#/channels/"), o["x-role"])
        for o in ASYNC["operations"].values()
        if o["action"] == "receive"
    }
    readers = {(spec.type, role.value) for spec in CATALOGUE.values() for role in spec.reads}
    assert receivers == readers | {(f"work.{kind}", taker.value) for kind, (taker, _) in TASKS.items()}


def test_every_payload_is_a_json_schema():
    for schema in ASYNC["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
