"""Distance of mean shapes by permutation in morphomatics: ``python shapes_peer.py DATA PERMUTATIONS``.

It may need an interpreter of its own: ``python -m venv peer; peer/bin/pip install morphomatics==4.2``. DATA
is a file of ``numpy.savez`` with landmarks ``first`` and ``second`` of two groups; prints a line of JSON.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from morphomatics.manifold import Kendall
from morphomatics.stats.exponential_barycenter import ExponentialBarycenter
from morphomatics.stats.hypothesis_tests import two_sample_test

jax.config.update("jax_enable_x64", True)
data = np.load(sys.argv[1])
groups = [data["first"], data["second"]]
space = Kendall(groups[0].shape[1:])
groups = [jnp.stack([space.to_coords(one) for one in group]) for group in groups]


def distance(first, second):
    """Riemannian distance of the groups' mean shapes."""
    means = [ExponentialBarycenter.compute(space, group) for group in (first, second)]
    return space.metric.dist(*means)


found = []
for _ in range(2):  # the second time nothing is compiled
    wall, cpu = time.perf_counter(), time.process_time()
    p, value, _ = two_sample_test(*groups, distance, int(sys.argv[2]), jax.random.key(0))
    p, value = float(p), float(value)
    found.append((time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps({"cold": found[0], "warm": found[1], "p": p, "value": value}))
