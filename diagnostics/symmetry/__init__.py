"""Functionals invariant to renumbering and rotation, and the matching of draws."""
