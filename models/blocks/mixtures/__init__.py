"""Mixtures whose labels are summed out, their components, and blocks with closed-form updates."""
