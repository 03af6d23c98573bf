"""The trace databases of the published clients (0.2.16 and 0.2.23, SQLite), read as their own filter reads them.

A message of the user and the reply that follows it are a row. A database of an older client has other types of
messages (`policy_user_prompt` …); both are read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from synth.cli.filtering.rules import Candidate, Judged
from synth.cli.filtering.sources import ReadTrace, Row, without_images
from synth.console.errors import UsageProblem
from synth.datasets.token_estimate import tokens_in
from synth.traces.conversations import CUT_OFF
from synth.traces.facts import EpisodeFacts, as_object
from synth.traces.messages import message_content

_SCHEMES = ("sqlite+aiosqlite:///", "sqlite:///", "file://")
_USER = ("user", "policy_user_prompt")
_REPLIES = ("assistant", "policy_tool_call")


@dataclass(frozen=True)
class ClientTraces:
    """A database. images: whether rows keep them."""

    path: Path
    images: bool

    @classmethod
    def open(cls, db: str, *, images: bool) -> ClientTraces:
        """Open the database of this path or address. Raises `UsageProblem` if it cannot be read."""
        plain = next((db.removeprefix(scheme) for scheme in _SCHEMES if db.startswith(scheme)), db)
        path = Path(plain).expanduser()
        if "://" in plain:
            fix = "copy it to a SQLite file, or run `synth-ai filter` beside the server"
            raise UsageProblem(f"{db!r} is a server", expected="a SQLite file", fix=fix, where="[filter].db")
        if not path.is_file():
            raise UsageProblem("there is no such file", expected="a trace database", where=f"[filter].db {db!r}")
        return cls(path, images)

    @property
    def name(self) -> str:
        return str(self.path)

    def episodes(self, wanted: Callable[[Candidate], bool]) -> Iterator[ReadTrace]:
        with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            try:
                tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            except sqlite3.DatabaseError as error:
                raise UsageProblem(f"it cannot be read: {error}", expected="SQLite", where=self.name) from error
            if not {"session_traces", "messages"} <= tables:
                what = "it has no tables session_traces and messages"
                raise UsageProblem(what, expected="a trace database of synth-ai", where=self.name)
            query = "SELECT session_id, created_at, metadata FROM session_traces ORDER BY created_at"
            for session in db.execute(query):
                reader = _Session(db, tables, session)
                candidate = reader.candidate()
                if wanted(candidate):
                    rows, cut_off = reader.rows()
                    if not self.images:
                        rows = [{"messages": [without_images(message) for message in row["messages"]]} for row in rows]
                    yield ReadTrace(candidate, reader.judged(), rows, unusable="cut off" if cut_off else "")


class _Session:
    """One session of a database."""

    def __init__(self, db: sqlite3.Connection, tables: set[str], session: sqlite3.Row) -> None:
        self._db, self._tables = db, tables
        self._id = str(session["session_id"])
        self._created = session["created_at"]
        self._metadata = as_object(_loaded(session["metadata"]))
        outcomes = self._all("outcome_rewards", "total_reward, achievements_count, total_steps")
        self._outcome = outcomes[0] if outcomes else None
        self._events = self._all("events", "event_type, output_tokens, system_state_after, metadata, call_records")
        # Their own filter orders by time, and then by id.
        self._messages = self._all(
            "messages", "message_type, content, timestamp, metadata", "ORDER BY timestamp ASC, id ASC"
        )

    def candidate(self) -> Candidate:
        m, outcome = self._metadata, self._outcome
        tokens = [e["output_tokens"] for e in self._events if e["output_tokens"] is not None]
        replies = (_text(_said(r["content"])) for r in self._messages if r["message_type"] == "assistant")
        reward = None if outcome is None else float(outcome["total_reward"])
        total = m.get("total_reward")
        created = _moment(self._created)
        return Candidate(
            id=self._id,
            created_at=created,
            model=_word(m.get("model")),
            env_name=_word(m.get("env_name")),
            policy_name=_word(m.get("policy_name")),
            mode=_word(m.get("mode")),
            seed=m["seed"] if isinstance(m.get("seed"), int) else None,
            reward=float(total) if isinstance(total, int | float) else reward,
            environment=reward,
            tokens=sum(tokens) if tokens else round(sum(map(tokens_in, replies))),
            failed=bool(m.get("error")) or m.get("outcome") in ("policy_failure", "failed", "late"),
            metadata={
                "achievements_count": None if outcome is None else outcome["achievements_count"],
                "created_at": created.isoformat() if created else self._created,
            },
        )

    def judged(self) -> Judged:
        m, outcome = self._metadata, self._outcome
        steps = [e for e in self._events if e["event_type"] == "environment"]
        calls = sum(e["event_type"] == "cais" for e in self._events)
        replies = [r for r in self._messages if r["message_type"] in _REPLIES]
        total = outcome["total_steps"] if outcome is not None else 0
        facts = EpisodeFacts(
            steps=total or len(steps) or calls or len(replies),
            actions=[_text(_said(r["content"])) for r in replies],
            states=[e["system_state_after"] for e in steps if e["system_state_after"]],
            achievements=None if outcome is None else outcome["achievements_count"],
            failed=self.candidate().failed,
            timed_out=bool(m.get("timeout") or m.get("timed_out")) or "timeout" in str(m.get("error") or "").lower(),
            malformed=False,
            task_id=m.get("task_id"),
            split=m.get("task_split"),
        )
        scores = as_object(m.get("judge_scores"))
        return Judged(facts, {k: float(v) for k, v in scores.items() if isinstance(v, int | float)})

    def rows(self) -> tuple[list[Row], bool]:
        """Return the rows, and whether there are none because every reply was cut off, if the session records it."""
        if self._messages:
            tools, replies = self._calls()
            pairs = list(_pairs(self._messages, replies))
            rows = [row | tools for row, cut_off in pairs if not cut_off]
            return rows, bool(pairs) and not rows
        # Older clients kept a prompt and a completion alone.
        prompt, completion = self._metadata.get("prompt"), self._metadata.get("completion")
        if not prompt or not completion:
            return [], False
        messages = [{"role": "user", "content": str(prompt)}, {"role": "assistant", "content": str(completion)}]
        return [{"messages": messages}], False

    def _calls(self) -> tuple[Row, list[Row]]:
        """Return the last offered tools, as a row has them, and the reply of each call of the model, in order."""
        records: list[Row] = []
        for event in self._events:
            if event["event_type"] == "cais":
                made = _loaded(event["call_records"])
                records += [as_object(record) for record in (cast(list[Any], made) if isinstance(made, list) else [])]
        tools = next((record["tools"] for record in reversed(records) if record.get("tools")), None)
        return ({"tools": tools} if tools else {}), [_reply_of(record) for record in records]

    def _all(self, table: str, columns: str, order: str = "ORDER BY id") -> list[sqlite3.Row]:
        if table not in self._tables:
            return []
        return self._db.execute(f"SELECT {columns} FROM {table} WHERE session_id = ? {order}", (self._id,)).fetchall()


def _reply_of(record: Row) -> Row:
    """Return the assistant's message of a recorded call; {} if none was recorded."""
    output = record.get("output_messages")
    messages = [as_object(message) for message in (cast(list[Any], output) if isinstance(output, list) else [])]
    calls = record.get("output_tool_calls")
    named = [
        {"name": call.get("name"), "arguments": call.get("arguments_json") or "{}"}
        for call in map(as_object, cast(list[Any], calls) if isinstance(calls, list) else [])
    ]
    return {"tool_calls": named} | (messages[-1] if messages else {}) if named or messages else {}


def _pairs(messages: Sequence[sqlite3.Row], replies: Sequence[Row]) -> Iterator[tuple[Row, bool]]:
    """Yield a row for each message of the user, and whether its reply was cut off.

    A row has the earlier messages as its system message, the user's message, and the reply that follows.
    replies: of the recorded calls of the model. If each stored reply has one, it supplies the tool calls of a reply
    whose stored content is empty.
    """
    system: Any = None
    places = [n for n, message in enumerate(messages) if message["message_type"] in _REPLIES]
    recorded = dict(zip(places, replies, strict=True)) if len(places) == len(replies) else {}
    for place, message in enumerate(messages):
        kind = message["message_type"]
        if kind == "policy_system_prompt":
            system = message
        if kind not in _USER:
            continue
        question = _said(message["content"])
        if not _text(question):
            continue
        at = next((n for n in places if n > place), None)
        reply = None if at is None else messages[at]
        row: list[Row] = []
        if system is not None and (text := _text(_said(system["content"]))):
            row.append({"role": "system", "content": text})
        row.append({"role": "user", "content": question if isinstance(question, list) else _text(question)})
        content = _said(reply["content"]) if reply is not None else ""
        if at is not None and not content:
            content = message_content(recorded.get(at, {}))
        row.append({"role": "assistant", "content": content if isinstance(content, list) else _text(content)})
        ended = as_object(_loaded(reply["metadata"])).get("finish_reason") if reply is not None else None
        yield {"messages": row}, ended in CUT_OFF


def _loaded(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _said(raw: Any) -> Any:
    """Return the content of a message's column: text, parts, or any other JSON that a client wrote there."""
    value = _loaded(raw)
    return cast(Row, value)["content"] if isinstance(value, dict) and "content" in value else value


def _text(content: Any) -> str:
    """Return the words of a content, as the clients' filter finds them."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        fields = cast(Row, content)
        payload = fields.get("payload")
        if isinstance(payload, dict) and "content" in payload:
            return _text(cast(Row, payload)["content"])
        named = (fields[key] for key in ("text", "content", "content_text") if isinstance(fields.get(key), str))
        return next(named, None) or json.dumps(fields)
    if isinstance(content, list):
        parts = [as_object(part) for part in cast(list[Any], content)]
        texts = [str(part.get("text", "")) for part in parts if part.get("type") == "text"]
        return " ".join(texts) if texts else str(cast(list[Any], content))
    return "" if content is None else str(content)


def _moment(value: Any) -> datetime | None:
    text = str(value).replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.fromtimestamp(float(text), UTC)
        except (ValueError, OverflowError, OSError):
            return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None
