"""Graphs of neighbours and their shortest paths, which follow rows as they come and go."""
