"""What a user is told: refusals before any work, and failures of a run."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something the user gave can't be used: says what, and how to mend it.

    The command line prints the details first, then `error: <what> (<remedy>)` as the last line, and exits with 2.
    """

    def __init__(self, what: str, remedy: str, details: str = "") -> None:
        """what and remedy: one line each; details: more lines, such as a table of differences."""
        super().__init__(f"{what} ({remedy})" + (f"\n{details}" if details else ""))
        self.what = what
        self.remedy = remedy
        self.details = details

    def __reduce__(self) -> tuple:
        """Survives the way out of a worker process."""
        return type(self), (self.what, self.remedy, self.details)


class RunFailed(RuntimeError):
    """A run that had started failed, for a reason that the message tells in full, with a remedy.

    The command line prints it as it is and exits with 1.
    """


# Up to so many known names are all shown, beside the nearest.
_SHORT_LIST = 16


def known_names(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known ones; all of them too, unless there are many."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(repr(n) for n in near) + "?" if near else ""
    listed = "known: " + ", ".join(known) if len(known) <= _SHORT_LIST or not near else ""
    return " ".join(filter(None, (hint, listed)))
