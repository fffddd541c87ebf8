"""What in a table looks like a mistake, in sentences: nothing is done about it unless a person says so."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from fedclade.data.own.labels import WHOLE, whole_number
from fedclade.data.own.tables import Table, is_text, is_written_number, numbers_of, texts_of

FEW = 20  # rows, below which nothing stands out
NINES = re.compile(r"-9{2,}|9{3,}")  # what is written for a missing value where a number must stand
# 1,059,956.76, 1.063.550,28, 1 059 956 or 3,14: what programs take for text where a plain number is meant
GROUPED = re.compile(r"[-+]?(\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?|\d+,\d+)")
TRUTHS = {"true": "1", "false": "0"}
IDENTIFIER = re.compile(r"(^|[_ .-])(id|nr|no|index)$", re.IGNORECASE)


def suspicions(table: Table) -> Iterator[str]:
    """A sentence for each column of features that is probably none."""
    for name, column in zip(table.names, table.columns, strict=True):
        if len(table) < FEW:
            return
        numbers = numbers_of(column, table.raw)
        if numbers is not None:
            yield from _of_numbers(name, numbers)
        elif is_text(column):
            yield from _of_texts(name, texts_of(column), table.raw)


def _of_numbers(name: str, numbers: np.ndarray) -> Iterator[str]:
    values = np.unique(numbers[np.isfinite(numbers)])
    if len(values) < 2:
        return
    for end, rest in ((values[0], values[1:]), (values[-1], values[:-1])):
        is_apart = np.abs(rest - end).min() > rest[-1] - rest[0]
        if NINES.fullmatch(f"{end:.15g}") and is_apart:
            yield f"column {name!r} holds {end:g}: if that means a missing value, set data.gaps='[\"{end:g}\"]'"
    is_counting = len(values) == len(numbers) and (values == np.rint(values)).all()
    if is_counting and (IDENTIFIER.search(name) or values[-1] - values[0] == len(values) - 1):
        yield f"column {name!r} holds another whole number in every row: if it is an id, leave it out (data.ignore)"


def _of_texts(name: str, texts: np.ndarray, raw: bool) -> Iterator[str]:
    values = {text for text in texts if text is not None}
    words = sorted(text for text in values if not is_written_number(text))
    if words and 2 * sum(GROUPED.fullmatch(word) is not None for word in words) > len(words):
        yield f"column {name!r} looks like numbers with separators, as {words[0]!r}: write them plainly, as 1059956.76"
    elif words and len(words) < len(values) / 2:
        remedy = f"set data.gaps='[\"{words[0]}\"]'" if raw else "leave such cells empty"
        yield f"column {name!r} is taken for text because of {words[0]!r}: if that means a missing value, {remedy}"
    elif len(values) > len(texts) / 2:
        yield (
            f"column {name!r} holds another text in most rows: if it is an id, a date or free text, leave it out "
            "(data.ignore)"
        )


def lookalikes(words: Iterable[str]) -> list[str]:
    """The first words that differ only in capitals, in spaces, or in how a number or a truth is written."""
    same: dict[str, list[str]] = {}
    for word in words:
        plain = " ".join(word.split()).casefold()
        plain = TRUTHS.get(plain, plain)
        same.setdefault(str(whole_number(plain)) if WHOLE.fullmatch(plain) else plain, []).append(repr(word))
    return next((found for found in same.values() if len(found) > 1), [])
