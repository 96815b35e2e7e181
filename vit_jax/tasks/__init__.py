"""What a run learns, see step.Task: classification, masked patches; one a file."""
