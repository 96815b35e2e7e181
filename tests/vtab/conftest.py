"""The small copies of all data sets, in place of the table's."""

import contextlib
import io

import pytest

from tests.vtab import synthetic
from vit_jax.data import source_vtab


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A tensorflow-datasets folder with all 16 data sets."""
    folder = tmp_path_factory.mktemp("tfds")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        synthetic.prepare(folder)
    return folder


@pytest.fixture
def small_tasks(prepared, monkeypatch):
    """The tasks on the small copies, which stand where the whole data sets would."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    monkeypatch.setattr(source_vtab, "TASKS", synthetic.SMALL)
    return synthetic.SMALL
