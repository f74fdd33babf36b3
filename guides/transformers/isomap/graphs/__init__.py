"""Graphs of neighbours and their shortest paths, updated when rows are added and removed."""
