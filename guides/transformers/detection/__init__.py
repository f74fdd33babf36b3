"""Detection of decline: individual curves from populations, and classifiers of whole series."""
