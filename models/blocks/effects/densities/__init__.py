"""Densities of linear mixed effects: what is integrated out, and its posterior."""
