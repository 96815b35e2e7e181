"""The one exception for what a user can mend."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something the user gave can't be used: says what, and how to mend it.

    The command line prints it as `error: <what> (<remedy>)` and exits with 2.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")
        self.what = what
        self.remedy = remedy


def known_names(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known ones, or all of them when none is near."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "known: " + ", ".join(known)
