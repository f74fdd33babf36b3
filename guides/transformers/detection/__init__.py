"""Decline of subjects: individual curves from populations, and classifiers of whole series."""
