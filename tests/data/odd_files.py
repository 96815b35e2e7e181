"""Access to the odd inputs in `golden/cases`."""

import json
import tarfile
from pathlib import Path

_CASES = Path(__file__).parent.parent / "golden" / "cases"


def expected(case: str):
    """The numbers to expect for a case."""
    return json.loads((_CASES / "images_expected.json").read_text(encoding="utf-8"))[case]


def read(name: str) -> bytes:
    """Bytes of a file."""
    return (_CASES / name).read_bytes()


def unpack(name: str, destination: Path) -> str:
    """Unpacks NAME.tgz and returns the root of the image folder in it."""
    with tarfile.open(_CASES / f"{name}.tgz") as archive:
        archive.extractall(destination, filter="data")
    return str(destination / name)


def path(name: str) -> str:
    """Path of a file."""
    return str(_CASES / name)
