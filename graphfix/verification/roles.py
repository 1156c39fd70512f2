"""What the usual names of inputs mean, for inputs whose use tells nothing: the last resort."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The first that fits counts.
_MASK = re.compile(r"mask|padding|segment|token_?type")
_LENGTH = re.compile(r"len(gth)?s?($|[^a-z])")
_POSITION = re.compile(r"pos(ition)?s?(_?ids?)?($|[^a-z])")
_CLASS = re.compile(r"labels?$|class(es)?$|batch_ind")
_WHOLE = re.compile(r"ids?$|tokens?$")


def usual_range(name: str, kind: str, shapes: Mapping[str, tuple[int | None, ...]]) -> tuple[int, int] | None:
    """The half-open range that inputs of such a name have, None when the name tells nothing.

    ``kind`` is the kind of the dtype. A mask is 0 or 1 in any dtype. Lengths go up to the second axis of the other
    inputs, positions stay below it.
    """
    text = name.rpartition(".")[2].casefold() if "." in name else name.casefold()
    if _MASK.search(text):
        return 0, 2
    if kind not in "iu":
        return None
    longest = min((s[1] for other, s in shapes.items() if other != name and len(s) > 1 and s[1]), default=4)
    if _LENGTH.search(text):
        return 1, longest + 1
    if _POSITION.search(text):
        return 0, max(longest, 1)
    if _CLASS.search(text):
        return 0, 2
    return (0, 9) if _WHOLE.search(text) else None
