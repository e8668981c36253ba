"""The parameters of a read, parsed as the API parses them, and its answer as plain JSON values. Used by: the reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from holdfast.api.answers import jsonable
from holdfast.jobs.model import JobId
from holdfast.toolkit.cli.transport import Answer

Conn = psycopg.AsyncConnection[Any]
Params = dict[str, Any]
LARGEST_ID = 2**63 - 1024
LONGEST_NAME, LONGEST_KEY = 200, 500


class NotHandled(Exception):
    """This request is for the API itself."""


def parsed(params: Params, **parsers: Callable[[str], Any]) -> dict[str, Any]:
    """The parameters, each through its parser; None where one was not given."""
    if not params.keys() <= parsers.keys():
        raise NotHandled
    try:
        return {name: None if params.get(name) is None else parse(str(params[name])) for name, parse in parsers.items()}
    except ValueError:
        raise NotHandled from None


def text_of(longest: int) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not 1 <= len(text) <= longest or "\x00" in text:
            raise ValueError(text)
        return text

    return parse


def number_of(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not (text.isascii() and text.isdecimal() and least <= number <= most):
            raise ValueError(text)
        return number

    return parse


def fingerprint_of(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{16}", text):
        raise ValueError(text)
    return text


def moment_of(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def job_id_of(text: str) -> JobId:
    try:
        return JobId(number_of(1, LARGEST_ID)(text))
    except ValueError:
        raise NotHandled from None


def uuid_of(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise NotHandled from None


PAGE: dict[str, Callable[[str], Any]] = {"limit": number_of(1, 200), "cursor": json.loads}


def page_of(rows: list[Any], limit: int, key: Callable[[Any], Any]) -> Answer:
    """A page out of rows that are one more than `limit` if there is a next page."""
    shown = rows[:limit]
    return Answer(jsonable(shown), json.dumps(key(shown[-1])) if len(rows) > limit else None)
