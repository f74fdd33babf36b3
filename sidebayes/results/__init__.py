"""The result of a fit, and everything that it offers."""
