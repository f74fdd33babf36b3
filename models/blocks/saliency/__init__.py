"""Features that matter to clusters and features that do not: densities, updates, priors, starts."""
