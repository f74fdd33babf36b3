"""Mixtures whose clusters share components, and posteriors that partition space."""
