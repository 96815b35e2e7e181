"""`folder:ROOT`: images in ROOT/SPLIT/CLASS/, or in ROOT/CLASS/ when ROOT has no split folders.

- Classes are the first-level folders, in the order of their names as strings (so "10" before "2").
  Images in folders below count for the first-level folder.
- Within a class the order is that of the relative paths as bytes. Names are kept byte for byte.
- ROOT may be an address (gs://bucket/images): listed at every start, a request for every thousand images.
- Hidden files and folders (leading dot), `__MACOSX` and files of other extensions are ignored.
- A root without split folders has one split, `all`; it also serves a default split.

Millions of files: names live in one bytes object per class set, places in one numpy array.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data import tree
from vit_jax.data.source import Catalog, ClassMap, Example, Source, shorten
from vit_jax.errors import UsageError

EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    ".pnm",
)  # fmt: skip
_EXTENSIONS = frozenset(e.encode() for e in EXTENSIONS)
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
# A root with one of these has splits; without any, its folders are the classes.
SPLIT_NAMES = (
    "train", "training", "val", "valid", "validation", "dev", "minival", "test", "testing", "eval",
)  # fmt: skip
_LAYOUT = "images belong in ROOT/SPLIT/CLASS/ or ROOT/CLASS/"


class FolderCatalog(Catalog):
    """The splits of one root folder."""

    def __init__(self, location: str, *, warn_absent: bool = True) -> None:
        """`warn_absent`: whether classes without images in a split are worth a warning."""
        self._warn_absent = warn_absent
        self.root = os.path.expanduser(location)
        if self.root.lower().endswith(_ARCHIVES) and not tree.is_folder(self.root):
            raise UsageError(f"folder:{location} is an archive, which isn't supported", _unpack(location))
        if not tree.is_folder(self.root):
            raise UsageError(f"folder:{location}: no such folder", "check the path; " + _LAYOUT)
        self._folders = tuple(os.fsdecode(name) for name in tree.subfolders(os.fsencode(self.root)))
        named = tuple(name for name in self._folders if name.lower() in SPLIT_NAMES)
        self.splits = named or ("all",)

    def has(self, split: str) -> bool:
        return split in self.splits or split in self._folders

    def remedy(self) -> str:
        if self.splits == ("all",):
            return f"{self.root} has class folders only: use @all, or a part such as @all[:90%]"
        return super().remedy()

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        flat = split == "all" and self.splits == ("all",) and split not in self._folders
        path = self.root if flat else os.path.join(self.root, split)
        return FolderSource(f"folder:{self.root}", split, path, classes, warn_absent=self._warn_absent)


class FolderSource(Source):
    """The images below PATH/CLASS/. Files are read when asked for."""

    def __init__(
        self, spec: str, split: str, path: str, classes: Sequence[str] | None, *, warn_absent: bool = True
    ) -> None:
        self.spec, self.split = spec, split
        self._root = os.fsencode(path)
        folders = tree.subfolders(self._root)
        blobs, lengths, counts = [], [], []
        for folder in folders:
            names = sorted(_images(os.path.join(self._root, folder)))
            blobs.append(b"".join(names))
            lengths.append(np.fromiter(map(len, names), np.uint16, len(names)))
            counts.append(len(names))
        if sum(counts) == 0:
            raise _nothing_found(path, folders)
        self._folders = folders
        self._blob = b"".join(blobs)
        self._name_ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        self._class_ends = np.cumsum(counts, dtype=np.int64)
        self._class_map(counts, classes, path, warn_absent)

    def _class_map(
        self, counts: list[int], classes: Sequence[str] | None, path: str, warn_absent: bool
    ) -> None:
        """Labels by name. An empty folder that the run's class map lacks does no harm."""
        known = None if classes is None else set(classes)
        own = [os.fsdecode(f) for f in self._folders]
        kept = [i for i, name in enumerate(own) if known is None or name in known or counts[i]]
        class_map = ClassMap([own[i] for i in kept], classes, path)
        if warn_absent:
            class_map.warn_absent(np.asarray([counts[i] for i in kept]), path)
        self.classes = class_map.classes
        self._table = np.full(len(own), -1, np.int32)
        self._table[kept] = class_map.table

    def __len__(self) -> int:
        return len(self._name_ends)

    def __getitem__(self, index: int) -> Example:
        path, own = self._path(index)
        return Example(tree.read_file(path), int(self._table[own]), os.fsdecode(path))

    def name(self, index: int) -> str:
        return os.fsdecode(self._path(index)[0])

    def _path(self, index: int) -> tuple[bytes, int]:
        """Path of an example and its folder's number."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        own = int(np.searchsorted(self._class_ends, index, side="right"))
        start = int(self._name_ends[index - 1]) if index else 0
        name = self._blob[start : int(self._name_ends[index])]
        return os.path.join(self._root, self._folders[own], name), own

    def memory_bytes(self) -> int:
        return len(self._blob) + self._name_ends.nbytes + self._class_ends.nbytes

    def labels(self) -> np.ndarray:
        return np.repeat(self._table, np.diff(self._class_ends, prepend=0))


def image_files(folder: str) -> list[str]:
    """Paths of all images in a folder and the folders below it, FOLDER/..., sorted as bytes.

    Raises:
      UsageError: there is none.
    """
    root = os.fsencode(folder)
    found = sorted(_images(root))
    if not found:
        raise UsageError(f"no images in {folder}", f"images are files ending in {' '.join(EXTENSIONS)}")
    return [os.fsdecode(os.path.join(root, name)) for name in found]


def _images(path: bytes) -> Iterator[bytes]:
    """Paths of the images below `path`, relative to it, in no order."""
    return (name for name in tree.files_below(path) if os.path.splitext(name)[1].lower() in _EXTENSIONS)


def _unpack(archive: str, folder: str | None = None) -> str:
    """What to do with an archive, or with all in a folder."""
    if not archive.lower().endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
        return f"unpack {archive} first"
    return f"unpack {archive} first, or: python -m vit_jax.prepare {folder or archive} DESTINATION"


def _nothing_found(path: str, folders: list[bytes]) -> UsageError:
    """The error for a split without images: says what was searched and what lies there instead."""
    names = tree.names(path)
    archives = sorted(n for n in names if n.lower().endswith(_ARCHIVES))
    loose = sum(os.path.splitext(n)[1].lower() in EXTENSIONS and not n.startswith(".") for n in names)
    searched = f"{len(folders)} class folders" + (
        f" ({shorten([os.fsdecode(f) for f in folders])})" if folders else ""
    )
    what = f"no images in {path}: searched {searched} for files ending in {' '.join(EXTENSIONS)}, in any case"
    if archives:
        return UsageError(what, f"archives aren't supported, {_unpack(archives[0], path)}")
    if loose:
        return UsageError(what, f"{loose} images lie beside the class folders; {_LAYOUT}")
    return UsageError(what, _LAYOUT)
