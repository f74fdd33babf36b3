"""Sums over the labels of linked points: exact by the structure of the links, or approximate."""
