"""Compiled programs, checkpoints, caches and progress bars, which all engines share."""
