"""The JSON schema of a job file, from the tables of its keys, for editors that complete and check keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from synth.jobs.parse.problems import table_of
from synth.jobs.schema.eval import EvalConfig, FlatEvalConfig
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import description_of, keys_of
from synth.jobs.schema.sft import SftConfig

_FILES: tuple[type[BaseModel], ...] = (RlConfig, SftConfig, EvalConfig, FlatEvalConfig, FilterConfig)


def job_file_schema() -> dict[str, Any]:
    """Return the schema: a file is of one of the kinds."""
    _, schema = models_json_schema([(file, "validation") for file in _FILES])
    tables = schema["$defs"]
    for table in set(_tables(_FILES)):
        for key in keys_of(table):
            if text := description_of(table, key):
                tables[table.__name__]["properties"][key]["description"] = text.replace("\n", " ")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job file of Synth",
        "anyOf": [{"$ref": f"#/$defs/{file.__name__}"} for file in _FILES],
        "$defs": tables,
    }


def _tables(tables: tuple[type[BaseModel], ...]) -> Iterator[type[BaseModel]]:
    for table in tables:
        yield table
        for info in keys_of(table).values():
            nested = table_of(info.annotation)
            if nested is not None:
                yield from _tables((nested,))
