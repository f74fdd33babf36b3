"""Geodesic HMC against NUTS and HMC on the vectors, on models with points of spheres.

Run: python benchmarks/geodesic.py
For each posterior and engine: effective draws, the least over the coordinates of all points, of four chains
of 2,000 draws; leapfrog steps per draw; effective draws per step and per second, without compiling.
"""

import arviz_stats as azs
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sidebayes.guides.engines.base import Problem

import sidebayes as sb

ENGINES = sb.GeodesicHMC(), sb.NUTS(), sb.HMC()


def drawn_to(target, concentration):
    """A von Mises-Fisher law."""
    point = sb.sample_direction("point", len(target))
    numpyro.factor("near", concentration * (point @ target))


def noisy(x):
    """Directions that are each measured once, with one scale of noise."""
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    with numpyro.plate("rows", len(x)):
        point = sb.sample_direction("point", 3)
        numpyro.sample("x", dist.Normal(point, scale).to_event(1), obs=x)


def path(x, concentration):
    """Directions that are each measured once, and drawn to the next."""
    with numpyro.plate("rows", len(x)):
        point = sb.sample_direction("point", 3)
        numpyro.sample("x", dist.Normal(point, 1.0).to_event(1), obs=x)
    numpyro.factor("smooth", concentration * (point[1:] * point[:-1]).sum())


def unit(values):
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def cases():
    """Models with their data."""
    rng = np.random.default_rng(0)
    found = {
        f"one point of {size} coordinates, concentration {concentration}": (
            drawn_to,
            (unit(rng.normal(size=size)), float(concentration)),
        )
        for size in (3, 126)
        for concentration in ({3: 1, 126: 10}[size], 1000)
    }
    walk = unit(np.cumsum(0.2 * rng.normal(size=(50, 3)), axis=0) + np.eye(1, 3))
    scattered = unit(rng.normal(size=(50, 3))) + 0.2 * rng.normal(size=(50, 3))
    return found | {
        "50 noisy directions and the scale of the noise": (noisy, (scattered,)),
        "a path of 50 noisy directions": (path, (walk + rng.normal(size=walk.shape), 20.0)),
    }


def main():
    print("| posterior | engine | effective draws | steps per draw | per step | per second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (model, data) in cases().items():
        problem = Problem(model, tuple(map(jnp.asarray, data)))
        for engine in ENGINES:
            engine.run(problem, progress=False)
            result = engine.run(problem, seed=1, progress=False)
            draws, steps = result.draws["point"], result.sample_stats["n_steps"]
            columns = np.moveaxis(draws.reshape(*draws.shape[:2], -1), -1, 0)
            size = min(float(azs.ess(column)) for column in columns)
            print(
                f"| {name} | `{type(engine).__name__}` | {size:.0f} | {steps.mean():.1f} "
                f"| {size / steps.sum():.2g} | {size / result.seconds['run']:.0f} |"
            )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
