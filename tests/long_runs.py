"""Runs of every engine that keeps checkpoints, long enough to be killed on the way.

``python -m tests.long_runs em run.state`` makes one, and writes a line whenever it has kept its state.
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.checkpoint import Checkpoint, keeping
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constraint_fit import constraint_fit
from sidebayes.models.ppc import ppc

from sidebayes import sample_direction
from sidebayes.runs.zoo import make_engine

SETTINGS = {
    "em": {"num_restarts": 2, "tol": 0.0, "max_steps": 1000},
    "map": {"num_restarts": 2, "tol": 0.0},
    "stochastic_em": {"batch_size": 100, "max_epochs": 100, "tol": 0.0},
    "laplace": {"num_restarts": 2, "tol": 0.0, "num_draws": 100},
    "svi": {"num_restarts": 2, "num_steps": 2000, "tol": 0.0, "num_draws": 100},
    "cavi": {"num_restarts": 2, "tol": 0.0, "max_steps": 600, "num_draws": 100},
    "nuts": {"num_warmup": 50, "num_samples": 50, "num_chains": 2},
    "hmc": {"num_warmup": 100, "num_samples": 100, "num_chains": 2, "chain_method": "vectorized"},
    "mclmc": {"num_warmup": 100, "num_samples": 100, "num_chains": 2},
    "geodesic": {"num_warmup": 20000, "num_samples": 20000, "num_chains": 2},
    "gibbs": {"num_warmup": 300, "num_samples": 300, "num_chains": 2},
    "smc": {"num_particles": 1000, "num_runs": 2, "num_mutations": 20, "target_ess": 0.98},
    "nested": {"num_live": 500, "num_delete": 5, "num_runs": 2, "num_slices": 20},
    "continuation": {"num_restarts": 2, "tol": 0.0},
    "monte_carlo_em": {"sampled": ("effect",), "num_samples": 400, "max_samples": 400, "tol": 0.0},
}


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(mu.sum(), 0.5), obs=y)


def effects(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def directed(y):
    point = sample_direction("point", 3)
    numpyro.sample("y", dist.Normal(3 * point[0], 1.0), obs=y)


def problem(name):
    """A slow problem: clusters that overlap, the sum of numbers, effects of rows, or a direction."""
    if name == "geodesic":
        return Problem(directed, (jnp.linspace(1.0, 2.0, 100),))
    if name == "monte_carlo_em":
        return Problem(effects, (jnp.linspace(-2.0, 3.0, 40),))
    if name in ("smc", "nested"):
        return Problem(normal, (jnp.arange(4.0),))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2)) + rng.choice([-1.0, 0.0, 1.0], 2000)[:, None]
    pairs = rng.permutation(2000)[:400].reshape(-1, 2)
    links = Links.from_pairs(pairs, np.arange(200) % 2 == 0, 2.0, len(x))
    args = jnp.asarray(x), LabelGraph.build(links, len(x))
    if name == "continuation":
        return Problem(constraint_fit, args, {"num_clusters": 3})
    return Problem(ppc, args, {"num_clusters": 3, "reading": "relation"})


def run(name, path=None):
    """What the engine drew, with a checkpoint at `path` if one is given."""
    kind = type(make_engine(name))
    engine, given = kind(**SETTINGS[name]), {"seed": 3, "progress": False}
    with jax.enable_x64(True):
        at = problem(name)
        if path is None:
            return engine.run(at, **given)
        with keeping(str(path), 0.0, engine, at, 3, None) as keep:
            return engine.run(at, keep=keep, **given)


def main():
    """Run, say whenever the state was kept, and wait to be killed before it is thrown away."""
    offer, clear = Checkpoint.offer, Checkpoint.clear

    def loud(self, *given, **options):
        offer(self, *given, **options)
        print("kept", flush=True)

    def late(self):
        time.sleep(3600)
        clear(self)

    Checkpoint.offer, Checkpoint.clear = loud, late
    run(*sys.argv[1:])


if __name__ == "__main__":
    from tests import long_runs  # a model's module is part of what a checkpoint belongs to

    long_runs.main()
