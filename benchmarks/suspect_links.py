"""How well wrong links are found: average precision with 15 % of 200 links turned round.

Methods are set as in accuracy_links.py; `constrained_em` and `constrained_kmeans`, which are not there, take
all links as hard, and are refused where those contradict each other. The constraint methods may
leave some links out.

Run: python benchmarks/suspect_links.py [--seeds 5] [--data iris,wine,digits] [--methods ppc]
"""

import argparse
from functools import partial

import jax
import numpy as np
from accuracy_links import (
    data_of,
    run_components,
    run_constraint_fit,
    run_gp,
    run_ppc,
    run_projection,
)
from sklearn.cluster import KMeans
from sklearn.metrics import average_precision_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache


def run_em(x, num_clusters, links, seed):
    engine = sb.EM(num_restarts=10, tol=1e-6)
    options = {"num_clusters": num_clusters, "engine": engine, "seed": seed, "progress": False}
    return sb.fit("constrained_em", x, links.hardened(), **options)


def run_kmeans(x, num_clusters, links, seed, model):
    """The width of the clusters is that which K-means finds without links."""
    scale = np.sqrt(KMeans(num_clusters, n_init=10, random_state=seed).fit(x).inertia_ / x.size)
    options = {"num_clusters": num_clusters, "scale": scale, "seed": seed, "progress": False}
    if model == "constrained_kmeans":
        return sb.fit(model, x, links.hardened(), **options)
    return sb.fit(model, x, links, inference="belief_propagation", **options)


METHODS = {
    "ppc": run_ppc,
    "ppc learned": partial(run_ppc, flip_rate="learned"),
    "constrained_em": run_em,
    "constrained_kmeans": partial(run_kmeans, model="constrained_kmeans"),
    "soft_kmeans": partial(run_kmeans, model="soft_kmeans"),
    "pair_mixture": run_components,
    "pairwise_gp": run_gp,
    "constraint_fit": run_constraint_fit,
    "constraint_projection": run_projection,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="iris,wine,digits")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--links", type=int, default=200)
    parser.add_argument("--flip-rate", type=float, default=0.15)
    options = parser.parse_args()
    use_compilation_cache()
    methods = {name: METHODS[name] for name in options.methods.split(",")}
    print(
        f"{'data':8} {'method':22} {'average precision':>18} {'least':>6} {'among first':>12}  refused"
    )
    for name in options.data.split(","):
        x, labels = data_of(name)
        scores = {method: [] for method in methods}
        for seed in range(options.seeds):
            links = sb.simulate_links(
                labels, options.links, flip_rate=options.flip_rate, seed=seed
            ).with_strength(sb.flip_rate_weight(options.flip_rate))
            for method, run in methods.items():
                try:
                    fit = run(x, len(np.unique(labels)), links, seed)
                except ValueError as error:
                    if "contradicts" not in str(error):
                        raise
                    continue
                table = fit.suspect_links(
                    flip_rate=options.flip_rate, inference="belief_propagation"
                )
                wrong = (labels[table.i] == labels[table.j]) != (table.sign > 0)
                first = wrong[: wrong.sum()].mean()
                scores[method].append((average_precision_score(wrong, table.log_odds), first))
        for method, rows in scores.items():
            refused = options.seeds - len(rows)
            if not rows:
                print(f"{name:8} {method:22} refused in all {refused} draws", flush=True)
                continue
            value = np.array(rows)
            print(
                f"{name:8} {method:22} {value[:, 0].mean():10.3f} ({value[:, 0].std():.3f}) "
                f"{value[:, 0].min():6.3f} {value[:, 1].mean():12.3f}  {refused or ''}",
                flush=True,
            )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
