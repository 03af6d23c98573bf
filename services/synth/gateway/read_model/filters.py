"""The filter of a list of jobs, as a condition of SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from synth.gateway.read_model.tables.job_pairs import HAS_PAIR


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """The conditions that a job must pass, all of them; None and empty values are no condition.

    prefix: the beginning of the job's id. metadata, tags: pairs that the job must have; a tag that is a number or a
    boolean is compared in its JSON form. name: the job's name or label; for a path, an end after a slash is enough.
    uses: files and models, each of which the job names, or made.
    """

    states: Collection[str] | None = None
    kinds: Collection[str] | None = None
    prefix: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str | None = None
    uses: Collection[str] = ()

    @property
    def repeated(self) -> int:
        """Return the number of conditions of the kinds that a caller can repeat."""
        return len(self.metadata) + len(self.tags) + len(self.uses)

    def sql_condition(self, org: str) -> tuple[str, list[Any]]:
        """Return the condition as SQL over the columns of the read model's `jobs`, and its parameters.

        org: the organisation of the jobs.
        """
        parts, values = ["TRUE"], list[Any]()
        for column, wanted in (("state", self.states), ("kind", self.kinds)):
            if wanted is not None:
                parts.append(f"{column} IN ({', '.join('?' for _ in wanted)})")
                values += wanted
        if self.prefix:
            # Ids are ASCII, so every id with the prefix sorts before the prefix followed by the last Unicode character.
            parts.append("id >= ? AND id < ?")
            values += [self.prefix, f"{self.prefix}\U0010ffff"]
        for comparison, moment in ((">", self.created_after), ("<", self.created_before)):
            if moment is not None:
                parts.append(f"created_at {comparison} ?")
                values.append(moment.timestamp())
        if self.name is not None:
            parts.append(HAS_PAIR)
            values += [org, "name", "", self.name]
        for used in self.uses:
            parts.append("id IN (SELECT job FROM uses WHERE what = ?)")
            values.append(used)
        for kind, pairs in (("metadata", self.metadata), ("tag", self.tags)):
            for name, value in pairs.items():
                parts.append(HAS_PAIR)
                values += [org, kind, name, value]
        return " AND ".join(parts), values
