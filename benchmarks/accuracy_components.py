"""Several Gaussians per class, their number chosen by evidence: accuracy with 200 random pairs.

For every number of components EM runs from annealed starts, and the best log joint is kept; the
number of highest evidence wins. The data and the draws of links are those of `accuracy_links.py`.

Run: python benchmarks/accuracy_components.py [--data digits,breast_cancer] [--seeds 3]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from accuracy_links import data_of
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.pair_mixture import annealed_start, log_evidence
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache
from sidebayes.runs.zoo import CARDS


def fit_components(x, links, num_clusters, num_components, num_starts):
    """Best of the annealed starts, and its evidence."""
    prior = sb.GaussianPrior.by_evidence(x, num_clusters * num_components)
    options = {
        "num_clusters": num_clusters,
        "num_components": num_components,
        "prior": prior,
        "pair_law": "joint",
        "inference": "belief_propagation",
    }
    card = CARDS["pair_mixture"]
    args = jnp.asarray(x), LabelGraph.build(links, len(x))
    problem = Problem(card.model, args, options)
    fits = [
        sb.fit(
            card.name,
            x,
            links,
            engine=sb.EM(tol=1e-6),
            init=annealed_start(problem, seed=seed),
            progress=False,
            **options,
        )
        for seed in range(num_starts)
    ]
    best = max(fits, key=lambda fit: fit.tree["sample_stats"]["lp"].item())
    return best, log_evidence(problem, best.params)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits,breast_cancer")
    parser.add_argument("--components", default="1,2,3")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=2)
    options = parser.parse_args()
    use_compilation_cache()
    numbers = [int(number) for number in options.components.split(",")]
    for name in options.data.split(","):
        x, labels = data_of(name)
        num_clusters = len(np.unique(labels))
        chosen = []
        for seed in range(options.seeds):
            links = sb.simulate_links(labels, options.pairs, seed=seed)
            row = []
            for number in numbers:
                began = time.process_time()
                fit, evidence = fit_components(x, links, num_clusters, number, options.starts)
                row.append((evidence, number, adjusted_rand_score(labels, fit.labels())))
                print(
                    f"{name:14} draw {seed} components {number} evidence {evidence:10.0f} "
                    f"ARI {row[-1][2]:.3f}  CPU {time.process_time() - began:.0f} s",
                    flush=True,
                )
            chosen.append(max(row)[1:])
        print(
            f"{name:14} {options.pairs} pairs, chosen components "
            f"{[number for number, _ in chosen]}, ARI {np.mean([index for _, index in chosen]):.3f} "
            f"({np.std([index for _, index in chosen]):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
