"""Text that is safe to print: what could move a cursor, end a line or turn text around is escaped.

Names of jobs and variables are checked where they are declared (`cairn.names`). Paths of listings,
rows and manifests that others wrote may hold anything.
"""

from __future__ import annotations

import re

# Controls, surrogates, separators of lines and paragraphs, marks that change the direction of text.
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ANY = re.compile(f"[{_UNPRINTABLE}]")
_ANY_BUT_LINES = re.compile(f"(?!\n)[{_UNPRINTABLE}]")


def is_printable(text: str) -> bool:
    """Tells whether nothing in a text has to be escaped."""
    return _ANY.search(text) is None


def printable(text: str, *, lines: bool = False) -> str:
    r"""Returns a text with what must not be printed as escapes, such as `\u001b`.

    They are those of JSON, too. With `lines`, a text may have several.
    """
    pattern = _ANY_BUT_LINES if lines else _ANY
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
