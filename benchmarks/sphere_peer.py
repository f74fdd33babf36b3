"""Mixtures and means on the sphere in geomstats: ``python sphere_peer.py DATA CLUSTERS``.

It needs an interpreter of its own, since geomstats 2.8.0 cannot be imported with NumPy 2.3 or later:
``python -m venv peer; peer/bin/pip install geomstats==2.8.0 "numpy<2.3" autograd``. DATA is a file of
``numpy.save`` with unit vectors; prints a line of JSON.
"""

import json
import os
import sys
import time

os.environ["GEOMSTATS_BACKEND"] = "autograd"  # its EM differentiates

import geomstats.backend as gs
import numpy as np
from geomstats.geometry.hypersphere import Hypersphere
from geomstats.learning.expectation_maximization import RiemannianEM
from geomstats.learning.frechet_mean import FrechetMean
from geomstats.learning.kmeans import RiemannianKMeans

x, number = np.load(sys.argv[1]), int(sys.argv[2])
space = Hypersphere(x.shape[1] - 1)
mean = FrechetMean(space).set(max_iter=1000, epsilon=1e-14)  # by default it stops early


def seconds(run, repeats=3):
    """Least seconds of several runs, and what the last returned."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - began)
    return min(times), found


def mixture():
    """One run of EM, with normal laws that are alike in all directions; most probable components."""
    gs.random.seed(0)
    fitted = RiemannianEM(space, n_gaussians=number, max_iter=200).fit(x)
    return fitted._expectation(x).argmax(axis=1)  # it has no method that predicts


def means():
    """One run of k-means by geodesic distances; labels."""
    gs.random.seed(0)
    return RiemannianKMeans(space, number, init="kmeans++").fit(x).predict(x)


found = {"mean": seconds(lambda: mean.fit(x).estimate_)}
for name, run in (("k-means", means), ("EM", mixture)):
    try:
        used, labels = seconds(run)
        found[name] = used, np.asarray(labels).ravel()
    except Exception as error:  # of the peer, which is shown in place of a figure
        found[name] = repr(error)[:80], None
shown = {k: (a, None if b is None else np.asarray(b).tolist()) for k, (a, b) in found.items()}
print(json.dumps(shown))
