"""The runs behind one VTAB-1k table: trials, their results, and the table itself."""
