"""Optional packages, imported when they are needed."""

import importlib
from types import ModuleType

from vit_jax.errors import UsageError


def needed(module: str) -> ModuleType:
    """Imports a module of an optional package.

    Raises:
        UsageError: the package isn't installed; the remedy is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(
            f"the Python package {package!r} can't be imported: {error}", "pip install 'vit_jax[export]'"
        ) from error
