"""Routines of inference: how beliefs are fitted."""
