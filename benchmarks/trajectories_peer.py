"""MoGP on points, in an interpreter of its own: ``python trajectories_peer.py DATA SWEEPS``.

MoGP (Ramamoorthy et al. 2022) is a Dirichlet-process mixture of Gaussian processes for subjects, by collapsed
Gibbs sampling; here each point is a subject of its own. It needs NumPy 1: ``python -m venv peer;
peer/bin/pip install "numpy<2" "scipy<1.13" GPy==1.13.2 mogp==1.0.0 joblib scikit-learn matplotlib pytest``.
DATA is a file of ``numpy.savez`` with ``x`` and ``y``; prints a line of JSON.
"""

import json
import logging
import sys
import tempfile
import time

import numpy as np
from mogp.mogp_constrained import MoGP_constrained

logging.disable(logging.CRITICAL)
data = np.load(sys.argv[1])
began, cpu = time.perf_counter(), time.process_time()
with tempfile.TemporaryDirectory() as folder:
    model = MoGP_constrained(
        X=data["x"][:, None],
        Y=data["y"][:, None],
        alpha=1.0,
        num_init_clusters=2,
        num_iter=int(sys.argv[2]) + 1,  # the first is the start
        savepath=folder,
        mean_func=False,
        onset_anchor=False,
        normalize=True,
        signal_variance_fix=False,
    )
    model.sample()
found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
print(json.dumps(found | {"labels": np.asarray(model.z).tolist()}))
