"""Linear mixed effects: sums over rows, their densities, priors, and updates in closed form."""
