"""Tar archives read in place: one pass over the headers tells where every file lies.

A tar may hold class folders (`rose/1.jpg`, `train/rose/1.jpg`), tars of one class each, as ImageNet's do, or be one
of those (`n01440764.tar`). All become names as in an unpacked folder: `[SPLIT/]CLASS/FILE`. Compressed archives
can't be read at random: they are expanded once, beside the result, for as long as the work lasts.
"""

import bz2
import glob
import gzip
import hashlib
import itertools
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from vit_jax.data import tree
from vit_jax.data.decode import BadImage
from vit_jax.data.source_folder import SPLIT_NAMES
from vit_jax.errors import RunFailed, UsageError
from vit_jax.preparing.listing import Names, is_image

File = tuple[bytes, int, int]  # name, offset and size
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_OPENERS: dict[bytes, Callable] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class TarListing:
    """The regular files of some tars, in the order of the tars and of their content."""

    def __init__(self, paths: Sequence[str], prefixes: Sequence[bytes], found: Sequence[list[File]]) -> None:
        """prefixes: what goes before the names of a tar; found: per tar (name, offset, size) of its files."""
        self._paths = list(paths)
        self.names = Names(
            prefix + name for prefix, files in zip(prefixes, found, strict=True) for name, _, _ in files
        )
        self._tar = np.repeat(np.arange(len(paths), dtype=np.int32), [len(files) for files in found])
        self._offset = np.asarray([offset for files in found for _, offset, _ in files], np.int64)
        self._size = np.asarray([size for files in found for _, _, size in files], np.int64)

    def read(self, index: int) -> bytes:
        path, size = self._paths[self._tar[index]], int(self._size[index])
        name = f"{path}:{os.fsdecode(self.names[index])}"
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(int(self._offset[index]))
                data = file.read(size)
        except OSError as e:
            raise BadImage(name, f"can't be read: {e.strerror}") from e
        if len(data) < size:
            raise BadImage(name, "the archive is cut off")
        return data


def list_tars(location: str, scratch: Path, *, named: str) -> TarListing:
    """Lists a tar, a pattern of tars, or a folder of tars.

    Args:
      location: file, pattern with `*` or `{000..146}`, or folder; in a folder also those in its split folders.
      scratch: where compressed archives are expanded to.
      named: what goes before the name of a file besides its split: "class", the name of a tar that is one class
        (as all are where the images of any lie in no folder); "shard", the name of every tar; "split", nothing.

    Raises:
      UsageError: nothing there, or an archive that can't be read.
      RunFailed: no room to expand an archive.
    """
    paths, splits = find_tars(location)
    local = [_expanded(path, scratch) for path in paths]
    found = [list(_files(path, one)) for path, one in zip(paths, local, strict=True)]
    stems = [_stem(path) for path in paths]
    one_class = named == "class" and any(
        b"/" not in name and is_image(name) and not split_word(stem)
        for stem, files in zip(stems, found, strict=True)
        for name, _, _ in files
    )
    if one_class or named == "shard":
        found = [list(_below(os.fsencode(stem), files)) for stem, files in zip(stems, found, strict=True)]
    if len(paths) == 1 and named == "class":
        found[0] = _without_top(found[0])
    return TarListing(local, splits, found)


def find_tars(location: str) -> tuple[list[str], list[bytes]]:
    """Paths of the tars, and what their split puts before the names of their files: `train/`, or nothing.

    Raises:
      UsageError: there are none.
    """
    location = os.path.expanduser(location)
    if os.path.isdir(location):
        paths = _tars_in(location)
        named = [os.fsdecode(n) for n in tree.subfolders(os.fsencode(location))]
        for folder in [n for n in named if n.lower() in SPLIT_NAMES]:
            paths += _tars_in(os.path.join(location, folder))
        splits = [os.path.relpath(os.path.dirname(path), location) for path in paths]
        splits = ["" if split == os.curdir else split for split in splits]
    else:
        paths = [p for pattern in expand_braces(location) for p in sorted(glob.glob(pattern)) or [pattern]]
        splits = [""] * len(paths)
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or not paths:
        raise UsageError(
            f"tar:{location}: no such file {missing[0]}" if missing else f"no tar archives in {location}",
            f"archives end in {' '.join(SUFFIXES)}",
        )
    if not any(splits):
        words = [split_word(_stem(path)) for path in paths]
        splits = words if all(words) else splits
    return paths, [os.fsencode(f"{split}/") if split else b"" for split in splits]


def split_word(stem: str) -> str:
    """The one name of a split that is a word of a file's name, such as `train` of `ILSVRC2012_img_train`; or ''."""
    words = {word for word in re.split(r"[^a-z]+", stem.lower()) if word in SPLIT_NAMES}
    return words.pop() if len(words) == 1 else ""


def expand_braces(pattern: str) -> list[str]:
    """`a-{08..10}.tar` as a-08.tar, a-09.tar, a-10.tar; `{a,b}.tar` as a.tar, b.tar."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    numbers = _RANGE.fullmatch(match[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        words = [str(i).zfill(len(numbers[1])) for i in range(first, last + 1)]
    else:
        words = match[1].split(",")
    rest = expand_braces(pattern[match.end() :])
    return [pattern[: match.start()] + word + tail for word, tail in itertools.product(words, rest)]


def _tars_in(folder: str) -> list[str]:
    names = sorted(n for n in os.listdir(folder) if n.lower().endswith(SUFFIXES) and not n.startswith("."))
    return [os.path.join(folder, name) for name in names]


def _stem(path: str) -> str:
    name = os.path.basename(path)
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def _below(folder: bytes, files: Iterable[File]) -> Iterator[File]:
    """The files as if they lay in this folder, unless they do."""
    start = folder + b"/"
    return ((name if name.startswith(start) else start + name, *place) for name, *place in files)


def _expanded(path: str, scratch: Path) -> str:
    """The archive as a tar that isn't compressed."""
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        opener = next((o for magic, o in _OPENERS.items() if start.startswith(magic)), None)
        if opener is None:
            return path
        facts = os.stat(path)
    except OSError as e:
        raise UsageError(f"{path} can't be read: {e.strerror}", "check the archive") from e
    key = hashlib.sha256(f"{os.path.abspath(path)} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[
        :16
    ]
    target = scratch / f"{key}.tar"
    if not target.exists():
        temporary = target.with_suffix(".part")
        try:
            with opener(path, "rb") as packed, open(temporary, "wb") as plain:
                shutil.copyfileobj(packed, plain, 2**20)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as e:
            raise UsageError(f"{path} can't be expanded: {e}", "fetch the archive again") from e
        except OSError as e:
            if e.errno is None:  # a decompressor's own kind
                raise UsageError(f"{path} can't be expanded: {e}", "fetch the archive again") from e
            raise RunFailed(
                f"can't expand {path} to {temporary}: {e.strerror} (make room, or expand it yourself)"
            ) from e
        temporary.rename(target)
    return str(target)


def _files(path: str, local: str) -> Iterator[File]:
    """(name, offset, size) of the regular files of a tar, and of the tars in it behind their own name."""
    try:
        with open(local, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            for name, offset, size in _walk(path, file, 0):
                if offset + size > end:
                    raise UsageError(f"{path} is cut off in {os.fsdecode(name)}", "fetch the archive again")
                yield name, offset, size
    except (tarfile.TarError, OSError, EOFError) as e:
        raise UsageError(
            f"{path} can't be read: {e}", "it must be a whole tar archive: fetch it again"
        ) from e


def _walk(path: str, file: object, base: int) -> Iterator[File]:
    earlier: dict[bytes, tuple[int, int]] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            archive.members.clear()  # it would keep a record of each
            name = os.fsencode(os.path.normpath(member.name))
            if member.isdir() or any(tree.ignored(part) for part in name.split(b"/")):
                continue
            if member.issym() or (
                member.islnk() and os.fsencode(os.path.normpath(member.linkname)) not in earlier
            ):
                if is_image(name):
                    raise UsageError(
                        f"{path} holds a link, {os.fsdecode(name)}",
                        "pack the files themselves (tar --dereference)",
                    )
                continue
            if member.islnk():
                offset, size = earlier[os.fsencode(os.path.normpath(member.linkname))]
            elif member.isreg() and not member.issparse():
                offset, size = base + member.offset_data, member.size
            else:
                continue
            earlier[name] = (offset, size)
            if not name.lower().endswith(b".tar"):
                yield name, offset, size
                continue
            stem = os.path.splitext(os.path.basename(name))[0]
            yield from _below(stem, _walk(path, archive.extractfile(member), base + member.offset_data))


def _without_top(files: list[File]) -> list[File]:
    """Without the one folder that all lies in (`flowers/rose/1.jpg`), unless that is the class or split itself."""
    images = [name for name, _, _ in files if is_image(name)]
    tops = {name.partition(b"/")[0] for name in images}
    if len(tops) != 1 or any(name.count(b"/") < 2 for name in images):
        return files
    top = tops.pop()
    if os.fsdecode(top).lower() in SPLIT_NAMES:
        return files
    start = len(top) + 1
    return _without_top([(n[start:], o, s) for n, o, s in files if n.startswith(top + b"/")])
