"""Methods without a density, with the interface of scikit-learn."""
