"""Whether a fit may be believed, and how fits compare."""
