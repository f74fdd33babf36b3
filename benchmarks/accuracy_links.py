"""Clustering accuracy with random pairs, against peers, in one run.

Run: python benchmarks/accuracy_links.py [--seeds 10] [--data iris,wine,breast_cancer,digits]
Peers need the `peers` extra; without it they are left out, and the table says so.
"""

import argparse
import time
import warnings
from collections import defaultdict
from functools import partial

import jax
import numpy as np
from sidebayes.diagnostics.trust.scores import calibration_error, violated_links
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from sidebayes.cache import use_compilation_cache
from sidebayes.data.datasets import load_dataset
from sidebayes.runs.zoo import find_card

SETTING = {"reading": "relation", "inference": "belief_propagation"}
"""The one setting of ppc used everywhere; with the default prior, and with that of highest evidence."""


def data_of(name):
    data = load_dataset(name)
    if name in ("wine", "breast_cancer"):
        data = data.standardized()
    x = PCA(20, random_state=0).fit_transform(data.x) if name == "digits" else data.x
    return x, data.labels


def run_ppc(x, num_clusters, links, seed, **options):
    engine = sb.EM(num_restarts=10, tol=1e-6)
    return sb.fit(
        "ppc", x, links, num_clusters=num_clusters, engine=engine, seed=seed, progress=False,
        **(SETTING | options),
    )  # fmt: skip


def run_ppc_by_evidence(x, num_clusters, links, seed, **options):
    prior = sb.GaussianPrior.by_evidence(x, num_clusters)
    return run_ppc(x, num_clusters, links, seed, prior=prior, **options)


def run_components(x, num_clusters, links, seed):
    return sb.fit(
        "pair_mixture", x, links, num_clusters=num_clusters, num_components=2, pair_law="joint",
        inference="belief_propagation", engine=sb.EM(num_restarts=10, tol=1e-6), seed=seed,
        progress=False,
    )  # fmt: skip


def run_gp(x, num_clusters, links, seed):
    kernel = sb.choose_graph_kernel(x, links, num_clusters=num_clusters)
    return sb.fit(
        "pairwise_gp", kernel.features(), links, num_clusters=num_clusters,
        inference="belief_propagation", seed=seed, progress=False,
    )  # fmt: skip


def run_constraint_fit(x, num_clusters, links, seed, model="constraint_fit", **options):
    """The price of a link is chosen by links held out, its weight left aside; one covariance."""
    shared = {"num_clusters": num_clusters, "engine": sb.Continuation(num_restarts=10, tol=1e-6)}
    shared |= options | {"seed": seed}
    links = sb.choose_strength(x, links, model=find_card(model).model, **shared).links
    return sb.fit(model, x, links, progress=False, **shared)


def run_projection(x, num_clusters, links, seed):
    """As many features extracted as part the clusters: one fewer than these."""
    return run_constraint_fit(
        x, num_clusters, links, seed, "constraint_projection", num_extracted=num_clusters - 1
    )


def held_out_error(fit, labels, links, seed):
    """Expected calibration error of "same cluster" for 2,000 pairs that no link names."""
    pairs = np.random.default_rng(seed).integers(len(labels), size=(2000, 2))
    size = len(labels)
    named = np.sort(links.pairs, axis=1) @ [size, 1]
    pairs = pairs[
        ~np.isin(np.sort(pairs, axis=1) @ [size, 1], named) & (pairs[:, 0] != pairs[:, 1])
    ]
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return calibration_error(fit.same_cluster(pairs), same)


def peers():
    """Peers that are installed, as functions of (x, num_clusters, links, seed)."""
    found = {
        "KMeans": lambda x, k, links, seed: KMeans(k, n_init=10, random_state=seed).fit_predict(x),
        "GMM": lambda x, k, links, seed: GaussianMixture(
            k, n_init=5, reg_covar=1e-3, random_state=seed
        ).fit_predict(x),
    }
    try:
        from active_semi_clustering.semi_supervised import pairwise_constraints as peer
    except ImportError:
        print("peers extra not installed: PCKMeans, MPCKMeans and COP-KMeans left out")
        return found

    def wrap(cls):
        def run(x, k, links, seed):
            np.random.seed(seed)  # noqa: NPY002  the peer draws from the global generator
            must = [tuple(p) for p in links.pairs[links.same].tolist()]
            cannot = [tuple(p) for p in links.pairs[~links.same].tolist()]
            return np.asarray(cls(n_clusters=k).fit(x, ml=must, cl=cannot).labels_)

        return run

    found |= {"PCKMeans": wrap(peer.PCKMeans), "COP-KMeans": wrap(peer.COPKMeans)}
    return found | {"MPCKMeans": wrap(peer.MPCKMeans)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="draws of links")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--data", default="iris,wine,breast_cancer,digits")
    parser.add_argument("--pairs", default="50,100,200")
    parser.add_argument("--flip-rate", type=float, default=0.0)
    parser.add_argument("--skip", default="", help="methods to leave out, comma-separated")
    options = parser.parse_args()
    use_compilation_cache()
    methods = {
        "ppc": run_ppc,
        "ppc evidence": run_ppc_by_evidence,
        "pair_mixture": run_components,
        "pairwise_gp": run_gp,
        "constraint_fit": run_constraint_fit,
        "constraint_projection": run_projection,
    } | peers()
    if options.flip_rate:
        methods["ppc learned"] = partial(run_ppc, flip_rate="learned")
    methods = {n: m for n, m in methods.items() if n not in options.skip.split(",")}
    print(
        f"{'data':14} {'pairs':>5} {'method':12} {'ARI':>13} {'untouched':>9} {'violated':>8}  CPU s "
        "failed, and of our fits: calibration error of held-out pairs, learned flip rate off by; "
        "standard errors in brackets"
    )
    sizes = [int(size) for size in options.pairs.split(",")]
    for name in options.data.split(","):
        x, labels = data_of(name)
        num_clusters = len(np.unique(labels))
        for num_pairs in sizes:
            scores = defaultdict(list)
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                links = sb.simulate_links(labels, num_pairs, flip_rate=options.flip_rate, seed=seed)
                if options.flip_rate:
                    links = links.with_strength(sb.flip_rate_weight(options.flip_rate))
                agree = labels[links.pairs[:, 0]] == labels[links.pairs[:, 1]]
                wrong = np.mean(agree != links.same)
                free = np.setdiff1d(np.arange(len(labels)), links.pairs)
                for method, run in methods.items():
                    start = time.process_time()
                    try:
                        # importing the peer turns NumPy's floating-point warnings into errors
                        with warnings.catch_warnings(), np.errstate(all="ignore"):
                            warnings.simplefilter("ignore")
                            fit = run(x, num_clusters, links, seed)
                    except Exception:  # peers raise whatever they raise; failures are counted
                        scores[method].append((np.nan,) * 6)
                        continue
                    ours = isinstance(fit, sb.Fit)
                    found = fit.labels() if ours else fit
                    scores[method].append(
                        (
                            adjusted_rand_score(labels, found),
                            adjusted_rand_score(labels[free], found[free]),
                            violated_links(found, links.pairs, links.weights),
                            time.process_time() - start,
                            held_out_error(fit, labels, links, seed) if ours else np.nan,
                            abs(fit.params["flip_rate"] - wrong)
                            if ours and "flip_rate" in fit.params
                            else np.nan,
                        )
                    )
            for method, rows in scores.items():
                value = np.array(rows, float)
                bad = int(np.isnan(value[:, 0]).sum())
                good = value[~np.isnan(value[:, 0])]
                if not len(good):
                    print(f"{name:14} {num_pairs:5} {method:12} failed in all {bad} runs")
                    continue
                mean = good.mean(axis=0)
                error = good[:, 0].std(ddof=1) / np.sqrt(len(good)) if len(good) > 1 else np.nan
                print(
                    f"{name:14} {num_pairs:5} {method:12} {mean[0]:.3f} ({error:.3f}) "
                    f"{mean[1]:9.3f} {mean[2]:8.1f} {mean[3]:6.2f} {bad or '':>6}"
                    + "".join(f" {extra:.3f}" for extra in mean[4:] if np.isfinite(extra)),
                    flush=True,
                )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
