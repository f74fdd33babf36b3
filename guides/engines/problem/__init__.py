"""A model with its data as a density, its units, and what is derived from draws."""
