"""The keys that a job and a table of its file have in common: each with its bounds, its default and its text, once.

A class of keys is a base of two classes: of a table of the file (`synth.jobs.schema`), which checks the bounds, and of
settings of a job, which are read with every default applied.
"""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import msgspec
from pydantic import Field, Strict

#: Beyond it a number counts nothing that there is, and some library takes it for another.
LARGEST = 2**31 - 1
#: Likewise of floats: a time in seconds is thirty years then.
LARGEST_FLOAT = 1e9
#: Elements of a list, and characters of a name, an address or a path.
MAX_ELEMENTS = 1000
MAX_NAME = 4096
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST_FLOAT)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST_FLOAT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
# A file has a list, which is not strictly a tuple.
Names = Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_ELEMENTS), Strict(False)]
Range = Annotated[tuple[NonNegativeFloat, ...], Field(min_length=2, max_length=2), Strict(False)]

_T = TypeVar("_T")


_CLASSES: set[type] = set()


@dataclass_transform(kw_only_default=True, frozen_default=True)
def keys(cls: type[_T]) -> type[_T]:
    """Declare a class of keys."""
    _CLASSES.add(cls)
    return cls


class SettingsType(type(msgspec.Struct)):
    """The type of settings: the fields of a class of keys become fields of the struct."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        fields: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for base in bases:
            if base in _CLASSES:
                hints = get_type_hints(base, include_extras=True)
                fields |= hints
                defaults |= {field: getattr(base, field) for field in hints if hasattr(base, field)}
        namespace["__annotations__"] = fields | namespace.get("__annotations__", {})
        made = super().__new__(cls, name, bases, defaults | namespace, **options)
        # A default in a class of keys must not hide the member of a struct that stands behind it among the bases.
        for field in fields:
            members = (vars(base).get(field) for base in made.__mro__)
            setattr(made, field, next(member for member in members if isinstance(member, MemberDescriptorType)))
        return made


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsType):
    """JobSettings of a job, with every default applied."""
