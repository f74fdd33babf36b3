"""Generic engines, which take any model."""
