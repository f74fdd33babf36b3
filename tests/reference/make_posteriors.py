"""Write reference posteriors: exact moments where they are known, and long runs of NUTS.

Run: python -m tests.reference.make_posteriors [NAME ...]
Draws and acceptance as in posteriordb: 10 chains of 1,000 draws, here thinned by 10, every R-hat
below 1.01, no divergences. NUTS cannot move between the modes of "two_modes", whose moments are
exact; it has no draws to accept.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats

import sidebayes as sb

from .targets import EXAMPLE, functionals, label_functionals, posterior, truth

FOLDER = Path(__file__).parent / "posteriors"
CHAINS, DRAWS, THIN = 10, 1000, 10
ENGINE = {"num_warmup": 2000, "num_samples": DRAWS * THIN, "num_chains": CHAINS}
SETTINGS = {"target_accept": 0.95}
SEED = 4711


def sample(name):
    """Moments and diagnostics of a long run of NUTS."""
    args, given = posterior(name)
    engine = sb.NUTS(**ENGINE, **SETTINGS)
    fit = sb.fit(*args, engine=engine, seed=SEED, progress=False, **given)
    draws = {k: v.to_numpy()[:, ::THIN] for k, v in fit.tree["posterior"].data_vars.items()}
    stats = fit.tree["sample_stats"]
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    values = functionals(name, draws) | label_functionals(name, prob)
    energy = stats["energy"].to_numpy()
    change = np.square(np.diff(energy, axis=1)).mean(axis=1)
    return {
        "engine": "NUTS",
        "arguments": ENGINE | SETTINGS | {"thin": THIN, "seed": SEED},
        "divergences": int(stats["diverging"].sum()),
        "least_efmi": float((change / energy.var(axis=1)).min()),
        "functionals": {key: describe(value) for key, value in values.items()},
    }


def describe(value):
    """Moments of one functional, draws of shape (chain, draw), and how far to trust them."""
    away = value - value.mean(axis=1, keepdims=True)
    lag = (away[:, 1:] * away[:, :-1]).sum() / (away**2).sum()
    ess = float(array_stats.ess(value, chain_axis=0, draw_axis=1, method="mean"))
    return {
        "mean": float(value.mean()),
        "sd": float(value.std(ddof=1)),
        "mcse_mean": float(value.std(ddof=1) / np.sqrt(ess)),
        "num_draws": value.size,
        "r_hat": float(array_stats.rhat(value, chain_axis=0, draw_axis=1)),
        "ess_bulk": float(array_stats.ess(value, chain_axis=0, draw_axis=1)),
        "ess_tail": float(
            array_stats.ess(value, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))
        ),
        "lag_1": float(lag),
    }


def main(names):
    for name in names:
        known = truth(name)
        exact = {key: {"mean": known.mean[key], "sd": known.sd[key]} for key in known.mean}
        record = {
            "name": name,
            "command": f"python -m tests.reference.make_posteriors {name}",
            "versions": {p: version(p) for p in ("sidebayes", "jax", "numpyro", "numpy", "scipy")},
            "exact": {"log_evidence": known.log_evidence, "functionals": exact},
            "sampled": None if name == "two_modes" else sample(name),
        }
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(EXAMPLE.POSTERIORS), metavar="NAME")
    main(parser.parse_args().names)
