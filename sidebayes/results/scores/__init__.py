"""Predictive scores of a fit: units left out, folds held out, the criterion of a mode."""
