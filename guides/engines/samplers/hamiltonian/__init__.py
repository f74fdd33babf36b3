"""Moves along Hamiltonian trajectories, and their warm-up."""
