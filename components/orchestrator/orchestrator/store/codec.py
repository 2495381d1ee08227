"""The core's records as plain data for JSON, and back. A field that has its default value is left out.

Built once per type from its annotations, so a new field with a default needs nothing here and old records still read.
"""

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Convert = Callable[[Any], Any]


class BadRecord(ValueError):
    """The data is not a record of the wanted kind. The text names the field."""


class Codec:
    """Both directions for one dataclass."""

    def __init__(self, record_type: type[Any]) -> None:
        self.to_data, self._from_data = _converters(record_type)
        self._name = record_type.__name__

    def from_data(self, data: Any) -> Any:
        """The record; BadRecord if `data` is not one."""
        try:
            return self._from_data(data)
        except BadRecord:
            raise
        except (TypeError, ValueError) as error:
            raise BadRecord(f"not a {self._name}: {error}") from error


def _converters(annotation: Any) -> tuple[Convert, Convert]:
    """(to data, from data) for an annotation."""
    while hasattr(annotation, "__supertype__"):
        annotation = annotation.__supertype__
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType,) or str(origin) == "typing.Union":
        return _optional(next(a for a in arguments if a is not type(None)))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        to_one, from_one = _converters(arguments[0])
        return (lambda value: [to_one(v) for v in value]), (lambda data: tuple(from_one(v) for v in _list(data)))
    if origin is tuple:
        pairs = [_converters(a) for a in arguments]
        return (
            lambda value: [to(v) for (to, _), v in zip(pairs, value, strict=True)],
            lambda data: tuple(back(v) for (_, back), v in zip(pairs, _list(data), strict=True)))
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _record(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return (lambda value: value.value), annotation
    if annotation in (str, int, bool, float):
        return _same, _checked(annotation)
    raise TypeError(f"records with fields of type {annotation!r} cannot be stored")


def _optional(inner: Any) -> tuple[Convert, Convert]:
    to_one, from_one = _converters(inner)
    return (
        lambda value: None if value is None else to_one(value),
        lambda data: None if data is None else from_one(data))


def _record(record_type: type[Any]) -> tuple[Convert, Convert]:
    hints = get_type_hints(record_type)
    parts = [(f.name, f.default, *_converters(hints[f.name])) for f in fields(record_type)]
    names = {name for name, *_ in parts}

    def to_data(value: Any) -> dict[str, Any]:
        data = {}
        for name, default, to, _ in parts:
            part = getattr(value, name)
            if default is MISSING or part != default:
                data[name] = to(part)
        return data

    def from_data(data: Any) -> Any:
        if not isinstance(data, dict):
            raise BadRecord(f"{record_type.__name__} is {type(data).__name__}, not an object")
        if not names >= data.keys():
            raise BadRecord(f"{record_type.__name__} has unknown fields {sorted(data.keys() - names)}")
        values = {}
        for name, default, _, back in parts:
            if name in data:
                try:
                    values[name] = back(data[name])
                except (TypeError, ValueError) as error:
                    raise BadRecord(f"{record_type.__name__}.{name}: {error}") from error
            elif default is MISSING:
                raise BadRecord(f"{record_type.__name__}.{name} is missing")
        return record_type(**values)

    return to_data, from_data


def _same(value: Any) -> Any:
    return value


def _checked(wanted: type[Any]) -> Convert:
    accepted: tuple[type[Any], ...] = (int, float) if wanted is float else (wanted,)

    def check(data: Any) -> Any:
        if not isinstance(data, accepted) or (isinstance(data, bool) and wanted is not bool):
            raise BadRecord(f"{data!r} is not {wanted.__name__}")
        return data

    return check


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise BadRecord(f"{data!r} is not a list")
    return data
