"""Reproduce Raghuram (2014), chapter 4: a classifier moved to another domain, beside its rivals.

The thesis' packet traces are not public. Its protocol is run on simulated flows (`traffic`, the stand-in of
`sidebayes.simulate_domains`) and on USPS digits 3, 5, 8 as the source of MNIST's (`digits`): the central 20
by 20 pixels of MNIST shrunk to 16 by 16, 20 principal components, those of both domains together or of the
source alone. `swap` is the illustration of figure 4.1.

Some rows of the target are labelled at random; figures are of all others, means over draws. Optimal
transport (POT, in the extra `peers`) takes part where it is installed. `--few` runs the default, the shift
prior and the ported source alone.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/domain_adaptation.py [--parts swap,traffic,digits]
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pandas as pd
from scipy.ndimage import zoom
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.metrics import recall_score
from sklearn.model_selection import cross_val_predict
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC

import sidebayes as sb
from sidebayes import EM, ShiftPrior, SourceMixture
from sidebayes.cache import use_compilation_cache

METHODS = {
    "default": {},
    "shift prior, exact": {"shift": ShiftPrior()},
    "shift prior of 100 points, exact": {"shift": ShiftPrior(mean=100.0, covariance=100.0)},
    "shift prior, partition": {"shift": ShiftPrior(), "posterior": "partition"},
    "flat, partition (DA-P, I)": {"shift": "flat", "posterior": "partition"},
    "flat, exact (DA-NP)": {"shift": "flat", "strength": 10.0},
    "flat, labels kept (II)": {"shift": "flat", "strength": float("inf")},
    "flat, no labels": {"shift": "flat", "strength": 0.0},
}
"""Options of `domain_adaptation`, by name; the thesis' own are flat."""

FEW = ("default", "shift prior, exact")
"""Those of `--few`."""


def engine(restarts):
    return EM(num_restarts=restarts, tol=1e-6, max_steps=200, num_inner_steps=30)


def labelled(labels, number, seed):
    """Classes of some rows, -1 for all others; every class once at least where there is room."""
    rng = np.random.default_rng(seed)
    known = np.full(len(labels), -1)
    rows = rng.choice(len(labels), number, replace=False)
    known[rows] = labels[rows]
    return known


def adapted(name, source, target, known, restarts=1):
    """Classes of the target by one of `METHODS`."""
    fit = sb.fit(
        "domain_adaptation",
        target.x,
        known,
        source=source,
        engine=engine(restarts),
        progress=False,
        **METHODS[name],
    )
    return fit.class_probabilities().argmax(axis=1)


def rivals(first, source, target, known, weight):
    """Classes of the target by the ladder of baselines; those that fail are left out."""
    told = known >= 0
    seen = len(np.unique(known[told])) == source.num_classes
    yield "source only (IV)", source.predict(target.x)
    own = SVC().fit(target.x[told], known[told]) if len(np.unique(known[told])) > 1 else None
    if own is not None:
        yield "target only, SVM", own.predict(target.x)
    if seen:
        moe = sb.fit(
            "moe",
            target.x,
            known,
            num_clusters=source.num_components,
            num_classes=source.num_classes,
            engine=EM(num_restarts=5, tol=1e-5),
            progress=False,
        )
        yield "target only, moe (III)", moe.class_probabilities().argmax(axis=1)
    x = np.concatenate([first.x, target.x[told]])
    y = np.concatenate([first.labels, known[told]])
    yield "pooled", sb.fit_source(x, y, num_components=_by_class(source)).predict(target.x)
    weights = np.where(np.arange(len(x)) < len(first.x), 1.0, weight)
    yield "source + weighted target, SVM", SVC().fit(x, y, sample_weight=weights).predict(target.x)
    base = QuadraticDiscriminantAnalysis(reg_param=1e-3)
    rows = np.concatenate([x, target.x[~told]])
    codes = np.concatenate([y, np.full((~told).sum(), -1)])
    yield "self-training", SelfTrainingClassifier(base).fit(rows, codes).predict(target.x)
    if find_spec("ot") is not None:  # of the extra "peers"
        import ot

        for name, mover in {
            "transport, Sinkhorn (POT)": ot.da.SinkhornTransport(reg_e=0.01, norm="max"),
            "transport, known classes (POT)": ot.da.SinkhornLpl1Transport(reg_e=0.01, norm="max"),
            "transport, linear (POT)": ot.da.LinearTransport(),
        }.items():
            mover.fit(Xs=first.x, ys=first.labels, Xt=target.x, yt=known)
            moved = mover.transform(Xs=first.x)
            number = _by_class(source)
            rule = sb.fit_source(moved, first.labels, num_components=number)
            yield f"{name}, mixtures", rule.predict(target.x)


def _by_class(source):
    return np.bincount(source.component_class).tolist()


def ladder(first, target, source, numbers, draws, restarts, names, few):
    """Accuracy and recall by class of all methods, a row for each number of labels and draw of them."""
    names = FEW if few else names
    rows = []
    for number in numbers:
        for draw in draws:
            known = labelled(target.labels, number, draw)
            free = known < 0
            others = rivals(first, source, target, known, len(first.x) / number)
            for name, guess in [*((n, None) for n in names), *islice(others, 1 if few else None)]:
                if guess is None:
                    guess = adapted(name, source, target, known, restarts)
                truth = target.labels[free]
                recall = recall_score(truth, guess[free], average=None, zero_division=0)
                entry = {
                    "labels": number,
                    "method": name,
                    "accuracy": (guess[free] == truth).mean(),
                }
                entry |= {f"recall {c}": r for c, r in enumerate(recall)}
                rows.append(entry)
    return rows


def show(rows):
    """Means over draws, the standard deviation of the accuracy, and how many draws a method had."""
    by_method = pd.DataFrame(rows).groupby(["labels", "method"], sort=False)
    table, accuracy = by_method.mean(), by_method["accuracy"]
    table.insert(1, "sd", accuracy.std(ddof=0))
    print(table.assign(draws=accuracy.count()).round(3).to_string(), flush=True)


def bound(target, number):
    """Tenfold cross-validation of a classifier of the target with all its classes known."""

    class Mixtures(QuadraticDiscriminantAnalysis):
        def fit(self, x, y):
            self.classes_ = np.unique(y)
            self.source_ = sb.fit_source(x, y, num_components=number)
            return self

        def predict(self, x):
            return self.source_.predict(x)

    guess = cross_val_predict(Mixtures(), target.x, target.labels, cv=10)
    entry = {"labels": len(target.x), "method": "supervised in the target, tenfold"}
    recall = recall_score(target.labels, guess, average=None, zero_division=0)
    entry |= {"accuracy": (guess == target.labels).mean()}
    return entry | {f"recall {c}": r for c, r in enumerate(recall)}


def traffic(draws, restarts, numbers, few):
    """Tables 4.2-4.4 on simulated flows: a source, a target and a draw of labels for each seed."""
    rows = []
    for seed in range(draws):
        first, target = sb.simulate_domains("traffic", 4000, 2500, seed=seed)
        source = sb.fit_source(first.x, first.labels)
        print(f"flows, seed {seed}: {source}", flush=True)
        rows += ladder(first, target, source, numbers, [seed], restarts, METHODS, few)
        if not few:
            rows.append(bound(target, [2, 2, 1, 2]))
    show(rows)


def swap(draws, restarts):
    """Figure 4.1: two corners exchange their classes, one label of each class in these."""
    rows = []
    for deviation, seed in [(d, s) for d in (0.8, 1.2) for s in range(draws)]:
        rng = np.random.default_rng(seed)
        corner = np.arange(320) % 4
        x = np.array([(0, 0), (3.5, 0), (0, 3.5), (3.5, 3.5)])[corner]
        points = x + deviation * rng.normal(size=x.shape)
        truth = np.array([0, 1, 1, 0])[corner]
        centres = np.array([(0, 0), (3.5, 0), (0, 3.5), (3.5, 3.5)], float)
        wide = np.tile(deviation**2 * np.eye(2), (4, 1, 1))
        source = SourceMixture(np.full(4, 0.25), centres, wide, np.array([0, 0, 1, 1]))
        known = np.full(320, -1)
        for c in (1, 3):  # the labels nearest to the centres of the corners that changed
            near = ((points - centres[c]) ** 2).sum(axis=1)
            known[near.argmin()] = truth[near.argmin()]
        target = sb.datasets.Dataset("swap", points, truth, ["x1", "x2"])
        for starts in (1, restarts):
            for name, options in {
                "exact (DA-NP)": {"posterior": "exact"},
                "partition (DA-P)": {"posterior": "partition"},
            }.items():
                fit = sb.fit(
                    "domain_adaptation",
                    target.x,
                    known,
                    source=source,
                    shift="flat",
                    strength=200.0,
                    engine=engine(starts),
                    progress=False,
                    **options,
                )
                guess = fit.class_probabilities().argmax(axis=1)
                accuracy = (guess == truth)[known < 0].mean()
                rows.append(
                    (deviation, starts, name, accuracy, (guess == truth)[known >= 0].mean())
                )
    names = ["deviation", "starts", "method", "accuracy", "labels kept"]
    table = pd.DataFrame(rows, columns=names).groupby(names[:3], sort=False)
    print(table.agg(["mean", "min", "max"]).round(3).to_string(), flush=True)


def digits(draws, restarts, components, numbers, axes_of, few):
    """USPS to MNIST, 3, 5 and 8."""
    usps, mnist = sb.load_dataset("usps358"), sb.load_dataset("mnist_t10k")
    keep = np.isin(mnist.labels, (3, 5, 8))
    images = mnist.x[keep].reshape(-1, 28, 28)[:, 4:24, 4:24]
    small = np.stack([zoom(image, 0.8, order=1) for image in images]).reshape(-1, 256) / 255
    before = usps.x - usps.x.min()
    before = before / before.max()
    classes = [np.unique(y, return_inverse=True)[1] for y in (usps.labels, mnist.labels[keep])]
    tables = {"both": np.concatenate([before, small]), "source": before}
    for what in axes_of:
        rows = tables[what]
        axes = PCA(20, svd_solver="full").fit(rows)
        names = [f"pc{j}" for j in range(20)]
        first, target = (
            sb.datasets.Dataset(n, axes.transform(x), y, names)
            for n, x, y in zip(("usps", "mnist"), (before, small), classes, strict=True)
        )
        source = sb.fit_source(first.x, first.labels, num_components=components)
        print(f"digits, axes of {what}: {source}", flush=True)
        chosen = [name for name in METHODS if "partition" not in name]
        rows = ladder(first, target, source, numbers, range(draws), restarts, chosen, few)
        show([*rows, bound(target, 1)] if what == "both" and not few else rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="swap,traffic,digits")
    parser.add_argument("--draws", type=int, default=5, help="of labels; of flows too")
    parser.add_argument("--restarts", type=int, default=1, help="starts of EM; 20 for swap")
    parser.add_argument("--components", type=int, help="of each class of digits; BIC by default")
    parser.add_argument("--labels", default="10,25", help="rows of known class")
    parser.add_argument("--axes", default="both,source", help="domains of the axes of digits")
    parser.add_argument("--few", action="store_true", help="default, shift prior and ported alone")
    options = parser.parse_args()
    numbers = tuple(map(int, options.labels.split(",")))
    use_compilation_cache()
    for part in options.parts.split(","):
        if part == "swap":
            swap(options.draws, 20)
        elif part == "traffic":
            traffic(options.draws, options.restarts, numbers, options.few)
        else:
            axes = options.axes.split(",")
            own = options.draws, options.restarts, options.components, numbers, axes
            digits(*own, options.few)


if __name__ == "__main__":
    main()
