"""Split expressions as in TFDS: `train`, `train[:98%]`, `train[:800]+train[2754:2954]`, `all[-10%:]`."""

import re
from dataclasses import dataclass

from vit_jax.errors import UsageError

_TERM = re.compile(
    r"""\s* (?P<name>[\w.-]+) \s*
        (?: \[ \s* (?P<start>-?\d[\d_]*%?)? \s* : \s* (?P<stop>-?\d[\d_]*%?)? \s* \] )? \s*""",
    re.VERBOSE,
)
_EXAMPLE = "write 'train', 'train[:98%]', 'train[100:-50]' or 'train[:800]+test'"


@dataclass(frozen=True)
class Term:
    """One term: a split's name and a slice of it; bounds are None, '10', '-10', '5%' or '-5%'."""

    name: str
    start: str | None
    stop: str | None

    def range(self, count: int) -> tuple[int, int]:
        """(first, past the last) among `count` examples; an empty slice has both equal.

        Raises:
          UsageError: a bound beyond the split.
        """
        start = 0 if self.start is None else self._place(self.start, count)
        stop = count if self.stop is None else self._place(self.stop, count)
        return start, max(start, stop)

    def _place(self, bound: str, count: int) -> int:
        """A bound as a place; percents go to the closest place, as TFDS rounds by default."""
        number = int(bound.rstrip("%"))
        limit = 100 if bound.endswith("%") else count
        if abs(number) > limit:
            raise UsageError(
                f"split {self}: {bound} is beyond its {count} examples",
                f"bounds go from {-limit} to {limit}" + ("%" if bound.endswith("%") else ""),
            )
        if bound.endswith("%"):
            number = round(number * count / 100)
            # -0% is the start, as a bound of 0 is; -n% that rounds to 0 is the end.
            return number + count if bound.startswith("-") and int(bound.rstrip("%")) else number
        return number + count if number < 0 else number

    def __str__(self) -> str:
        if self.start is None and self.stop is None:
            return self.name
        return f"{self.name}[{self.start or ''}:{self.stop or ''}]"


def parse_split(expression: str) -> tuple[Term, ...]:
    """Reads a split expression.

    Raises:
      UsageError: it isn't one.
    """
    terms = []
    for part in expression.split("+"):
        match = _TERM.fullmatch(part)
        if match is None:
            raise UsageError(f"split {expression!r} can't be parsed at {part!r}", _EXAMPLE)
        terms.append(Term(match["name"], match["start"], match["stop"]))
    return tuple(terms)
