"""Which engine to distrust: three posteriors with known answers, every engine, one table each.

Run: python examples/comparing_engines.py [--out docs/comparing_engines.png]
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sidebayes.diagnostics.pictures.colours import INK, MUTED, WARN, new_figure
from sidebayes.diagnostics.symmetry.distance import comparable

import sidebayes as sb


def one_gaussian():
    """Conjugate: mean and covariance of a Gaussian have a posterior in closed form."""
    x = np.random.default_rng(4).normal([1.0, -1.0], [1.0, 2.0], size=(12, 2))
    prior = sb.GaussianPrior(np.zeros(2), shrinkage=0.5, df=6.0, scale=4.0 * np.eye(2))
    return {"method": "gmm", "x": x, "num_clusters": 1, "prior": prior}


def linked_points():
    """Enumerable: eight points have 256 labelings, weighed by three soft links and a hard one."""
    x = np.random.default_rng(1).normal(size=(8, 2))
    x[4:] += [2.0, 1.0]
    links = sb.Links([[0, 1], [1, 4], [2, 6], [3, 7]], [1.5, -2.0, 1.0, -np.inf], len(x))
    prior = sb.GaussianPrior(np.full(2, 0.5), shrinkage=0.5, df=8.0, scale=4.0 * np.eye(2))
    return {
        "method": "ppc",
        "x": x,
        "links": links,
        "num_clusters": 2,
        "prior": prior,
        "reading": "relation",
    }


def lost_sign(x, links):
    """Readings of theta that all lost their sign together: hard links tie the labels."""
    theta = numpyro.sample(
        "theta", dist.MultivariateNormal(jnp.array([0.9, 0.5]), 4.0 * jnp.eye(2))
    )
    labels = sb.LinkedCategorical(jnp.log(jnp.array([0.5, 0.5])), links)
    readings = dist.MultivariateNormal(jnp.stack([theta, -theta]), jnp.eye(2))
    numpyro.sample("x", sb.LinkedMixture(labels, readings), obs=x)


def two_modes():
    """Two-moded: a mixture of two Gaussians far apart, one for either sign of the readings."""
    x = np.random.default_rng(2).normal([2.0, 1.0], 1.0, size=(6, 2))
    return {"method": lost_sign, "x": x, "links": sb.Links.from_groups(np.zeros(6, int))}


POSTERIORS = {"one_gaussian": one_gaussian, "linked_points": linked_points, "two_modes": two_modes}

ENGINES = {
    "Laplace": sb.Laplace(),
    "mean field": sb.SVI(guide="mean_field"),
    "NUTS": sb.NUTS(num_warmup=500, num_samples=500),
    "SMC": sb.SMC(num_particles=500, num_runs=6),
    "nested": sb.NestedSlice(num_live=200, num_delete=50, num_samples=500),
}


def run(posterior, engines):
    """The same posterior by every engine."""
    return {
        name: sb.fit(engine=engine, seed=1, progress=False, **posterior)
        for name, engine in engines.items()
    }


def draw(fits, out):
    """One column per posterior, one row per engine: draws of the functional on which engines differ most."""
    rows = max(map(len, fits.values()))
    size = 3.0 * len(fits), 1.1 * rows
    figure, axes = new_figure(*size, nrows=rows, ncols=len(fits), squeeze=False, sharex="col")
    for column, (title, found) in zip(axes.T, fits.items(), strict=True):
        frame = sb.compare(found).frame
        functional = frame["shift_of"][frame["shift"].idxmax()]
        leader = frame.index[frame["trust"] == "reference"][0]
        reference = comparable(found[leader].tree)[functional]
        bins = np.linspace(*np.quantile(reference, [0.002, 0.998]), 50)
        for axis, (name, fit) in zip(column, found.items(), strict=True):
            trust = frame.loc[name, "trust"]
            colour = WARN if trust in ("differs", "no") else MUTED
            values = comparable(fit.tree)[functional]
            axis.hist(values, bins, density=True, color=colour, alpha=0.6)
            axis.hist(reference, bins, density=True, histtype="step", color=INK, lw=1)
            axis.text(0.5, 0.9, trust, transform=axis.transAxes, ha="center", va="top", fontsize=8)
            axis.set_yticks([])
            axis.set_ylabel(name if title == next(iter(fits)) else "")
        column[0].set_title(title, fontsize=10)
        column[-1].set_xlabel(functional)
    figure.savefig(out, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("comparing_engines.png"))
    out = parser.parse_args().out
    shown = ["log_evidence", "evidence", "rhat", "ess", "shift", "shift_of", "trust", "run_s"]
    fits = {}
    for name, make in POSTERIORS.items():
        fits[name] = run(make(), ENGINES)
        print(f"\n{name}\n{sb.compare(fits[name]).frame[shown].round(3).to_string()}")
    draw(fits, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
