"""Densities of linear mixed effects: integrated-out effects, and their posteriors."""
