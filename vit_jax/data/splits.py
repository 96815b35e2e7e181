"""Split expressions as in TFDS: `train`, `train[:98%]`, `train[:800]+train[2754:2954]`, `all[-10%:]`.

Braces take a slice of the split in a fixed random order instead, that is a random share of it: `train{10%}`,
`train{10%:30%}`, `train[:98%]{90%:}`, `train{1000-stratified#2}` (see `shares`).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from vit_jax.errors import UsageError

_TERM = re.compile(
    r"""\s* (?P<name>[\w.-]+) \s*
        (?: \[ \s* (?P<start>-?\d[\d_]*%?)? \s* : \s* (?P<stop>-?\d[\d_]*%?)? \s* \] )? \s*
        (?P<share> \{ [^{}]* \} )? \s*""",
    re.VERBOSE,
)
_BOUND = r"-?\d[\d_]*(?:\.\d+%|%)?"
_SHARE = re.compile(
    rf"""\{{ \s* (?: (?P<first>{_BOUND}) | (?P<start>{_BOUND})? \s* : \s* (?P<stop>{_BOUND})? ) \s*
         (?P<stratified> -stratified )? (?: \# (?P<seed>\d+) )? \s* \}}""",
    re.VERBOSE,
)
_EXAMPLE = "write 'train', 'train[:98%]', 'train[100:-50]', 'train{10%}' or 'train[:800]+test'"


@dataclass(frozen=True)
class Slice:
    """A range of examples; bounds are None, '10', '-10', '5%' or '-5%', of shares '2.5%' too."""

    start: str | None
    stop: str | None

    def range(self, count: int) -> tuple[int, int]:
        """(first, past the last) among `count` examples; an empty slice has both equal.

        Raises:
          UsageError: a bound beyond them.
        """
        start = 0 if self.start is None else self._place(self.start, count)
        stop = count if self.stop is None else self._place(self.stop, count)
        return start, max(start, stop)

    def _place(self, bound: str, count: int) -> int:
        """A bound as a place; percents go to the closest place, as TFDS rounds by default."""
        number = Fraction(bound.rstrip("%"))
        limit = 100 if bound.endswith("%") else count
        if abs(number) > limit:
            raise UsageError(
                f"split {self}: {bound} is beyond its {count} examples",
                f"bounds go from {-limit} to {limit}" + ("%" if bound.endswith("%") else ""),
            )
        place = round(number * count / 100) if bound.endswith("%") else int(number)
        # -0% is the start, as a bound of 0 is; -n% that rounds to 0 is the end.
        return place + count if number < 0 else place

    def __str__(self) -> str:
        return f"{self.start or ''}:{self.stop or ''}"


@dataclass(frozen=True)
class Share(Slice):
    """A slice in a random order.

    Attributes:
      stratified: of every class as large a share as of the whole.
      seed: each has an order of its own.
    """

    stratified: bool = False
    seed: int = 0

    def __str__(self) -> str:
        seed = f"#{self.seed}" if self.seed else ""
        return f"{{{super().__str__()}{'-stratified' if self.stratified else ''}{seed}}}"


@dataclass(frozen=True)
class Term(Slice):
    """One term: a split's name, a slice of it, and a share of that."""

    name: str
    share: Share | None = None

    def __str__(self) -> str:
        whole = self.start is None and self.stop is None
        return self.name + ("" if whole else f"[{super().__str__()}]") + str(self.share or "")


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
        share = None if match["share"] is None else _parse_share(match["share"], expression)
        terms.append(Term(match["start"], match["stop"], match["name"], share))
    return tuple(terms)


def _parse_share(text: str, expression: str) -> Share:
    match = _SHARE.fullmatch(text)
    if match is None or (match["first"] or "").startswith("-"):
        raise UsageError(
            f"split {expression!r} can't be parsed at {text!r}",
            "write '{10%}', '{5000}', '{10%:30%}', '{90%:}', '{10%-stratified}' or, for another draw, '{10%#1}'",
        )
    stop = match["first"] or match["stop"]
    return Share(match["start"], stop, match["stratified"] is not None, int(match["seed"] or 0))
