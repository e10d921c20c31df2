"""Text of others made visible: nothing in it is a control code, markup or a formula.

Whoever wrote a ledger chose its labels.  On a terminal an escape sequence could clear the screen, a
line break could begin with a verdict, and a mark that turns the direction of writing could reverse
what is read; in Markdown and in plots there is syntax.  All text that comes from a ledger passes
through here before it is shown.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 2000
"""Characters of one piece of text that are shown."""

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and symbols that show nothing."""
_MARKUP = re.compile(r"[\\`*\[\]<>|&~$]|(?<![^\W_])_|_(?![^\W_])")
_OPENING = re.compile(r"^(?:[-+=#:]|\d+(?=[.)](?:\s|$)))")
_LINK = re.compile(
    r":(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)|(?<=\bmailto):|(?<=\bxmpp):", re.IGNORECASE
)


def visible(text: str, most: int = LONGEST) -> str:
    r"""``text`` on one line, with everything that cannot be seen written as an escape.

    Examples:
        >>> visible("rate [/day]\x1b[2J\n\u202eVERIFIED")
        'rate [/day]\\x1b[2J\\n\\u202eVERIFIED'
    """
    if len(text) > most:
        text = f"{text[:most]}… ({len(text)} characters)"
    if text.isascii() and text.isprintable():
        return text
    found = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        shown = marks <= 2 and _shows(character)
        found.append(character if shown else character.encode("unicode_escape").decode("ascii"))
    return "".join(found)


def markdown(text: str) -> str:
    r"""``text`` as it stands inside a line of Markdown, a list item or a cell of a table.

    Examples:
        >>> markdown("<b>[x](y)</b> of car_market")
        '&lt;b&gt;\\[x\\](y)&lt;/b&gt; of car_market'
    """
    shown = _MARKUP.sub(_entity, re.sub(" +", " ", visible(text)).strip())
    shown = _LINK.sub(lambda found: f"&#{ord(found[0])};", shown)
    opening = _OPENING.match(shown)
    if opening is None:
        return shown
    end = opening.end()
    return f"{shown[:end]}\\{shown[end:]}" if shown[0].isdigit() else f"\\{shown}"


def in_plot(text: str, most: int = 80) -> str:
    r"""``text`` as a label of a picture: no formula, and not hidden from its legend.

    Examples:
        >>> in_plot("_price in $")
        ' _price in \\$'
    """
    shown = visible(text, most).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def in_json(text: str, *, ascii_only: bool = False) -> str:
    r"""JSON that says the same, with what cannot be seen (or is not ASCII) as ``\u`` escapes.

    Examples:
        >>> in_json('"\x9b2J"')
        '"\\u009b2J"'
    """
    shown = str.isascii if ascii_only else _shows
    hidden = {ord(c): _json_escape(c) for c in set(text) if c != "\n" and not shown(c)}
    return text.translate(hidden) if hidden else text


def _shows(character: str) -> bool:
    if character in _BLANK or "\ufe00" <= character <= "\ufe0f":
        return False
    return character.isprintable() and not "\U000e0100" <= character <= "\U000e01ef"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _entity(found: re.Match[str]) -> str:
    named = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "∣"}
    return named.get(found[0], f"\\{found[0]}")
