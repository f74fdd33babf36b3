"""Which features matter and how many clusters: feature_saliency against peers, in the same run.

Run: SIDEBAYES_DATA=folder python benchmarks/feature_saliency.py
     [--parts four,peer,mixed,trunk,law,waveform,speed]
     [--splits 10] [--data wine,wdbc,segment] [--prior empirical]

four      four Gaussians in two features, and eight of noise (Law 2006, section 4.4.1): clusters found,
          largest saliency of a noise feature, least of the others, index against the truth, CPU seconds.
          The peer is scikit-learn's diagonal mixture with the number of components by BIC.
peer      bayesian-sparse-gmm (PyPI) and mclust (R) beside feature_saliency: the first four Gaussians
          standardised, and wine. What is not installed is left out with a line.
mixed     three clusters of which two measurements and two categories tell, and eight columns of noise: index,
          and CPU seconds, beside StepMix (PyPI), which chooses no features, with one to six classes by BIC.
trunk     two Gaussians in twenty features that matter less and less.
law       random halves of standardised public data: the first is fitted, each component gets the class of
          most of its rows, and the error is that of the second half (section 4.4.2), beside its log density.
          The peer is scikit-learn's diagonal mixture with the number of components by BIC.
waveform  the nineteen noise columns of waveform40: how many are ranked last.
speed     100,000 rows of 50 features, from 30 clusters: seconds, and memory of the process at its peak.
"""

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import trace_model
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

MEANS = np.array([(0.0, 3.0), (1.0, 9.0), (6.0, 4.0), (7.0, 10.0)])
LAW = {"wine": (6.61, 6.61), "wdbc": (9.55, 9.35), "segment": (20.19, 20.28)}
"""Test error of the thesis in %, and that after its post-processing (Table 4.2)."""


def four_gaussians(seed, size=800):
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=size)
    x = np.concatenate([MEANS[labels], np.zeros((size, 8))], axis=1)
    return x + rng.normal(size=x.shape), labels


def used(fit):
    return int((fit.params["weights"] > 0).sum())


def four(options):
    print(
        "| run | clusters | least saliency of two | largest of noise | index | BIC: clusters | index "
        "| CPU s |"
    )
    print("|" + " --- |" * 8)
    for seed in range(10):
        x, labels = four_gaussians(seed)
        began = time.process_time()
        fit = sb.fit("feature_saliency", x, num_clusters=30, seed=seed, progress=False)
        seconds = time.process_time() - began
        saliency = fit.params["saliency"]
        plain = by_bic(x, seed, most=9)
        print(
            f"| {seed} | {used(fit)} | {saliency[:2].min():.3f} | {saliency[2:].max():.3f} "
            f"| {adjusted_rand_score(labels, fit.labels()):.3f} | {plain.n_components} "
            f"| {adjusted_rand_score(labels, plain.predict(x)):.3f} | {seconds:.1f} |",
            flush=True,
        )


def saliency_peer(data):
    fit = sb.fit("feature_saliency", data, num_clusters=30, progress=False)
    return fit.labels(), used(fit), np.flatnonzero(fit.params["saliency"] > 0.5).tolist()


def sparse_peer(data):
    from bayesian_sparse_gmm import BayesianSparseGMM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BayesianSparseGMM(
            K_max=30, n_iter=2000, burn_in=500, backend="numpy", random_state=0
        )
        model.fit(data)
    chosen = np.flatnonzero(np.asarray(model.feature_probabilities_) > 0.5)
    return model.predict(data), model.n_clusters_, chosen.tolist()


MCLUST = """
suppressPackageStartupMessages(library(mclust))
folder <- commandArgs(TRUE)
fit <- Mclust(as.matrix(read.csv(file.path(folder, "x.csv"), header = FALSE)), G = 1:9, verbose = FALSE)
writeLines(as.character(fit$classification), file.path(folder, "labels.txt"))
writeLines(fit$modelName, file.path(folder, "model.txt"))
"""


def mclust_peer(data):
    """All covariance models of mclust and one to nine clusters, by BIC; it chooses no features."""
    with tempfile.TemporaryDirectory() as folder:
        np.savetxt(Path(folder) / "x.csv", data, delimiter=",")
        subprocess.run(["Rscript", "-e", MCLUST, folder], check=True)
        labels = np.loadtxt(Path(folder) / "labels.txt", dtype=int)
        model = (Path(folder) / "model.txt").read_text().strip()
    return labels, len(np.unique(labels)), model


def has_mclust():
    if shutil.which("Rscript") is None:
        return False
    found = subprocess.run(["Rscript", "-e", "library(mclust)"], capture_output=True, check=False)
    return found.returncode == 0


def cpu_seconds():
    return sum(
        resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def peer(options):
    methods = {"feature_saliency": saliency_peer}
    if importlib.util.find_spec("bayesian_sparse_gmm"):
        methods["bayesian-sparse-gmm"] = sparse_peer
    else:
        print("peer: bayesian-sparse-gmm is not installed (pip install bayesian-sparse-gmm)")
    if has_mclust():
        methods["mclust"] = mclust_peer
    else:
        print("peer: Rscript with mclust is not installed")
    x, labels = four_gaussians(0)
    cases = {
        "four Gaussians": ((x - x.mean(axis=0)) / x.std(axis=0), labels),
        "wine": table("wine"),
    }
    print(
        "| data | method | clusters | index | features, or covariances | CPU s |\n|" + " --- |" * 6
    )
    for name, (data, truth) in cases.items():
        for method, fitted in methods.items():
            began = cpu_seconds()
            found, number, chosen = fitted(data)
            index = adjusted_rand_score(truth, found)
            print(
                f"| {name} | {method} | {number} | {index:.3f} | {chosen} | {cpu_seconds() - began:.1f} |",
                flush=True,
            )


def mixed_columns(seed, size=600):
    """Measurements and categories of three levels, noise behind them, and the clusters."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=size)
    real = rng.normal(size=(size, 6))
    real[:, :2] += np.array([(0.0, 2.5), (2.5, 0.0), (2.5, 2.5)])[labels]
    likely = np.array([(0.7, 0.2, 0.1), (0.15, 0.7, 0.15), (0.1, 0.2, 0.7)])
    level = [rng.multinomial(1, row).argmax() for _ in range(2) for row in likely[labels]]
    category = np.column_stack([np.reshape(level, (2, size)).T, rng.integers(3, size=(size, 4))])
    return real, category.astype(float), labels


def by_stepmix(real, category, seed):
    """Latent classes of both kinds of columns; their number by BIC."""
    from stepmix import StepMix

    data = pd.DataFrame(np.column_stack([real, category]))
    kinds = {
        "measured": {"model": "gaussian_diag", "n_columns": real.shape[1]},
        "stated": {"model": "categorical", "n_columns": category.shape[1]},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [
            StepMix(
                number, measurement=kinds, n_init=10, random_state=seed,
                progress_bar=0, verbose=0,
            ).fit(data)
            for number in range(1, 7)
        ]  # fmt: skip
        best = min(fits, key=lambda fit: fit.bic(data))
        return best.n_components, best.predict(data)


def mixed(options):
    has_stepmix = importlib.util.find_spec("stepmix") is not None
    if not has_stepmix:
        print("mixed: stepmix is not installed (pip install stepmix)")
    print(
        "| draw | method | clusters | index | largest saliency of noise | CPU s |\n|" + " --- |" * 6
    )
    for seed in range(options.splits):
        real, category, labels = mixed_columns(seed)
        began = cpu_seconds()
        fit = sb.fit(
            "feature_saliency", np.column_stack([real, category]), num_clusters=15, seed=seed,
            kinds=["normal"] * 6 + ["category:3"] * 6, progress=False,
        )  # fmt: skip
        seconds, noise = cpu_seconds() - began, np.r_[2:6, 8:12]
        index = adjusted_rand_score(labels, fit.labels())
        highest = fit.params["saliency"][noise].max()
        print(
            f"| {seed} | feature_saliency | {used(fit)} | {index:.3f} | {highest:.3f} | {seconds:.1f} |",
            flush=True,
        )
        if not has_stepmix:
            continue
        began = cpu_seconds()
        number, found = by_stepmix(real, category, seed)
        index = adjusted_rand_score(labels, found)
        print(
            f"| {seed} | StepMix | {number} | {index:.3f} | | {cpu_seconds() - began:.1f} |",
            flush=True,
        )


def trunk(options):
    means = 1 / np.sqrt(np.arange(1, 21))
    for seed in range(options.splits):
        rng = np.random.default_rng(seed)
        sign = np.repeat([1.0, -1.0], 5000)[:, None]
        x = sign * means + rng.normal(size=(10_000, 20))
        engine = sb.ComponentwiseEM(num_restarts=1)
        began = time.process_time()
        fit = sb.fit(
            "feature_saliency", x, num_clusters=30, seed=seed, engine=engine, progress=False
        )
        rho = fit.params["saliency"]
        order = spearmanr(rho, np.arange(20)).statistic
        print(
            f"trunk {seed}: {used(fit)} clusters, saliencies {rho[0]:.2f} to {rho[-1]:.2f}, rank "
            f"correlation with the index {order:.2f}, {time.process_time() - began:.1f} CPU s",
            flush=True,
        )


def table(name):
    data = pd.read_csv(Path(os.environ["SIDEBAYES_DATA"]) / f"{name}.csv")
    x, y = data.iloc[:, :-1].to_numpy(float), pd.factorize(data.iloc[:, -1])[0]
    x = x[:, np.ptp(x, axis=0) > 0]
    return (x - x.mean(axis=0)) / x.std(axis=0), y


def by_bic(x, seed, most):
    """Diagonal mixture whose number of components has the least BIC."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [
            GaussianMixture(k, covariance_type="diag", n_init=2, random_state=seed).fit(x)
            for k in range(1, most + 1)
        ]
    return min(fits, key=lambda one: one.bic(x))


def error(fitted, classes, predicted, truth):
    """Share of rows in components most of whose fitted rows have another class."""
    wrong = 0
    for component in np.unique(predicted):
        own = classes[fitted == component]
        best = np.bincount(own).argmax() if len(own) else -1
        wrong += int((truth[predicted == component] != best).sum())
    return 100 * wrong / len(truth)


def contrasted(fit, x):
    """Clusters of fitted and of new rows at saliencies that tell the clusters apart best (section 4.3.4)."""
    found = fit.contrast()
    with fit.run.precision:
        ((fn, _),) = collapsed_sites(trace_model(fit.run.problem, found.params)).values()
        density = np.asarray(fn.components.by_cluster(x))
    with np.errstate(divide="ignore"):
        log_weights = np.log(found.params["weights"])
    return found.labels, (density + log_weights[:, None]).argmax(axis=0)


def held_out(name, seed, prior):
    """Errors, log density per row, components and seconds, here and of the plain mixture, of one half."""
    x, y = table(name)
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[: len(x) // 2], order[len(x) // 2 :]
    began = time.process_time()
    fit = sb.fit(
        "feature_saliency", x[train], num_clusters=30, prior=prior, seed=seed, progress=False
    )
    ours = time.process_time() - began
    again, placed = contrasted(fit, x[test])
    began = time.process_time()
    plain = by_bic(x[train], seed, most=30)
    theirs = time.process_time() - began
    return (
        error(fit.labels(), y[train], fit.predict(x[test]), y[test]),
        float(np.mean(fit.log_prob(x[test]))),
        used(fit),
        ours,
        error(plain.predict(x[train]), y[train], plain.predict(x[test]), y[test]),
        plain.score(x[test]),
        plain.n_components,
        theirs,
        error(again, y[train], placed, y[test]),
    )


def law(options):
    print(
        "| data | test error | after contrast | log density per row | clusters | CPU s | BIC: error "
        "| log density | components | CPU s | thesis | after contrast |\n|" + " --- |" * 12
    )
    for name in options.data.split(","):
        found = [held_out(name, seed, options.prior) for seed in range(options.splits)]
        mean, deviation = np.mean(found, axis=0), np.std(found, axis=0)
        ours, again, plain = (f"{mean[k]:.2f} ({deviation[k]:.2f})" for k in (0, 8, 4))
        print(
            f"| {name} | {ours} | {again} | {mean[1]:.2f} | {mean[2]:.1f} | {mean[3]:.1f} "
            f"| {plain} | {mean[5]:.2f} | {mean[6]:.1f} | {mean[7]:.1f} "
            f"| {' | '.join(f'{one}' for one in LAW.get(name, ('', '')))} |",
            flush=True,
        )


def waveform(options):
    x, _ = table("waveform40")
    fit = sb.fit("feature_saliency", x, num_clusters=30, progress=False)
    rho = fit.params["saliency"]
    last = np.sort(rho)[18]
    print(
        f"waveform40: {used(fit)} clusters, {int((rho[21:] <= last).sum())} of 19 noise columns last; "
        f"largest saliency of noise {rho[21:].max():.3f}, signal columns below it "
        f"{list(np.flatnonzero(rho[:21] <= rho[21:].max()))}"
    )


def speed(options):
    rng = np.random.default_rng(0)
    means = np.zeros((8, 50))
    means[:, :15] = 2 * rng.normal(size=(8, 15))
    x = means[rng.integers(8, size=100_000)] + rng.normal(size=(100_000, 50))
    engine = sb.ComponentwiseEM(num_restarts=1)
    wall, cpu = time.perf_counter(), time.process_time()
    fit = sb.fit("feature_saliency", x, num_clusters=30, engine=engine, progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    relevant = int((fit.params["saliency"] > 0.5).sum())
    print(
        f"100,000 x 50 from 30 clusters: {used(fit)} clusters, {relevant} features, {wall:.0f} s ({cpu:.0f} "
        f"CPU s; {fit.seconds['compile']:.1f} s compiling), peak memory {memory:.2f} GB\n{fit.status}"
    )


PARTS = {
    "four": four,
    "peer": peer,
    "mixed": mixed,
    "trunk": trunk,
    "law": law,
    "waveform": waveform,
    "speed": speed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument(
        "--data", default=",".join(LAW), help="of the part law, public sets by name"
    )
    parser.add_argument("--prior", default="empirical", help="of the part law")
    options = parser.parse_args()
    use_compilation_cache()
    for name in options.parts.split(","):
        PARTS[name](options)


if __name__ == "__main__":
    main()
