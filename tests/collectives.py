"""The CPU collectives' library writes to stdout, now and then several of its lines in one."""


def own_lines(out: str) -> list[str]:
    """The lines of a process's stdout that are its own."""
    return [line for line in out.splitlines() if "[Gloo]" not in line and "peer ranks" not in line]
