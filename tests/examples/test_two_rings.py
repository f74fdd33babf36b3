"""Law (2006), section 5.6.3: what the example of two rings claims; dossier check 31."""

import importlib.util
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.trust.scores import accuracy
from sklearn.cluster import SpectralClustering

from sidebayes import Continuation, simulate_links

SCRIPT = Path(__file__).parents[2] / "examples" / "constraint_projection.py"


def test_two_rings():
    spec = importlib.util.spec_from_file_location("rings", SCRIPT)
    rings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rings)
    x, ring = rings.simulate_rings()
    links = simulate_links(ring, 60).with_strength(100.0)
    fit, kernel = rings.fit_rings(x, links, Continuation(num_restarts=8, tol=1e-6, max_steps=300))
    assert accuracy(ring, fit.labels()) >= 0.99
    x_new, ring_new = rings.simulate_rings(seed=1)
    scale = kernel.transform(x).std(axis=0)
    assert accuracy(ring_new, fit.predict(kernel.transform(x_new) / scale)) > 0.95
    gamma = rings.kernel_gamma(x)
    spectral = SpectralClustering(2, gamma=gamma, random_state=0).fit_predict(x)
    assert accuracy(ring, spectral) < 0.9
    assert np.unique(spectral).size == 2
