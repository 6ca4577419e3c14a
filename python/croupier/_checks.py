"""Checks arguments as soon as they are given. Later, each step would fail because of them."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

#: The largest numbers of the wire.
MOST = (1 << 32) - 1
MOST_64 = (1 << 64) - 1
#: Most field names that a message lists, and most characters of a value that it shows.
_SHOWN, _LONG = 20, 400
_T = TypeVar("_T")


def check_known(of: str, given: Iterable[str], known: Iterable[str], kind: str, meant: Mapping[str, str | None] = {},
                differs: Mapping[str, str] = {}, elsewhere: Mapping[str, str] = {}) -> None:
    """Refuses unknown names. The message suggests the known name that is meant, with how it differs; or what to use
    instead; or the nearest known name. If the meaning is None, nothing is near."""
    known = list(known)
    for name in given:
        if name not in known:
            near = [] if meant.get(name, name) is None or name in elsewhere else _near(name, meant.get(name), known)
            # All known names if there are few enough to read, with the near ones first.
            rest = [other for other in known if other not in near]
            there = f"; known: {', '.join([*near, *rest])}" if len(known) <= _SHOWN else ""
            how = f" {differs[name]}" if name in differs else ""
            instead = f"; {elsewhere[name]}" if name in elsewhere else ""
            raise TypeError(f"{of} has no {kind} {name!r}" + (f"; did you mean {near[0]!r}?{how}" if near else instead) + there)


def _near(name: str, meant: str | None, known: list[str]) -> list[str]:
    """The known name that is meant, as a list of one or none. It is the name given in `meant`, or the same name in
    another style, or else the most similar name, or else the only name that contains it."""
    same = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if exact := [other for other in (meant, same) if other in known]:
        return exact[:1]
    near = difflib.get_close_matches(name, known, 1)
    if not near and len(name) > 2 and len(within := [other for other in known if name in other]) == 1:
        near = within
    return near


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number, of Python or of a library."""
    try:
        # To Python, True is one too.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {value!r}, must be a whole number")
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} is {number}, must be " + (f"at least {least}" if most is None else f"in {least} ..= {most}"))
    return number


def listed(name: str, given: Iterable[_T], of: str, one: str) -> list[_T]:
    """Checks that something is a list, even if it has only one entry."""
    try:
        each = None if isinstance(given, (str, bytes, Mapping)) else iter(given)
    except TypeError:
        each = None
    if each is None:
        raise TypeError(f"{name} is {type(given).__name__}, must be a list of {of}, such as [{one}]")
    return list(each)


def check_once(name: str, texts: Iterable[int | None]) -> None:
    """Checks that each text, by its id, is given only once: the server would do its first work and refuse the
    second."""
    ids = list(texts)
    if len({*ids}) == len(ids):
        return
    first: dict[int, int] = {}
    for at, number in enumerate(ids):
        if number is not None and first.setdefault(number, at) != at:
            raise ValueError(f"sequence {number} is in {name}[{first[number]}] and in {name}[{at}]; a text can have one work in a step, "
                             "send the second one in the next step")


def shown(value: object) -> str:
    """A value in a message, or its beginning. It may be a row of a whole vocabulary, or a long schema."""
    said = repr(value)
    return said if len(said) <= _LONG else f"{said[:_LONG]}..."


def text(name: str, value: Any) -> str:
    """Checks that something is text. protobuf and gRPC would also complain, but without naming the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}, must be a string")
    check_unicode(name, value)
    return value


def check_unicode(name: str, value: str) -> None:
    """Refuses text that has no UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {shown(value)}, must be valid Unicode; {value[error.start]!r} is half of a character") from None


def header(name: str, value: str) -> str:
    """Checks text for a header. A message never shows the text, which may be a secret."""
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"{name} has characters that are not allowed in a header; use printable ASCII on one line")
    return value


def token_ids(name: str, given: Any) -> list[int]:
    """Token ids as Python numbers."""
    if isinstance(given, (str, bytes, dict)):
        raise TypeError(f"{name} is {type(given).__name__}, must be a list of token ids")
    try:
        # For numpy and torch. This is much faster than one by one.
        ids: list[Any] = list(given.tolist() if hasattr(given, "tolist") else list(given))
    except TypeError:
        raise TypeError(f"{name} is {given!r}, must be a list of token ids") from None
    if {*map(type, ids)} <= {int} and (not ids or (min(ids) >= 0 and max(ids) <= MOST)):
        return ids
    return [_token_id(f"{name}[{at}]", value) for at, value in enumerate(ids)]


def _token_id(name: str, value: Any) -> int:
    if isinstance(value, bool):
        # To Python it is a number. It comes from a mask in the place of ids.
        raise TypeError(f"{name} is {value!r}, must be a token id, a whole number")
    return below(name, value)


def sequence_id(value: Any) -> int:
    """A sequence id that the wire can have."""
    return below("sequence_id", value, MOST_64)


def below(name: str, value: Any, most: int = MOST) -> int:
    """An unsigned number of the wire."""
    return whole(name, value, 0, most)
