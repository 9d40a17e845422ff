"""What travels between Python and the server: JSON, durations, and the ids of jobs."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Optional, Union
from uuid import UUID

Duration = Union[str, float, timedelta]

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # what jsonb cannot hold


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON: {text_of(value, 200)}")


def dumps(value: Any, name: str = "the value") -> str:
    """JSON; times as ISO 8601, durations as seconds. Raises TypeError or ValueError for what jsonb cannot hold."""
    try:
        text = json.dumps(value, default=_plain, allow_nan=False)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply for JSON") from None
    except Exception as error:  # of a method of the value, too
        raise (ValueError if isinstance(error, ValueError) else TypeError)(f"{name}: {text_of(error)}") from error
    if "\\u0000" in text or "\\ud" in text:  # it may hold what PostgreSQL refuses, or an emoji
        for path, part in _texts(json.loads(text), name):
            if found := _UNSTORABLE.search(part):
                raise ValueError(f"{path} holds \\u{ord(found[0]):04x}, which PostgreSQL cannot store")
    return text


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, keys too, with where it stands."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _texts(member, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, member in value.items():
            yield f"a key of {path}", key
            yield from _texts(member, f"{path}.{key}")


def storable(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def text_of(value: Any, most: int = 20_000) -> str:
    """str(), for values whose str() may raise."""
    for convert in (str, repr):
        try:
            return storable(convert(value))[:most]
        except BaseException:
            pass
    return f"<{type(value).__name__}>"


def reportable(value: Any, depth: int = 0) -> Any:
    """JSON of anything at all, for the report of a failure: what JSON cannot hold becomes text."""
    try:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return storable(value)
        if isinstance(value, int):
            return int(value) if abs(value) < 10**400 else text_of(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else json.dumps(float(value))
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, (bytes, bytearray)):
            return storable(bytes(value).decode(errors="replace"))
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            if depth == 100:
                return f"<{type(value).__name__}, nested too deeply or within itself>"
            if isinstance(value, Mapping):
                return {text_of(key): reportable(member, depth + 1) for key, member in value.items()}
            return [reportable(member, depth + 1) for member in value]
        if isinstance(value, date):
            return value.isoformat()
    except BaseException:
        pass
    return text_of(value)


_UNITS = {  # months, days, seconds
    "year": (12, 0, 0), "yr": (12, 0, 0), "y": (12, 0, 0), "month": (1, 0, 0), "mon": (1, 0, 0),
    "week": (0, 7, 0), "w": (0, 7, 0), "day": (0, 1, 0), "d": (0, 1, 0),
    "hour": (0, 0, 3600), "hr": (0, 0, 3600), "h": (0, 0, 3600), "minute": (0, 0, 60), "min": (0, 0, 60),
    "m": (0, 0, 60), "second": (0, 0, 1), "sec": (0, 0, 1), "s": (0, 0, 1), "": (0, 0, 1),
    "millisecond": (0, 0, 1e-3), "msec": (0, 0, 1e-3), "ms": (0, 0, 1e-3),
    "microsecond": (0, 0, 1e-6), "usec": (0, 0, 1e-6), "us": (0, 0, 1e-6)}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_ISO = re.compile(rf"P(?=[\dT.])(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
                  rf"(?:T(?=[\d.])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?")
_CLOCK = re.compile(r"(\d+):([0-5]\d)(?::([0-5]\d(?:\.\d*)?))?$")
_PART = re.compile(rf"{_NUMBER}\s*([a-z]*)(?:\s+|(?<=[a-z])(?=[\d.])|$)", re.I)


def _parts(text: str) -> Optional[tuple[float, float, float]]:
    """Months, days and seconds of a duration, as ISO 8601 or as PostgreSQL writes intervals; None if it is neither."""
    text = text.strip()
    total = [0.0, 0.0, 0.0]
    if iso := _ISO.fullmatch(text):
        found = list(zip(iso.groups(), ("y", "mon", "w", "d", "h", "m", "s")))
    else:
        found, at = [], 0
        while at < len(text):
            if clock := _CLOCK.match(text, at):
                found += list(zip(clock.groups(), "hms"))
                break
            part = _PART.match(text, at)
            if not part:
                return None
            found.append((part[1], part[2].lower()))
            at = part.end()
        if not found:
            return None
    for number, unit in found:
        size = _UNITS.get(unit) or _UNITS.get(unit[:-1] if len(unit) > 2 and unit.endswith("s") else "?")
        if size is None:
            return None
        for i in range(3):
            total[i] += float(number or 0) * size[i]
    return total[0], total[1], total[2]


def _decimal(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _no_duration(value: Any, name: str) -> ValueError:
    return ValueError(f"{name} is no duration: {text_of(value, 100)!r}. Give seconds, a timedelta, or a text such as "
                      "'PT30S' or '30 seconds'")


def seconds(value: Duration, name: str) -> float:
    """A duration in seconds, 0 or more; a month has 30 days, a year 365."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    parts = _parts(value) if isinstance(value, str) else None
    if parts is None:
        raise _no_duration(value, name)
    years, months = divmod(parts[0], 12)
    return years * 365 * 86400 + months * 30 * 86400 + parts[1] * 86400 + parts[2]


def interval(value: Optional[Duration], name: str) -> Optional[str]:
    """A duration as a parameter of type interval."""
    if value is None or isinstance(value, str) and _parts(value) is not None:
        return value
    return f"{_decimal(seconds(value, name))} s"


def iso(value: Any) -> Any:
    """A duration as the specification has it: ISO 8601, or a number of seconds. The server judges anything else."""
    if isinstance(value, timedelta):
        return f"PT{_decimal(value.total_seconds())}S" if value >= timedelta(0) else value.total_seconds()
    parts = _parts(value) if isinstance(value, str) and "P" not in value else None
    if parts is None:
        return value
    months, days, rest = (_decimal(part) for part in parts)
    return (f"P{months}M" if parts[0] else "P") + (f"{days}D" if parts[1] else "") + f"T{rest}S"
