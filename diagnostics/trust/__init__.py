"""Whether a fit may be believed."""
