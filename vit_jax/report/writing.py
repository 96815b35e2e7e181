"""Where a report goes, and writing it."""

from etils import epath

from vit_jax import distributed, files, runs
from vit_jax.errors import UsageError
from vit_jax.report.evaluated import Evaluated


def target(given: str, checkpoint: str) -> epath.Path:
    """The file of `--report=FILE`, or report.html in the run's folder where `given` is empty.

    Raises:
      UsageError: no file for bare weights, another suffix, or no folder to write to.
    """
    if not given and not runs.is_run(checkpoint):
        raise UsageError(
            f"--report: {checkpoint} is no run, so the page has no place of its own",
            "give --report=FILE.html",
        )
    if not given:
        return runs.open_run(checkpoint)[0].folder.parent / "report.html"
    path = epath.Path(given)
    if path.suffix not in (".html", ".htm") or not (
        files.is_remote(given) or path.absolute().parent.is_dir()
    ):
        raise UsageError(f"--report={given}", "give a file ending in .html in an existing folder")
    return path


def write(path: epath.Path, found: Evaluated) -> None:
    """Computes the page and, on process 0, writes it. Collective."""
    # Here: matplotlib is loaded for no evaluation without a report.
    from vit_jax.report.gather import gather
    from vit_jax.report.page import render

    content = gather(found)
    if distributed.is_main():
        files.write_text(path, render(content))
