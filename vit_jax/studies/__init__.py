"""Studies: lists of small runs that answer a question together, with a table and figures of what they found."""
