"""Reproduce Yu (2016), chapter 4: toy, random pairs, two moons, several Gaussians per class.

The thesis prints curves without numbers; beside our figures stand those of an independent run of
the same protocol. Links are independent observations (`separate_pairs`), points are labelled one by
one, without their links. Every point is named about equally often and the number of must-links is
held at its mean, so that repeats share one compiled program. Under pair_law="shared" and disjoint
pairs the method is the mixture with equivalence constraints of Shental et al. (GMM-EC), and under
"joint" its E-step is that of posterior constraints at level zero (EM-PC): neither is a peer of its own.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/pair_mixture.py [--parts toy,moons,pairs]
"""

import argparse
import time

import jax
import numpy as np
from sidebayes.diagnostics.trust.scores import purity
from sklearn.datasets import make_moons
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

REFERENCE = {
    ("haberman", 1): {0: 0.744, 64: 0.742, 256: 0.744},
    ("new_thyroid", 1): {0: 0.805, 64: 0.817, 256: 0.877},
    ("digits123", 1): {0: 0.769, 64: 0.836, 256: 0.882},
    ("digits123", 2): {0: 0.779, 64: 0.803, 256: 0.841},
    ("digits4567", 1): {0: 0.972, 64: 0.973, 256: 0.973},
    ("digits4567", 2): {0: 0.916, 64: 0.945, 256: 0.966},
}
"""Purity by data, Gaussians per class and pairs in an independent run (20 trials, one random start)."""

TOY = {"no links": (0, 0), "2 must, 2 cannot": (2, 2), "2 must": (2, 0), "2 cannot": (0, 2)}
TOY_REFERENCE = (0.44, 0.88, 0.88, 0.88)
MOONS = {"no links": (False, 1), "1": (True, 1), "2": (True, 2), "4": (True, 4)}
MOONS_REFERENCE = (0.73, 0.79, 0.90, 0.79)


def load(name):
    """Points and classes: digits as two principal components, thyroid as normal or not."""
    if name.startswith(("digits", "mnist")):
        table, wanted = name.rstrip("0123456789"), name.lstrip("digtsmn")
        data = sb.load_dataset({"mnist": "mnist_t10k"}.get(table, table))
        rows = np.isin(data.labels, [int(digit) for digit in wanted])
        return PCA(2, random_state=0).fit_transform(data.x[rows]), data.labels[rows]
    data = sb.load_dataset(name)
    if name == "new_thyroid":
        return data.x, (data.labels != np.bincount(data.labels).argmax()).astype(int)
    return data.x, data.labels


def balanced_links(labels, num_pairs, seed):
    """Random pairs, points named equally often, as many alike as in the mean."""
    num_points = len(labels)
    rng = np.random.default_rng(seed)
    share = np.sum((np.bincount(labels) / num_points) ** 2)
    for _ in range(20_000):
        rounds = max(-(-2 * num_pairs // num_points), 1)
        ends = np.concatenate([rng.permutation(num_points) for _ in range(rounds)])
        pairs = np.sort(ends[: 2 * num_pairs].reshape(-1, 2), axis=1)
        same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
        distinct = len(np.unique(pairs, axis=0)) == num_pairs and (pairs[:, 0] < pairs[:, 1]).all()
        if distinct and same.sum() == round(share * num_pairs):
            return sb.Links.from_pairs(pairs, same, np.inf, num_points)
    raise RuntimeError(f"no draw of {num_pairs} pairs met its counts")


def fit_apart(x, links, num_clusters, num_components, seed, law="shared", restarts=1, init=None):
    """Labels of all points by the mixture fitted to copies of the linked ones."""
    rows, apart = sb.separate_pairs(links, len(x))
    fit = sb.fit(
        "pair_mixture",
        x[rows],
        apart,
        num_clusters=num_clusters,
        num_components=num_components,
        pair_law=law,
        engine=sb.EM(num_restarts=restarts),
        seed=seed,
        init=init,
        progress=False,
    )
    return fit.predict(x)


def toy(num_repeats):
    """Experiment E-P1: share of draws with purity above .9, from one poor start each."""
    for (title, (num_must, num_cannot)), printed in zip(TOY.items(), TOY_REFERENCE, strict=True):
        good = []
        for seed in range(num_repeats):
            rng = np.random.default_rng(seed)
            label, side = rng.integers(2, size=60), rng.choice([-1, 1], 60)
            x = np.stack([1.3 * side, 2 * label - 1], axis=1) + 0.5 * rng.normal(size=(60, 2))
            cell = {
                (a, b): np.flatnonzero((label == a) & (side == b)) for a in (0, 1) for b in (-1, 1)
            }
            must = [(cell[a, -1][0], cell[a, 1][0]) for a in (0, 1)][:num_must]
            cannot = [(cell[0, b][1], cell[1, b][1]) for b in (-1, 1)][:num_cannot]
            links = sb.Links.empty()
            if must:
                links = links + sb.Links.must_link(must)
            if cannot:
                links = links + sb.Links.cannot_link(cannot)
            centre = 0.3 * np.array([1.3, 1.0])
            init = {
                "weights": np.full(2, 0.5),
                "mean": np.stack([-centre, centre])[:, None],
                "covariance": np.tile(np.cov(x.T), (2, 1, 1, 1)),
            }
            good.append(purity(label, fit_apart(x, links, 2, 1, seed, init=init)) > 0.9)
        print(
            f"toy        {title:18} right in {np.mean(good):.2f}  (independent run {printed:.2f})",
            flush=True,
        )


def moons(num_repeats, restarts):
    """Experiment E-P3: purity with two must-links and two cannot-links."""
    for (title, (linked, number)), printed in zip(MOONS.items(), MOONS_REFERENCE, strict=True):
        scores = []
        for seed in range(num_repeats):
            x, label = make_moons(200, noise=0.06, random_state=seed)
            rng = np.random.default_rng(seed)
            first, second = (rng.permutation(np.flatnonzero(label == c))[:4] for c in (0, 1))
            links = sb.Links.must_link([first[:2], second[:2]])
            links = links + sb.Links.cannot_link(np.stack([first[2:], second[2:]], axis=1))
            given = links if linked else sb.Links.empty()
            scores.append(purity(label, fit_apart(x, given, 2, number, seed, restarts=restarts)))
        print(
            f"moons      {title:9} Gaussians {number}  purity {np.mean(scores):.3f} "
            f"({np.std(scores):.3f}), best {max(scores):.3f}  (independent run {printed:.2f})",
            flush=True,
        )


def pairs(names, counts, components, num_repeats, restarts):
    """Experiments E-P2 and E-P5: purity and adjusted Rand index with random pairs."""
    for name in names:
        x, labels = load(name)
        labels = np.unique(labels, return_inverse=True)[1]
        num_clusters = labels.max() + 1
        for number in components:
            for count in counts:
                for law in ("shared", "joint") if count and number == 1 else ("shared",):
                    rows = []
                    for seed in range(num_repeats):
                        links = balanced_links(labels, count, seed)
                        found = fit_apart(x, links, num_clusters, number, seed, law, restarts)
                        rows.append((purity(labels, found), adjusted_rand_score(labels, found)))
                    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
                    printed = REFERENCE.get((name, number), {}).get(count)
                    print(
                        f"{name:11} Gaussians {number}  pairs {count:3}  {law:7} purity {mean[0]:.3f} "
                        f"({spread[0]:.3f})  ARI {mean[1]:.3f}"
                        + (f"  (independent run {printed:.3f})" if printed else ""),
                        flush=True,
                    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="toy,moons,pairs")
    parser.add_argument("--sets", default="haberman,new_thyroid,digits123,digits4567")
    parser.add_argument("--pairs", default="0,64,256")
    parser.add_argument("--components", default="1,2")
    parser.add_argument("--seeds", type=int, default=5, help="repeats with random pairs")
    parser.add_argument("--restarts", type=int, default=5, help="starts of EM; the best is kept")
    options = parser.parse_args()
    use_compilation_cache()
    parts = options.parts.split(",")
    began = time.perf_counter()
    if "toy" in parts:
        toy(16)
    if "moons" in parts:
        moons(12, options.restarts)
    if "pairs" in parts:
        counts = [int(count) for count in options.pairs.split(",")]
        components = [int(number) for number in options.components.split(",")]
        pairs(options.sets.split(","), counts, components, options.seeds, options.restarts)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
