"""Components of mixtures on the unit sphere: wrapped normals and von Mises-Fisher densities."""
