"""The filter of a list of jobs, as a condition of SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """A job passes when all conditions hold; None and empty values are no condition.

    prefix: the beginning of the job's id. metadata, tags: pairs that the job's must have; a tag that is a number or a
    boolean is compared as JSON writes it. name: the job's, or its label; of a path, the last part is enough.
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

    def sql_condition(self) -> tuple[str, list[Any]]:
        """The condition as SQL over the columns of the read model's `jobs`, and its parameters."""
        parts, values = ["TRUE"], list[Any]()
        for column, wanted in (("state", self.states), ("kind", self.kinds)):
            if wanted is not None:
                parts.append(f"{column} IN ({', '.join('?' for _ in wanted)})")
                values += wanted
        if self.prefix:
            # Ids are of ASCII, so all that begin with the prefix lie below it and the last character there is.
            parts.append("id >= ? AND id < ?")
            values += [self.prefix, f"{self.prefix}\U0010ffff"]
        for comparison, moment in ((">", self.created_after), ("<", self.created_before)):
            if moment is not None:
                parts.append(f"created_at {comparison} ?")
                values.append(moment.timestamp())
        if self.name is not None:
            named, labelled = (f"json_extract(CAST(row AS TEXT), '$.job.{field}')" for field in ("name", "label"))
            parts.append(f"({named} = ? OR substr({named}, -length(?) - 1) = '/' || ? OR {labelled} = ?)")
            values += [self.name] * 4
        for used in self.uses:
            parts.append("id IN (SELECT job FROM uses WHERE what = ?)")
            values.append(used)
        for name, value in self.metadata.items():
            pairs = "json_each(CAST(row AS TEXT), '$.job.metadata')"
            parts.append(f"EXISTS (SELECT 1 FROM {pairs} AS pair WHERE pair.key = ? AND pair.value = ?)")
            values += [name, value]
        for name, value in self.tags.items():
            tags = "json_each(CAST(row AS TEXT), '$.job.tags')"
            text = "CASE tag.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(tag.value AS TEXT) END"
            parts.append(f"EXISTS (SELECT 1 FROM {tags} AS tag WHERE tag.key = ? AND {text} = ?)")
            values += [name, value]
        return " AND ".join(parts), values
