"""The SQL of one column: whether its text is a valid value, why not, and the value. Pure.

The text is cleaned before: it is trimmed, and null if nothing is left. Every expression can be evaluated on any text: a cast
is reached only by text that it accepts. Nothing here depends on settings of the session such as DateStyle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from holdfast.services.ingestion.models.definitions import Column

INTEGER: Final = "^[+-]?[0-9]{1,18}$"
DECIMAL: Final = r"^[+-]?([0-9]{1,30}([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][+-]?[0-9]{1,2})?$"
DIGITS: Final = "'0123456789'"
GROUPED: Final = "^[+-]?[0-9]{1,3}([.][0-9]{3})+(,[0-9]*)?$|^[^.]*$"  # points only between groups of three digits
TRUE: Final = ("true", "t", "yes", "y", "1", "ja", "oui", "si")
FALSE: Final = ("false", "f", "no", "n", "0", "nein", "non")
LONGEST_KEY: Final = 500  # bytes of a value in a key: an index entry has at most 2,700


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def literals(texts: tuple[str, ...]) -> str:
    return "(" + ", ".join(map(literal, texts)) + ")"


@dataclass(frozen=True, slots=True)
class Checked:
    """The expressions of one column over the cleaned text `text`."""

    column: Column
    text: str
    decimal: str = "."
    is_key: bool = False
    year: int | None = None  # in which most dates are

    @property
    def reason(self) -> str:
        """Why the text is no valid value; null if it is one."""
        whens = [f"WHEN {self.text} IS NULL THEN {literal('is required') if self.column.required else 'NULL'}"]
        if self.column.type == "date" and self.year is not None:
            whens.append(f"WHEN {self.text} = ANY ({literal(usual_dates(self.year, self.form))}::text[]) THEN NULL")
        whens += [f"WHEN {wrong} THEN {literal(reason)}" for wrong, reason in self._wrong()]
        return f"CASE {' '.join(whens)} END"

    @property
    def value(self) -> str:
        """The value of a valid text."""
        return VALUES[self.column.type](self)

    @property
    def plain(self) -> str:
        """The value for JSON: a date is its ISO text, which is cheaper than the date."""
        return self._iso if self.column.type == "date" else self.value

    @property
    def canonical(self) -> str:
        """The value as text, for keys: 07 and 7 are the same integer."""
        return self.value if self.column.type == "text" else f"({self.value})::text"

    def _wrong(self) -> list[tuple[str, str]]:
        """Conditions in the order in which they may be evaluated, and their reasons."""
        column = self.column
        found = list(WRONG[column.type](self))
        if column.min is not None:
            may_be = f"{self.text} LIKE '-%' AND " if column.min <= 0 else ""  # cheaper than the number
            found.append((f"{may_be}{self.value} < {column.min:f}", f"must be at least {column.min:f}"))
        if column.max is not None:
            found.append((f"{self.value} > {column.max:f}", f"must be at most {column.max:f}"))
        if column.allowed:
            found.append((f"{self.text} NOT IN {literals(column.allowed)}", f"must be one of: {', '.join(column.allowed)}"))
        if self.is_key:
            found.append((f"octet_length({self.text}) > {LONGEST_KEY}", f"is longer than {LONGEST_KEY} bytes"))
        if column.lookup is not None:
            codes = f"SELECT code FROM holdfast.reference_values WHERE list = {literal(column.lookup)}"
            found.append((f"{self.text} NOT IN ({codes})", f"is not in the reference list {column.lookup}"))
        return found

    @property
    def _number(self) -> str:
        """The text of a number with a decimal point."""
        return self.text if self.decimal == "." else f"translate({self.text}, ',.', '.')"

    @property
    def _iso(self) -> str:
        """The text of a date as YYYY-MM-DD."""
        if self.form == "YYYY-MM-DD":
            return self.text
        parts = [f"substr({self.text}, {self.form.index(part) + 1}, {len(part)})" for part in ("YYYY", "MM", "DD")]
        return "(" + " || '-' || ".join(parts) + ")"

    @property
    def form(self) -> str:
        """How a date is written."""
        return self.column.format or "YYYY-MM-DD"


@functools.cache
def usual_dates(year: int, form: str) -> str:
    """The dates of this year, the one before and the one after, as an array. Nearly all dates of a file are in it, and to look
    one up takes a tenth of the time of the other checks."""
    begin, end = (date(min(max(one, 1000), 9999), 1, 1) for one in (year - 1, year + 2))
    days = (begin + timedelta(days=number) for number in range((end - begin).days))
    written = form.replace("YYYY", "%Y").replace("MM", "%m").replace("DD", "%d")
    return "{" + ",".join(day.strftime(written) for day in days) + "}"


# A regular expression takes ten times as long as these functions, so only texts that are not plain digits meet one.


def _wrong_integer(one: Checked) -> list[tuple[str, str]]:
    plain = f"translate({one.text}, {DIGITS}, '') = '' AND length({one.text}) <= 18"
    return [(f"NOT ({plain}) AND {one.text} !~ {literal(INTEGER)}", "is not an integer")]


def _wrong_decimal(one: Checked) -> list[tuple[str, str]]:
    number = one._number
    plain = f"translate({number}, {DIGITS}, '') IN ('', '.') AND length({number}) BETWEEN 2 AND 30"
    found = [(f"NOT ({plain}) AND {number} !~ {literal(DECIMAL)}", "is not a decimal number")]
    if one.decimal == ",":
        found.insert(0, (f"{one.text} !~ {literal(GROUPED)}", "is not a decimal number with a decimal comma"))
    return found


def _wrong_boolean(one: Checked) -> list[tuple[str, str]]:
    return [(f"lower({one.text}) NOT IN {literals((*TRUE, *FALSE))}", "is not a boolean; use true or false")]


def _wrong_date(one: Checked) -> list[tuple[str, str]]:
    reason = f"is not a date like {one.form}"
    shape = one.form.translate(str.maketrans("YMD", "000"))
    month, day = (f"""substr({one._iso}, {begin}, 2) COLLATE "C\"""" for begin in (6, 9))
    last_day = f"extract(day FROM (substr({one._iso}, 1, 7) || '-01')::date + interval '1 month - 1 day')"
    return [
        (f"translate({one.text}, '123456789', '000000000') <> {literal(shape)} OR {one._iso} LIKE '0%'", reason),
        (f"{month} NOT BETWEEN '01' AND '12' OR {day} = '00'", reason),
        (f"{day} > '28' AND substr({one._iso}, 9, 2)::integer > {last_day}", reason),
    ]


WRONG: Final[dict[str, Callable[[Checked], list[tuple[str, str]]]]] = {
    "text": lambda one: [],
    "integer": _wrong_integer,
    "decimal": _wrong_decimal,
    "boolean": _wrong_boolean,
    "date": _wrong_date,
}
VALUES: Final[dict[str, Callable[[Checked], str]]] = {
    "text": lambda one: one.text,
    "integer": lambda one: f"({one.text})::bigint",
    "decimal": lambda one: f"({one._number})::numeric",
    "boolean": lambda one: f"(lower({one.text}) IN {literals(TRUE)})",
    "date": lambda one: f"({one._iso})::date",
}
