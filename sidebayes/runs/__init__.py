"""From arguments to a run that can be repeated, and its record."""
