"""Whether each engine's posteriors of each card are as sure as they should be.

Run: python benchmarks/calibration.py [--cards gmm,ppc] [--engines nuts] [--simulations 100]
     [--keep folder] [--figure calibration.png]

Parameters and data are drawn from the model under a proper prior, fitted, and the truth is ranked
among the draws. For each pair the table gives simulations, failed fits, CPU seconds of all fits with
compiling, the functional whose ranks are least uniform with its p-value (before Bonferroni's rule), the
mean rank of the truth there, the coverage of its 50 % and 90 % intervals, and the verdict. With --keep,
ranks are written to a folder, and pairs that lie there already are not run again. The figure shows one card.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from sidebayes.diagnostics.calibration import Calibration
from sidebayes.diagnostics.pictures.colours import new_figure

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

POINTS = 24
PRIOR = sb.GaussianPrior(np.zeros(2), 0.05, 6.0, np.eye(2))
FEW = sb.Links.from_pairs([(0, 1), (1, 2), (5, 9)], [1, 0, 1], 2.0, POINTS)
MANY = sb.Links.from_pairs([(k, k + 7) for k in range(16)], True, 2.0, POINTS)
HARD = sb.Links.from_pairs([(0, 1), (2, 3)], [1, 0], num_points=POINTS)
CHUNKLETS = sb.Links.must_link([(0, 1), (2, 3), (3, 4)], num_points=POINTS)
FEATURES = np.random.default_rng(0).normal(size=(POINTS, 2))
SUBJECTS = np.repeat(np.arange(15), 4)
LINES = np.column_stack([np.ones(60), np.random.default_rng(0).uniform(-1, 1, 60)])
DESIGN = {
    "fixed": LINES,
    "random": LINES,
    "subjects": SUBJECTS,
    "prior": sb.EffectsPrior([0.0, 0.0], [2.0, 2.0], [1.0, 1.0], 0.5),
}
TWO = {"num_clusters": 2}
ON_SPHERE = TWO | {
    "num_points": POINTS,
    "dimension": 2,
    "prior": sb.DirectionalPrior(12.0, 0.8),
    "links": FEW,
}
SOURCE = sb.SourceMixture(
    np.ones(2) / 2, np.array([[0.0, 0.0], [3.0, 0.0]]), np.stack([np.eye(2)] * 2), np.arange(2)
)
HAZARD = sb.HazardPrior([1.0], -1.0, level_scale=1.0, step=0.5, association=1.0)

CURVES = {
    "inputs": np.linspace(0, 4, POINTS),
    "num_clusters": 2,
    "length_scale": 1.0,
    "amplitude": 1.0,
}

_SQUARE = sb.register_points(
    sb.Landmarks.from_array(
        np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
        + 0.1 * np.random.default_rng(0).normal(size=(8, 4, 2))
    ),
    num_modes=2,
)
MARKED = {
    "subjects": _SQUARE.subjects,
    "landmarks": _SQUARE.landmarks,
    "chart": _SQUARE.chart,
    "rank": 1,
}


def directed(x, *, num_points=None):
    """Points about two multiples of a point of the sphere, which of the two is latent."""
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.5))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    point = sb.sample_direction("point", 3)
    parts = dist.Normal(jnp.array([[1.0], [3.0]]) * point, scale).to_event(1)
    with numpyro.plate("points", num_points if x is None else len(x)):
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), parts)
        numpyro.sample("x", mixture, obs=x)


CASES = {
    "gmm": ("gmm", TWO | {"num_points": POINTS, "prior": PRIOR}),
    "ppc, field": ("ppc", TWO | {"num_points": POINTS, "prior": PRIOR, "links": FEW}),
    "ppc, flip rate": (
        "ppc",
        TWO
        | {
            "num_points": POINTS,
            "prior": PRIOR,
            "links": MANY,
            "reading": "relation",
            "flip_rate": "learned",
        },
    ),
    "constrained_em": (
        "constrained_em",
        TWO | {"num_points": POINTS, "prior": PRIOR, "links": CHUNKLETS},
    ),
    "pair_mixture": ("pair_mixture", TWO | {"num_points": POINTS, "prior": PRIOR, "links": HARD}),
    "pairwise_gp": ("pairwise_gp", TWO | {"x": FEATURES, "links": MANY, "flip_rate": "learned"}),
    "sphere_mixture": ("sphere_mixture", ON_SPHERE),
    "sphere_mixture, von Mises-Fisher": (
        "sphere_mixture",
        ON_SPHERE | {"family": "von_mises_fisher"},
    ),
    "moe": ("moe", TWO | {"num_points": POINTS, "prior": PRIOR, "num_classes": 3}),
    "pfgl": (
        "pfgl",
        TWO
        | {
            "num_points": POINTS,
            "prior": PRIOR,
            "num_classes": 2,
            "prototypes": [(0, 0), (0, 1), (1, 0), (1, 1)],
        },
    ),
    "domain_adaptation": (
        "domain_adaptation",
        {"num_points": POINTS, "source": SOURCE, "shift": sb.ShiftPrior()},
    ),
    "feature_saliency": (
        "feature_saliency",
        TWO
        | {
            "num_points": POINTS,
            "prior": PRIOR,
            "selection": "sparse",
            "concentration": 1.0,
        },
    ),
    "geodesic_embedding": (
        "geodesic_embedding",
        {"num_points": 8, "scale": 1.0, "noise_level": 0.2},
    ),
    "trajectories": ("trajectories", CURVES | {"noise": dist.LogNormal(-1.0, 0.5)}),
    "trajectories, noise given": ("trajectories", CURVES | {"noise": 0.4}),
    "mixed_effects": ("mixed_effects", DESIGN),
    "mixed_effects_mixture": ("mixed_effects_mixture", DESIGN | TWO),
    "latent_shape": ("latent_shape", MARKED),
    "joint_survival": ("joint_survival", DESIGN | {"hazard": HAZARD}),
    "point of a sphere": (directed, {"num_points": POINTS}),
}
"""Cards or models, data that are held, and options."""

ENGINES = {
    "laplace": sb.Laplace(num_draws=200, num_restarts=4),
    "pathfinder": sb.Pathfinder(num_draws=200, num_paths=4),
    "svi mean_field": sb.SVI(guide="mean_field", num_draws=200, num_restarts=4, tol=1e-3),
    "svi full_rank": sb.SVI(guide="full_rank", num_draws=200, num_restarts=4, tol=1e-3),
    "cavi": sb.CoordinateAscent(num_draws=200, num_restarts=4),
    "nuts": sb.NUTS(num_warmup=200, num_samples=200, num_chains=2),
    "hmc": sb.HMC(num_warmup=200, num_samples=200, num_chains=2),
    "mclmc": sb.MCLMC(num_warmup=200, num_samples=200, num_chains=2),
    "geodesic": sb.GeodesicHMC(num_warmup=200, num_samples=200, num_chains=2),
    "gibbs": sb.BlockedGibbs(num_warmup=200, num_samples=600, num_chains=2),
    "smc": sb.SMC(num_particles=200, num_runs=2),
    "nested": sb.NestedSlice(num_live=100, num_delete=25, num_runs=2, num_samples=100),
}
"""Bayesian engines, with settings that make many fits affordable."""

LONGER = {
    ("feature_saliency", "gibbs"): replace(ENGINES["gibbs"], thinning=10),
    ("feature_saliency", "nuts"): replace(ENGINES["nuts"], num_warmup=500, num_samples=2000),
    ("feature_saliency", "mclmc"): replace(ENGINES["mclmc"], num_warmup=500, num_samples=2000),
}
"""Where these settings do not mix: which values are relevant changes rarely."""

REFUSED = {("ppc, field", "cavi"), ("pfgl", "cavi"), ("trajectories", "cavi")}
"""Some sites are points there: weights that a partition function depends on, prototypes, noise."""


OWN = {directed: ("nuts", "geodesic")}
"""Engines of models without a card."""


def pairs():
    """Every case with every engine that suits its card and is not refused."""
    return [
        (case, engine)
        for case, (card, _) in CASES.items()
        for engine, config in ENGINES.items()
        if config.name in (OWN.get(card) or sb.CARDS[card].engines)
        and (case, engine) not in REFUSED
    ]


def run(case, engine, num_simulations, seed=0):
    card, options = CASES[case]
    return sb.calibrate(
        card,
        LONGER.get((case, engine), ENGINES[engine]),
        num_simulations=num_simulations,
        seed=seed,
        progress=False,
        **options,
    )


def kept_or_run(case, engine, options):
    path = Path(options.keep) / f"{case}-{engine}.csv" if options.keep else None
    if path is not None and path.exists():
        table = pd.read_csv(path)
        cost = table[["failed", "seconds"]].iloc[0]
        ranks = table.drop(columns=["failed", "seconds"])
        return Calibration(f"{case} by {engine}", ranks, int(cost.failed)), cost.seconds
    began = time.process_time()
    found = run(case, engine, options.simulations, options.seed)
    seconds = time.process_time() - began
    if path is not None:
        found.ranks.assign(failed=found.failed, seconds=seconds).to_csv(path, index=False)
    return found, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", default=None, help="beginnings of cases, comma-separated")
    parser.add_argument("--engines", default=None)
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the simulations")
    parser.add_argument("--keep", default=None, help="folder for ranks")
    parser.add_argument("--figure", default=None, help="picture of all engines on the first case")
    options = parser.parse_args()
    use_compilation_cache()
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
    print(
        "| model | engine | simulations | failed | CPU s | worst functional | p | mean rank "
        "| 50 % | 90 % | calibrated |\n|" + " --- |" * 11
    )
    shown = {}
    for case, engine in pairs():
        if options.cards and not case.startswith(tuple(options.cards.split(","))):
            continue
        if options.engines and not engine.startswith(tuple(options.engines.split(","))):
            continue
        found, seconds = kept_or_run(case, engine, options)
        shown.setdefault(case, []).append(found)
        table = found.table
        worst = table.p_value.idxmin()
        row = table.loc[worst]
        print(
            f"| {case} | {engine} | {len(found.ranks) + found.failed} | {found.failed} | {seconds:.0f} "
            f"| `{worst}` | {row.p_value:.2g} | {row.mean_rank:.2f} | {row.coverage_50:.2f} "
            f"| {row.coverage_90:.2f} | {'yes' if found.calibrated else 'NO'} |",
            flush=True,
        )
    if options.figure:
        draw(next(iter(shown.values()))).savefig(options.figure, dpi=110)


def draw(found):
    """ECDFs of the ranks, one panel per engine."""
    rows = -(-len(found) // 4)
    figure, axes = new_figure(
        12.8, 2.9 * rows, nrows=rows, ncols=4, sharex=True, sharey=True, squeeze=False
    )
    axes = axes.ravel()
    for axis, one in zip(axes, found, strict=False):
        one.plot(axis)
        axis.label_outer()
    for axis in axes[len(found) :]:
        axis.remove()
    return figure


if __name__ == "__main__":
    main()
