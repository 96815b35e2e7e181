"""The preflight: compiling a training step for hardware that isn't there, and what the program tells of a run."""
