"""Files of named arrays: .npz and .safetensors, read without ever unpickling, written atomically.

numpy has no bfloat16: such arrays stand in .npz files as two-byte void and are viewed as bfloat16 here.
"""

import json
import os
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np

from vit_jax.errors import UsageError
from vit_jax.formats.weights import Arrays

_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_TRUNCATED = "download it again: it is cut off or damaged"


def read_arrays(path: Path) -> Arrays:
    """All arrays of a file.

    Raises:
      UsageError: no such file, another kind of file, a damaged one, or one with pickled objects.
    """
    if not path.is_file():
        raise UsageError(
            f"no weights file {str(path)!r}", "give an .npz or .safetensors file, or a folder of one"
        )
    if path.suffix in _PICKLED:
        raise UsageError(
            f"{path} is a pickled PyTorch file, which could run any code when read",
            "save it as .safetensors with safetensors.torch.save_file, and give that",
        )
    if path.suffix == ".onnx":
        raise UsageError(
            f"{path} is an ONNX program, which isn't read back", "give the weights it was made from"
        )
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _read_npz(path)


def _read_npz(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path):
            pass
    except zipfile.BadZipFile:
        what = f"{path} is no intact .npz file ({path.stat().st_size} bytes)"
        raise UsageError(what, _TRUNCATED + ", or another kind of file") from None
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", "check the file") from None
    arrays, name = {}, "the list of arrays"
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = _widen_void(file[name])
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise UsageError(
                f"{path} holds pickled objects (at {name!r}), which could run any code when read",
                "save plain arrays, with one name for each",
            ) from None
        raise UsageError(f"can't read {name!r} of {path}: {error}", _TRUNCATED) from None
    except (zipfile.BadZipFile, EOFError, OSError, KeyError) as error:
        raise UsageError(f"can't read {name!r} of {path}: {error}", _TRUNCATED) from None
    except zipfile.zlib.error as error:
        raise UsageError(f"can't read {name!r} of {path}: {error}", _TRUNCATED) from None
    return arrays


def _widen_void(array: np.ndarray) -> np.ndarray:
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _read_safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise UsageError(f"{path} is no intact .safetensors file: {error}", _TRUNCATED) from None
    except OSError as error:
        raise UsageError(f"can't read {path}: {error}", "check the file") from None


def write_npz(path: Path, arrays: Arrays) -> None:
    """Writes plain arrays, bfloat16 as float32: other readers don't know two-byte void."""
    plain = {name: widen(array) for name, array in arrays.items()}
    temporary = path.with_name(path.name + ".tmp.npz")
    try:
        np.savez(temporary, **plain)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_safetensors(path: Path, arrays: Arrays) -> None:
    """Writes arrays as PyTorch readers expect them."""
    from safetensors.numpy import save_file

    temporary = path.with_name(path.name + ".tmp")
    try:
        save_file({k: np.ascontiguousarray(widen(v)) for k, v in arrays.items()}, temporary, {"format": "pt"})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def widen(array: np.ndarray) -> np.ndarray:
    """bfloat16 and float16 as float32, which holds them exactly; anything else as it is."""
    return array.astype(np.float32) if array.dtype in (ml_dtypes.bfloat16, np.float16) else array


def read_json(path: Path) -> dict:
    """A JSON object.

    Raises:
      UsageError: no such file, or no JSON object in it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {error}", "restore the file") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object", "restore the file")
    return content
