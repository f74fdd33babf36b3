"""Classes of the components of a mixture, learned from rows of known class."""
