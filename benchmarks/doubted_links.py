"""How often the verdict of `ppc` doubts links, and how often it is silent about links that did harm.

Run: python -m benchmarks.doubted_links [--draws 4]
The number of links is a quarter of the number of points (150 at most), between random pairs. Each line has
the number of fits whose verdict names links in doubt, for each weight of the links, and in brackets the
number without such a verdict whose adjusted Rand index is more than .05 below that of a fit without links.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import typer
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

WRONG = {"none": 0.0, "10 %": 0.1, "20 %": 0.2, "30 %": 0.3, "permuted": None}
WEIGHTS = 2.0, 4.0, 8.0, np.inf
SEPARATIONS = 3.5, 2.5, 1.5


def real_sets(draws):
    """Group, features and classes; fewer draws of the largest."""
    for load in (load_iris, load_wine):
        x, classes = load(return_X_y=True)
        for seed in range(draws):
            yield "iris, wine, digits", seed, (x - x.mean(0)) / x.std(0), classes
    x, classes = load_digits(return_X_y=True)
    x = PCA(10, random_state=0).fit_transform(x)
    for seed in range((draws + 1) // 2):
        yield "iris, wine, digits", seed, x, classes


def blobs(draws):
    """Three normal classes whose means are so many standard deviations apart."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    for apart in SEPARATIONS:
        for seed in range(draws):
            classes = np.repeat(np.arange(3), 50)
            noise = np.random.default_rng(seed).normal(size=(150, 2))
            yield "blobs", seed, apart * corners[classes] + noise, classes


def linked(classes, wrong, weight, seed):
    """Links between random pairs, of which a share is wrong; or between permuted classes."""
    number = min(len(classes) // 4, 150)
    if wrong is None:
        classes = np.random.default_rng(seed).permutation(classes)
    return sb.simulate_links(classes, number, flip_rate=wrong or 0.0, seed=seed).with_strength(
        weight
    )


def main(draws: int = 4):
    """Print the table."""
    use_compilation_cache()
    warnings.simplefilter("ignore")
    cases, doubted, silent = Counter(), Counter(), Counter()
    for group, seed, x, classes in (*real_sets(draws), *blobs(draws)):
        options = {"num_clusters": classes.max() + 1, "engine": sb.EM(num_restarts=3)}
        options |= {"seed": seed, "progress": False}

        def score(links, x=x, classes=classes, options=options):
            fit = sb.fit("ppc", x, links, **options)
            return adjusted_rand_score(classes, fit.labels()), "suspect_links" in fit.verdict[1]

        alone, _ = score(None)
        for wrong, rate in WRONG.items():
            for weight in WEIGHTS:
                key = group, wrong, weight
                try:
                    index, doubt = score(linked(classes, rate, weight, seed))
                except ValueError:  # hard links that contradict one another are refused
                    continue
                cases[key] += 1
                doubted[key] += doubt
                silent[key] += not doubt and index < alone - 0.05
    print("| | wrong |", *(f"{'hard' if np.isinf(w) else f'weight {w:g}'} |" for w in WEIGHTS))
    for group in dict.fromkeys(key[0] for key in cases):
        for wrong in WRONG:
            keys = [(group, wrong, weight) for weight in WEIGHTS]
            print(
                f"| {group} | {wrong} |",
                *(f"{doubted[k]} of {cases[k]} ({silent[k]}) |" for k in keys),
            )


if __name__ == "__main__":
    typer.run(main)
