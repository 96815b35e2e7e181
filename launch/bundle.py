"""What travels to the workers: the code of a clone, or a wheel, with the configs that the command names."""

import io
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .command import Refused


def default_code() -> Path | None:
    """The clone that this file is in; None in an installed package."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "setup.py").is_file() else None


def code_files(code: Path) -> dict[str, Path]:
    """Name in the bundle -> file: a wheel, or what git tracks or could track in a clone, edited or not.

    Raises:
      Refused: neither.
    """
    if code.suffix == ".whl" and code.is_file():
        return {code.name: code}
    if not (code / "setup.py").is_file():
        raise Refused(f"no code in {code}", "give --code=CLONE or --code=FILE.whl")
    listing = ["git", "-C", str(code), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git can't list the files of {code}", "give --code=CLONE, of git, or --code=FILE.whl")
    names = [name for name in done.stdout.split("\0") if name]
    return {name: code / name for name in names if (code / name).is_file()}


def config_files(command: Sequence[str], here: Path) -> dict[str, Path]:
    """Name in the bundle -> config file below `here` that `--config=PATH[:ARG]` or `--config PATH` names.

    Raises:
      Refused: it lies elsewhere on this machine.
    """
    found: dict[str, Path] = {}
    for word, before in zip(command, ("", *command), strict=False):
        value = word if before == "--config" else word.removeprefix("--config=") if "=" in word else ""
        if value == word and before != "--config":
            continue
        name = value.split(".py", 1)[0] + ".py"
        if not (here / name).is_file():
            continue  # a shipped name, or a file that is there already
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Refused(f"the config {name} lies outside of this folder", "give a path below it")
        found[name] = here / name
    return found


def pack(target: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Writes a .tgz that only this user can read: files below code/, and texts beside it."""
    target.touch(mode=0o600)
    with tarfile.open(target, "w:gz") as tar:
        for name, path in files.items():
            tar.add(path, f"code/{name}", recursive=False)
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o600
            tar.addfile(entry, io.BytesIO(text.encode()))
