"""Normal densities of many points, and sums over points in one pass."""
