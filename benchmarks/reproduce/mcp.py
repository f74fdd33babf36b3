"""Reproduce Raghuram (2014), chapter 3: the number of classes (Table 3.2), and groupings by pairs.

Features are principal components of the raw data, as many as the thesis kept (99.5 % of the variance);
rows that occur twice are dropped. Pen digits are the first 5499 of a random order, as the thesis has that
many. Pairs are drawn at random among all points, as many as a share of their number; what they imply is
added. Figures are of all points that occur in no pair.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/mcp.py [--parts numbers,groups] [--sets 5]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sidebayes.diagnostics.trust.scores import accuracy, purity_f_score
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score

import sidebayes as sb
from sidebayes import EM
from sidebayes.cache import use_compilation_cache

NUMBERS = {
    "segment": (6, 7, {0.02: (8.0, 0.89), 0.06: (6.9, 0.70), 0.12: (6.8, 0.60)}),
    "pendigits": (14, 10, {0.02: (8.9, 0.70), 0.06: (10.3, 0.46), 0.12: (10.6, 0.49)}),
}
"""Principal components, classes, and Table 3.2: mean and deviation over ten sets, by share of pairs.

Wall-following robots, the third set of the table, are not among the public data used here.
"""

MOST_POINTS = 5499


def load(name, dims, most=MOST_POINTS):
    """Principal components of distinct rows, and their classes."""
    data = sb.load_dataset(name)
    x, rows = np.unique(data.x, axis=0, return_index=True)
    order = np.random.default_rng(0).permutation(len(x))[:most]
    x, labels = x[order], data.labels[rows][order]
    return (PCA(dims).fit_transform(x) if dims else x), labels


def f_measure(truth, labels):
    """F of purity (eqs. 3.18-3.19), and mutual information by the geometric mean (eq. 3.20)."""
    nmi = normalized_mutual_info_score(truth, labels, average_method="geometric")
    return purity_f_score(truth, labels), nmi


def unlinked(links, num_points):
    """Points that occur in no pair."""
    free = np.ones(num_points, bool)
    free[links.pairs.ravel()] = False
    return free


def choose(name, share, seed, num_splits, strengths, keep):
    """Numbers that the links of one set call for, with the path of the search; from a file if kept."""
    path = Path(keep) / f"{name}-{share:g}-{seed}.csv" if keep else None
    if path is not None and path.exists():
        return pd.read_csv(path, index_col=0)
    dims, _, _ = NUMBERS[name]
    x, labels = load(name, dims)
    links = sb.simulate_links(labels, round(share * len(x)), seed=seed)
    began = time.process_time()
    choice = sb.select_clusters(
        x,
        links,
        most_components=30,
        strengths=strengths,
        num_splits=num_splits,
        seed=seed,
        progress=False,
    )
    free = unlinked(links, len(x))
    f, nmi = f_measure(labels[free], choice.fit.labels()[free])
    seconds = time.process_time() - began
    table = choice.path.assign(f=f, nmi=nmi, points=len(x), seconds=seconds)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path)
    return table


def dense(table):
    """Clusters at the least BIC among numbers of components that violate 1 % more than the least."""
    upto = table.loc[: table["bic"].idxmin()]
    close = upto[upto["violation"] < upto["violation"].min() + 0.01]
    return close["num_clusters"][close["bic"].idxmin()]


def numbers(sets, shares, names, num_splits, strengths, keep):
    """Number of classes that the links call for, beside Table 3.2."""
    rows = []
    for name in names:
        _, truth, published = NUMBERS[name]
        for share in shares:
            found = []
            for seed in range(sets):
                table = choose(name, share, seed, num_splits, strengths, keep)
                chosen = table[table["chosen"]].reset_index().iloc[0].to_dict()
                found.append(chosen | {"dense": dense(table)})
                print(
                    "{} {:.0%} set {}: {num_clusters:.0f} clusters of {num_components:.0f} components, "
                    "{violation:.4f} violated, F {f:.3f}, NMI {nmi:.3f}, {seconds:.0f} CPU s".format(
                        name, share, seed, **chosen
                    ),
                    flush=True,
                )
            ours = pd.DataFrame(found)
            mean, deviation = published[share]
            rows.append(
                f"| {name} | {ours.points.iloc[0]:.0f} | {truth} | {share:.0%} | {mean} ({deviation}) | "
                f"{ours.num_clusters.mean():.1f} ({ours.num_clusters.std(ddof=0):.2f}) | "
                f"{ours.dense.mean():.1f} ({ours.dense.std(ddof=0):.2f}) | {sets} | "
                f"{ours.f.mean():.2f} | {ours.seconds.mean():.0f} |"
            )
    print("| data | points | true | pairs | thesis, 10 sets | ours | by BIC | sets | F | CPU s |")
    print("|" + " --- |" * 10)
    print("\n".join(rows), flush=True)


GROUPS = {"iris": (0, 150), "segment": (6, 700), "vehicle": (8, 846), "balance_scale": (0, 625)}
"""Principal components (0: features as they are, standardised), and points at most."""


def methods(num_classes):
    """Methods by name, with options; components as many as twice the classes."""
    quick = EM(num_restarts=10, num_inner_steps=30, tol=1e-5, max_steps=200)
    pooled = {"num_components": 2 * num_classes, "engine": quick}
    return {
        "mcp": ("mcp", pooled),
        "scp": ("scp", {"engine": quick}),
        "mean field (MCGMM)": ("mcp", pooled | {"posterior": "mean_field"}),
        "constrained_em (SCGMM)": ("constrained_em", {}),
        "ppc": ("ppc", {"reading": "relation"}),
        "pair_mixture": ("pair_mixture", {"num_components": 2, "pair_law": "joint"}),
        "pairwise_gp": ("pairwise_gp", {}),
        "gmm": ("gmm", {}),
    }


def groups(sets, share, names):
    """Error, F and NMI of points without pairs, the number of classes known; all methods see one set."""
    lines = []
    for name in names:
        dims, most = GROUPS[name]
        x, labels = load(name, dims, most)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        num_classes, num_pairs = len(np.unique(labels)), round(share * len(x))
        for method, (card, options) in methods(num_classes).items():
            scores, began = [], time.process_time()
            for seed in range(sets):
                links = sb.simulate_links(labels, num_pairs, seed=seed)
                free = unlinked(links, len(x))
                given = () if card == "gmm" else (links,)
                if card in ("mcp", "scp"):
                    given = (links.entailed(),)
                if card == "pairwise_gp":
                    given = (links.with_strength(3.0),)
                try:
                    fit = sb.fit(
                        card,
                        x,
                        *given,
                        num_clusters=num_classes,
                        progress=False,
                        seed=seed,
                        **options,
                    )
                except (ValueError, sb.FitError) as error:
                    print(f"{name} {method} refused: {str(error)[:120]}", flush=True)
                    continue
                found = fit.predict(x[free])
                error = 1 - accuracy(labels[free], found)
                scores.append((error, *f_measure(labels[free], found)))
            if scores:
                seconds = (time.process_time() - began) / len(scores)
                each = zip(np.mean(scores, axis=0), np.std(scores, axis=0), strict=True)
                cells = " | ".join(f"{mean:.3f} ({spread:.3f})" for mean, spread in each)
                lines.append(
                    f"| {name}, {num_pairs} pairs | {method} | {cells} | {len(scores)} | {seconds:.0f} |"
                )
                print(lines[-1], flush=True)
    print("\n| data | method | error | F | NMI | sets | CPU s |\n|" + " --- |" * 7)
    print("\n".join(lines), flush=True)


def main():
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="numbers,groups")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--shares", default="0.02,0.06,0.12", help="pairs by points")
    parser.add_argument(
        "--keep", help="folder for the searches; those that lie there are not repeated"
    )
    parser.add_argument("--names", default="segment,pendigits")
    parser.add_argument("--data", default=",".join(GROUPS))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--strengths", default="1,10,100")
    args = parser.parse_args()
    shares = tuple(map(float, args.shares.split(",")))
    use_compilation_cache()
    if "numbers" in args.parts:
        strengths = tuple(map(float, args.strengths.split(",")))
        numbers(args.sets, shares, args.names.split(","), args.splits, strengths, args.keep)
    if "groups" in args.parts:
        for share in shares:
            groups(args.sets, share, args.data.split(","))


if __name__ == "__main__":
    main()
