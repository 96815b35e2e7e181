"""Data sets that tensorflow-datasets has prepared as TFRecord, read without TensorFlow.

A TFRecord file is a row of records: length (8 bytes, little-endian), its checksum (4), the data, its checksum (4).
One pass over the lengths makes it random access. What the data means tensorflow-datasets itself knows without
TensorFlow: it is the same message as in ArrayRecord. Only the framing is ours, being a few lines; the readers at
hand either need TensorFlow or read from front to back.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from vit_jax.data.decode import BadImage
from vit_jax.data.source_tfds import TfdsCatalog
from vit_jax.errors import UsageError

_HEADER, _CHECKSUM = 12, 4


class AnyTfdsCatalog(TfdsCatalog):
    """As TfdsCatalog, also of what is stored as TFRecord."""

    formats = ("array_record", "tfrecord")

    def _records(self, split: str) -> Sequence[Mapping[str, Any]]:
        if self._builder.info.file_format.value == "array_record":
            return super()._records(split)
        info = self._builder.info
        paths = [str(path) for path in info.splits[split].filepaths]
        return TfrecordFiles(paths, info.features, self._decoders, info.splits[split].num_examples)


class TfrecordFiles(Sequence):
    """The records of some files, one after the other."""

    def __init__(
        self, paths: Sequence[str], features: Any, decoders: Mapping[str, Any], expected: int
    ) -> None:
        """Finds the records.

        Args:
          paths: of the files.
          features: of tensorflow-datasets.
          decoders: likewise.
          expected: number of records.

        Raises:
          UsageError: a file that isn't there, isn't whole, or isn't TFRecord; another number of records.
        """
        self._paths, self._features, self._decoders = list(paths), features, dict(decoders)
        places = [record_places(path) for path in paths]
        self._file = np.repeat(np.arange(len(paths), dtype=np.int32), [len(p) for p in places])
        self._places = np.concatenate([np.zeros((0, 2), np.int64), *places])
        if len(self._places) != expected:
            raise UsageError(
                f"{os.path.dirname(paths[0])} holds {len(self._places)} records, its info says {expected}",
                "prepare the data set again",
            )

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """A record, decoded but for its images. Raises BadImage for one that is damaged."""
        path, (start, length) = self._paths[self._file[index]], self._places[index].tolist()
        name = f"{path}, record at byte {start - _HEADER}"
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(start)
                data = file.read(length + _CHECKSUM)
        except OSError as e:
            raise BadImage(name, f"can't be read: {e.strerror}") from e
        if len(data) < length + _CHECKSUM or masked_crc(data[:length]) != data[length:]:
            raise BadImage(name, "its checksum is wrong")
        return self._features.deserialize_example_np(data[:length], decoders=self._decoders)


def record_places(path: str) -> np.ndarray:
    """Start and length of the data of every record of a file, int64 [n, 2].

    Raises:
      UsageError: it isn't a whole TFRecord file.
    """
    places = []
    try:
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            at = 0
            while at < end:
                file.seek(at)
                header = file.read(_HEADER)
                if len(header) < _HEADER or masked_crc(header[:8]) != header[8:]:
                    raise UsageError(
                        f"{path} isn't TFRecord at byte {at}",
                        "it is damaged or compressed: prepare the set again",
                    )
                (length,) = struct.unpack("<Q", header[:8])
                places.append((at + _HEADER, length))
                at += _HEADER + length + _CHECKSUM
    except OSError as e:
        raise UsageError(f"{path} can't be read: {e.strerror}", "prepare the data set again") from e
    if at != end:
        raise UsageError(f"{path} is cut off", "prepare the data set again")
    return np.asarray(places, np.int64).reshape(-1, 2)


def masked_crc(data: bytes) -> bytes:
    """TFRecord's checksum: CRC-32C, rotated by 15 bits, plus a constant; 4 bytes, little-endian."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
