"""Fits beside one another: which is measured against which, and what the table says."""
