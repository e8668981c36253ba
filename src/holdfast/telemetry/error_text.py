"""Errors as text: in full for the job, on one line for logs and lists. Pure.

Called by: `jobs/outcome.py` for the error that is stored with a job, and all code that shows an error on one line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

LONGEST_LINE = 200
MOST_CAUSES = 3  # of an exception group

# Lines without information: the position markers of psycopg and Python, the statement that psycopg repeats above its marker,
# and links to general help.
_NO_MESSAGE = re.compile(r"[\s^~]*|LINE \d+: .*|For (further|more) information (visit|check).*", re.IGNORECASE)
_STARTS_WITH_PLACE = re.compile(r'File ".*", line \d+|Traceback')


def error_text(error: BaseException) -> str:
    """The type and the message of an error, perhaps on several lines; for a group also those of its first errors."""
    text = "".join(traceback.format_exception_only(error)).strip()
    if not isinstance(error, BaseExceptionGroup):
        return text
    causes = list(_leaves(error))
    more = [f"and {len(causes) - MOST_CAUSES} more"] if len(causes) > MOST_CAUSES else []
    return "\n".join([text, *(error_text(cause) for cause in causes[:MOST_CAUSES]), *more])


def one_line(text: str | None, longest: int = LONGEST_LINE) -> str:
    """An error text on one line: without markers such as `^`, `LINE 1: …`, and links to help; empty for an empty text."""
    lines = [line.strip() for line in (text or "").splitlines()]
    kept = [line for line in lines if not _NO_MESSAGE.fullmatch(line)]
    if kept and _STARTS_WITH_PLACE.match(kept[0]):  # a traceback, or a SyntaxError with its line of source
        kept = kept[-1:]
    line = " ".join(kept) or " ".join(filter(None, lines))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def error_line(error: BaseException) -> str:
    """An error on one line. Without a message it is the name of the type."""
    return one_line(error_text(error))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
