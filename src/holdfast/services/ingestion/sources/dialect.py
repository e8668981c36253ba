"""Detect how a CSV file is written: encoding, delimiter, quote, decimal separator. Pure; works on the first piece of a file.

The detected choice is reported with the result of the job, and each part can be given instead. A guess that would be wrong
half of the time is not made: a single column has no delimiter, and without evidence the decimal separator is a point. 1,5 is
evidence of a comma: it is no number otherwise. 1,234 and 1.234 are none: three digits may be thousands.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import UsageError
from holdfast.extras import lazily

if TYPE_CHECKING:
    import charset_normalizer
else:
    charset_normalizer = lazily("charset_normalizer")

SAMPLE: Final = 256 * 1024  # bytes
DELIMITERS: Final = (",", ";", "\t", "|")
BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Tried in this order of preference when several fit: the encodings in which back offices export.
LIKELY: Final = ("cp1252", "cp1250", "mac_roman", "cp850")
ENOUGH_LETTERS: Final = 0.8
DECIMAL_COMMA: Final = re.compile(r"^[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+$")
MAY_BE_THOUSANDS: Final = re.compile(r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$")
DECIMAL_POINT: Final = re.compile(r"^[+-]?(\d{1,3}(,\d{3})+|\d+)\.\d+$")


class UnreadableFile(UsageError):
    """The file cannot be read as the format that it should have."""

    slug = "unreadable-file"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written. `None` in what a user gives: to be detected."""

    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise UsageError(f"encoding {self.encoding!r} is unknown; use a name such as utf-8 or cp1252") from None
        for name, one in (("delimiter", self.delimiter), ("quote", self.quote)):
            if one is not None and (len(one) != 1 or one in "\r\n\\" or ord(one) > 127):
                raise UsageError(f"{name} {one!r} must be one ASCII character, and neither a line break nor a backslash")
        if self.delimiter is not None and self.delimiter == self.quote:
            raise UsageError(f"delimiter and quote are both {self.delimiter!r}; use different characters")
        if self.decimal not in (None, ".", ","):
            raise UsageError(f"decimal separator {self.decimal!r} must be '.' or ','")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def detect(sample: bytes, given: Dialect | None = None) -> Dialect:
    """The dialect of a file that begins with this sample; what is given is not detected."""
    given = given or Dialect()
    encoding = given.encoding or encoding_of(sample)
    text = text_of(sample, encoding)
    delimiter = given.delimiter or delimiter_of(text)
    quote = given.quote or quote_of(text, delimiter)
    decimal = given.decimal or decimal_of(text, delimiter, quote)
    return replace(given, encoding=encoding, delimiter=delimiter, quote=quote, decimal=decimal)


def encoding_of(sample: bytes) -> str:
    """The encoding, from the byte order mark, from the validity as UTF-8, or from the frequency of characters."""
    for bom, encoding in BOMS:
        if sample.startswith(bom):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # the sample may end within a character
    except UnicodeDecodeError:
        best = max(LIKELY, key=lambda encoding: letters_share(sample, encoding))  # the first of those that are equal
        if letters_share(sample, best) >= ENOUGH_LETTERS:
            return best
        other = charset_normalizer.from_bytes(sample).best()
        return best if other is None else str(other.encoding)
    return "utf-8"


def letters_share(sample: bytes, encoding: str) -> float:
    """How many of the characters beyond ASCII are letters, in this encoding. A wrong one makes signs of them."""
    try:
        beyond = [sign for sign in sample.decode(encoding) if ord(sign) > 127 and not sign.isspace()]
    except UnicodeDecodeError:
        return 0.0
    return sum(sign.isalpha() for sign in beyond) / len(beyond) if beyond else 0.0


def without_bom(sample: bytes) -> int:
    """The number of bytes of the byte order mark."""
    return next((len(bom) for bom, _ in BOMS if sample.startswith(bom)), 0)


def text_of(sample: bytes, encoding: str) -> str:
    """The complete lines of the sample."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample[without_bom(sample) :])
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"the file is not {encoding}: {error.reason} at byte {error.start}; give its encoding") from None
    if len(sample) < SAMPLE:
        return text
    return text[: text.rfind("\n") + 1] or text


def delimiter_of(text: str) -> str:
    """The character that splits most lines into the same number of fields, more than one; a comma if there is none."""
    best, score = ",", 0.0
    lines = text.splitlines()[:200]
    for delimiter in DELIMITERS:
        widths = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter) if row)
        if not widths:
            continue
        width, count = widths.most_common(1)[0]
        if width > 1 and (count / widths.total(), width) > (score, 0):
            best, score = delimiter, count / widths.total()
    return best


def quote_of(text: str, delimiter: str) -> str:
    """A double quote, unless only single quotes surround fields."""
    around = re.compile(rf"(?:^|{re.escape(delimiter)})'[^'\n]*'(?={re.escape(delimiter)}|$)", re.MULTILINE)
    return "'" if '"' not in text and len(around.findall(text)) > 1 else '"'


def decimal_of(text: str, delimiter: str, quote: str) -> str:
    """A comma if more numbers of the sample have it as their decimal separator than a point; otherwise a point."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote)
    seen: Counter[str] = Counter()
    for field in (field.strip() for row in _some(rows) for field in row):
        if MAY_BE_THOUSANDS.match(field):
            continue
        seen[","] += bool(DECIMAL_COMMA.match(field))
        seen["."] += bool(DECIMAL_POINT.match(field))
    return "," if seen[","] > seen["."] else "."


def _some(rows: Any) -> Sequence[list[str]]:
    try:
        return [row for row, _ in zip(rows, range(2000), strict=False)]
    except csv.Error:
        return []
