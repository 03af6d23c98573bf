"""A trace database as the published clients have it, which their `filter` reads.

It has the tables of synth-ai 0.2.23 and 0.2.16, with one difference: a message may be of the type
`policy_system_prompt`. Their own check does not allow what their own filter looks for, and without it the rows of that
filter would lack the system's message.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

Object = dict[str, Any]

_SCHEMA = """
CREATE TABLE experiments (
    experiment_id VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, description TEXT,
    created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME DEFAULT CURRENT_TIMESTAMP, configuration TEXT,
    metadata TEXT
);
CREATE TABLE session_traces (
    session_id VARCHAR PRIMARY KEY, created_at DATETIME NOT NULL, num_timesteps INTEGER NOT NULL,
    num_events INTEGER NOT NULL, num_messages INTEGER NOT NULL, metadata TEXT, experiment_id VARCHAR, embedding VECTOR,
    FOREIGN KEY(experiment_id) REFERENCES experiments(experiment_id)
);
CREATE TABLE session_timesteps (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id VARCHAR NOT NULL, step_id VARCHAR NOT NULL,
    step_index INTEGER NOT NULL, turn_number INTEGER, started_at DATETIME, completed_at DATETIME, num_events INTEGER,
    num_messages INTEGER, step_metadata TEXT, UNIQUE(session_id, step_id),
    FOREIGN KEY(session_id) REFERENCES session_traces(session_id)
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id VARCHAR NOT NULL, timestep_id INTEGER, event_type VARCHAR NOT NULL,
    system_instance_id VARCHAR, event_time FLOAT, message_time INTEGER, created_at DATETIME, model_name VARCHAR,
    provider VARCHAR, input_tokens INTEGER, output_tokens INTEGER, total_tokens INTEGER, cost_usd INTEGER,
    latency_ms INTEGER, span_id VARCHAR, trace_id VARCHAR, call_records TEXT, reward FLOAT, terminated BOOLEAN,
    truncated BOOLEAN, system_state_before TEXT, system_state_after TEXT, metadata TEXT, event_metadata TEXT,
    embedding VECTOR, CHECK (event_type IN ('cais', 'environment', 'runtime')),
    FOREIGN KEY(session_id) REFERENCES session_traces(session_id),
    FOREIGN KEY(timestep_id) REFERENCES session_timesteps(id)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id VARCHAR NOT NULL, timestep_id INTEGER,
    message_type VARCHAR NOT NULL, content TEXT NOT NULL, timestamp DATETIME, event_time FLOAT, message_time INTEGER,
    metadata TEXT, embedding VECTOR,
    FOREIGN KEY(session_id) REFERENCES session_traces(session_id),
    FOREIGN KEY(timestep_id) REFERENCES session_timesteps(id)
);
CREATE TABLE outcome_rewards (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id VARCHAR NOT NULL, total_reward INTEGER NOT NULL,
    achievements_count INTEGER NOT NULL, total_steps INTEGER NOT NULL, created_at DATETIME NOT NULL,
    reward_metadata TEXT, FOREIGN KEY(session_id) REFERENCES session_traces(session_id)
);
CREATE TABLE event_rewards (
    id INTEGER PRIMARY KEY AUTOINCREMENT, event_id INTEGER NOT NULL, session_id VARCHAR NOT NULL, message_id INTEGER,
    turn_number INTEGER, reward_value FLOAT NOT NULL, reward_type VARCHAR, "key" VARCHAR, annotation TEXT,
    source VARCHAR, created_at DATETIME NOT NULL, FOREIGN KEY(event_id) REFERENCES events(id),
    FOREIGN KEY(session_id) REFERENCES session_traces(session_id), FOREIGN KEY(message_id) REFERENCES messages(id)
);
CREATE INDEX idx_session_created ON session_traces (created_at);
CREATE INDEX idx_event_session_step ON events (session_id, timestep_id);
CREATE INDEX idx_message_session_step ON messages (session_id, timestep_id);
CREATE INDEX idx_outcome_rewards_session ON outcome_rewards (session_id);
CREATE INDEX idx_event_rewards_session ON event_rewards (session_id);
"""
_EVENT_COLUMNS = (
    *("system_instance_id", "model_name", "provider", "input_tokens", "output_tokens", "total_tokens"),
    *("reward", "terminated", "truncated"),
)
_EVENT_DOCUMENTS = ("call_records", "system_state_after", "metadata")


class TraceDatabase:
    """A new database."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")

    def commit(self) -> None:
        """Write all added rows."""
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close it."""
        self._db.close()

    def add(self, session: Object) -> None:
        """Add a session as `v3_trace` makes it."""
        id, created = session["session_id"], session["created_at"]
        events, messages = session["event_history"], session["markov_blanket_message_history"]
        self._insert(
            "session_traces",
            session_id=id,
            created_at=created,
            num_timesteps=0,
            num_events=len(events),
            num_messages=len(messages),
            metadata=_json(session["metadata"]),
        )
        event_ids = [self._add_event(id, created, event) for event in events]
        for message in messages:
            self._add_message(id, created, message)
        for outcome in session["outcome_rewards"]:
            values = outcome | {"reward_metadata": _json(outcome["reward_metadata"])}
            self._insert("outcome_rewards", session_id=id, created_at=created, **values)
        for reward in session["event_rewards"]:
            values = {key: value for key, value in reward.items() if key not in ("event", "annotation")}
            annotation, event = _json(reward.get("annotation")), event_ids[reward["event"]]
            self._insert(
                "event_rewards", event_id=event, session_id=id, created_at=created, annotation=annotation, **values
            )

    def _add_event(self, session: str, created: str, event: Object) -> int:
        time = event["time_record"]
        return self._insert(
            "events",
            session_id=session,
            event_type="cais" if "call_records" in event else "environment",
            event_time=time["event_time"],
            message_time=time.get("message_time"),
            created_at=created,
            **{column: event.get(column) for column in _EVENT_COLUMNS},
            **{column: _json(event[column]) for column in _EVENT_DOCUMENTS if column in event},
        )

    def _add_message(self, session: str, created: str, message: Object) -> None:
        time, kind = message["time_record"], message["message_type"]
        stored = message["content"]
        content = json.loads(stored["json_payload"]) if "json_payload" in stored else stored["text"]
        self._insert(
            "messages",
            session_id=session,
            message_type="policy_system_prompt" if kind == "system" else kind,
            # A text, too, as JSON: one that happens to be JSON stays a text, since their filter decodes it once.
            content=_json(content),
            timestamp=created,
            event_time=time["event_time"],
            message_time=time["message_time"],
            metadata=_json(message["metadata"]),
        )

    def _insert(self, table: str, **values: Any) -> int:
        columns, places = ", ".join(f'"{name}"' for name in values), ", ".join("?" for _ in values)
        done = self._db.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", list(values.values()))
        assert done.lastrowid is not None
        return done.lastrowid


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
