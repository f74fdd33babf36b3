"""How many pairs an expert must answer: suggested pairs against random ones.

Run: python benchmarks/link_selection.py [--seeds 5] [--data iris,wine] [--batch 10] [--rounds 8]
     [--engine gibbs]
     python benchmarks/link_selection.py --seeds 2 --data digits --batch 50 --rounds 6 --engine em

After every batch the answers are added and the mixture is fitted again, by blocked Gibbs sampling or, with
--engine em, at a point; ARI is of its labels. The target is the highest mean ARI that random pairs
reach; the table gives the mean ARI by pairs, and the pairs that reach it, on the line between two batches.
"""

import argparse
import sys

import jax
import numpy as np
from accuracy_links import data_of
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

STRENGTH = sb.flip_rate_weight(0.02)
ENGINES = {
    "gibbs": (sb.BlockedGibbs(num_warmup=200, num_samples=400, num_chains=2), {}),
    "em": (sb.EM(num_restarts=10, tol=1e-6), {"inference": "belief_propagation"}),
}


def random_pairs(fit, size, known, labels, rng):
    """Pairs drawn evenly among those not asked yet."""
    every = np.stack(np.triu_indices(len(labels), 1), axis=1)
    fresh = ~np.isin(every @ [len(labels), 1], known @ [len(labels), 1])
    return every[rng.choice(np.flatnonzero(fresh), size, replace=False)]


def suggested(fit, size, known, labels, rng):
    ask = sb.suggest_links(fit, size, seed=int(rng.integers(2**31)))
    return ask[["i", "j"]].to_numpy()


WAYS = {"random": random_pairs, "suggested": suggested}


def curve(x, labels, seed, choose, options):
    """ARI after every batch."""
    rng, num_clusters = np.random.default_rng(seed), len(np.unique(labels))
    engine, inference = ENGINES[options.engine]
    prior = sb.GaussianPrior.by_evidence(x, num_clusters)
    pairs, found = np.zeros((0, 2), int), []
    for step in range(options.rounds + 1):
        same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
        links = sb.Links.from_pairs(pairs, same, STRENGTH, len(x))
        fit = sb.fit(
            "ppc", x, links, num_clusters=num_clusters, reading="relation", prior=prior,
            engine=engine, seed=seed, progress=False, **inference,
        )  # fmt: skip
        found.append(adjusted_rand_score(labels, fit.labels()))
        if step < options.rounds:
            pairs = np.concatenate([pairs, choose(fit, options.batch, pairs, labels, rng)])
    return found


def needed(curve, target, batch):
    """Pairs after which the target is reached, on the line between two batches."""
    above = np.flatnonzero(np.array(curve) >= target - 1e-12)
    if not len(above):
        return np.nan
    k = above[0]
    if k == 0:
        return 0.0
    return batch * (k - 1 + (target - curve[k - 1]) / (curve[k] - curve[k - 1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="iris,wine")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--engine", default="gibbs", choices=ENGINES)
    options = parser.parse_args()
    use_compilation_cache()
    for name in options.data.split(","):
        x, labels = data_of(name)
        target = None
        for way, choose in WAYS.items():
            runs = []
            for seed in range(options.seeds):
                runs.append(curve(x, labels, seed, choose, options))
                print(f"{name} {way} {seed}:", *np.round(runs[-1], 3), file=sys.stderr, flush=True)
            mean = np.mean(runs, axis=0)
            target = max(mean) if target is None else target
            line = " ".join(f"{value:.3f}" for value in mean)
            pairs = needed(mean, target, options.batch)
            print(f"{name:8} {way:10} {line}  ARI {target:.3f} after {pairs:.0f}", flush=True)


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
