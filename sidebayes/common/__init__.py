"""Checks of values, files and warnings: every part of the library may import these."""
