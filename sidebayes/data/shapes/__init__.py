"""Landmarks of individuals: their files, and their shapes on the common mean."""
