"""Classes that the components of a mixture have, learned from rows whose class is known."""
