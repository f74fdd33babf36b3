"""Diagnostics: trees, relabelling, scores, comparison, plots, reports.

Importing this package imports neither ArviZ nor matplotlib; its modules load them when used.
"""
