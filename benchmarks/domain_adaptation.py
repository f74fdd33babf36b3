"""Domain adaptation where nothing has shifted, or frequencies of classes alone, on halves of public sets.

A source is learned from a random half of each set, raw, and moved to the other half, a tenth of whose rows
keep their classes. Figures are accuracies at the rest, means over draws of the halves: of the source with one
component per class, of the default source, ported, and of the default adaptation. `--choice` adds
`select_adaptation`, and `--former` the prior that used to be the default, ``ShiftPrior()``.

`--frequencies` keeps a fifth of the rows of the first class of the target, or of all others, in place of all
rows. Figures are of the ported source, of the source reweighted by EM of the frequencies with all components
held (Saerens, Latinne and Decaestecker 2002), and of the default; then of three Gaussians with other
frequencies, and of two whose means have moved along the line between them.

`--few` moves three Gaussians by 0 to 3 deviations, with the classes of 0 to 50 rows known. Figures are of the
ported source, of the default and of `select_adaptation`, means over five draws.

`--spreads` prints by how much columns of halves, of halves with a fifth of one class or of all others, and of
single classes are wider or narrower than a source of one component per class allows: the largest factors,
over all draws, of the median column and of single ones.

Run: SIDEBAYES_DATA=folder python benchmarks/domain_adaptation.py [--draws 3] [--choice] [--former]
     SIDEBAYES_DATA=folder python benchmarks/domain_adaptation.py --frequencies
     SIDEBAYES_DATA=folder python benchmarks/domain_adaptation.py --spreads --draws 20
     python benchmarks/domain_adaptation.py --few
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import pandas as pd
from sidebayes.models.blocks.classes.source_components import spread_factors
from sklearn.model_selection import train_test_split

import sidebayes as sb
from sidebayes import EM, ShiftPrior
from sidebayes.cache import use_compilation_cache

SETS = (
    "iris,wine,breast_cancer,pima,vehicle,new_thyroid,heart_statlog,liver_bupa,haberman,crabs,ecoli,"
    "balance_scale"
)
ENGINE = EM(num_restarts=1, tol=1e-6, max_steps=200)


def rows_of(name):
    """Raw features and classes, classes of fewer than 16 rows left out."""
    data = sb.load_dataset(name)
    labels = data.labels
    keep = np.bincount(labels)[labels] >= 16
    return data.x[keep], np.unique(labels[keep], return_inverse=True)[1]


def halves(x, labels, seed):
    """Rows and classes of a source and of a target, and the classes that are known there."""
    first, second, y, truth = train_test_split(
        x, labels, test_size=0.5, stratify=labels, random_state=seed
    )
    varies = (np.ptp(first, axis=0) > 0) & (np.ptp(second, axis=0) > 0)
    first, second = first[:, varies], second[:, varies]
    known = np.where(np.random.default_rng(seed).uniform(size=len(truth)) < 0.1, truth, -1)
    known[0] = truth[0]  # one at least
    return first, y, second, truth, known


def chosen(x, known, first, y, source):
    """Classes by `select_adaptation`, with few candidates."""
    given = {"source": source, "num_starts": 3, "strengths": (10.0,), "engine": ENGINE}
    choice = sb.select_adaptation(
        x, known, source_x=first, source_labels=y, progress=False, **given
    )
    return choice.fit.classes(x)["class"]


def accuracies(x, labels, seed, *, choice=False, former=False):
    """Accuracies of one draw of the halves, by method."""
    first, y, second, truth, known = halves(x, labels, seed)
    free = known < 0
    source = sb.fit_source(first, y)
    given = {"source": source, "engine": ENGINE, "progress": False}
    guesses = {
        "one component": sb.fit_source(first, y, num_components=1).predict(second),
        "ported": source.predict(second),
        "default": sb.fit("domain_adaptation", second, known, **given).classes()["class"],
    }
    if former:
        fit = sb.fit("domain_adaptation", second, known, shift=ShiftPrior(), **given)
        guesses["ShiftPrior()"] = fit.classes()["class"]
    if choice:
        guesses["chosen"] = chosen(second, known, first, y, source)
    return {name: (np.asarray(guess) == truth)[free].mean() for name, guess in guesses.items()}


def compared(source, x, truth, known):
    """Accuracies of a source as it is, reweighted, and adapted by default."""
    size, free = source.num_components, known < 0
    given = {"source": source, "engine": ENGINE, "progress": False}
    held = {"worth": np.full(size, 1e3 * len(x)), "weights_worth": 0.0}
    guesses = {
        "ported": source.predict(x),
        "reweighted": sb.fit("domain_adaptation", x, known, **given, **held).classes()["class"],
        "default": sb.fit("domain_adaptation", x, known, **given).classes()["class"],
    }
    return {name: (np.asarray(guess) == truth)[free].mean() for name, guess in guesses.items()}


def other_frequencies(x, labels, seed):
    """Accuracies where a fifth is left of one class, and of the others; means of both."""
    first, y, second, truth, known = halves(x, labels, seed)
    source = sb.fit_source(first, y)
    one = truth == seed % source.num_classes
    few = np.random.default_rng(seed).uniform(size=len(truth)) < 0.2
    return [
        compared(source, second[kept], truth[kept], known[kept]) for kept in (~one | few, one | few)
    ]


def gaussians(shares, seed):
    """Three Gaussians of equal frequency in the source, and of others in the target."""
    rng = np.random.default_rng(seed)
    centre = np.array([[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0]])
    y, truth = rng.integers(3, size=300), rng.choice(3, 400, p=shares)
    first, x = (centre[own] + rng.normal(size=(len(own), 3)) for own in (y, truth))
    known = np.where(np.arange(400) < 20, truth, -1)
    return [compared(sb.fit_source(first, y, num_components=1), x, truth, known)]


def along(by, size, seed):
    """Two Gaussians that have moved along the line between them, in the units of their deviations."""
    rng = np.random.default_rng(seed)
    y, truth, line = rng.integers(2, size=400), rng.integers(2, size=size), np.array([1.0, 0.0])
    first = np.outer(2.5 * y, line) + rng.normal(size=(400, 2))
    x = np.outer(2.5 * truth + by, line) + rng.normal(size=(size, 2))
    known = np.where(np.arange(size) < 20, truth, -1)
    return [compared(sb.fit_source(first, y, num_components=1), x, truth, known)]


def few(by, number, seed):
    """Accuracies where three Gaussians have moved, by the number of rows whose class is known."""
    rng = np.random.default_rng([seed, int(100 * by)])
    centre = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    draws = []
    for size, shift in ((300, 0.0), (150, by)):
        label = rng.integers(3, size=size)
        draws.append((centre[label] + rng.normal(size=(size, 2)) + shift, label))
    (first, y), (x, truth) = draws
    source = sb.fit_source(first, y, progress=False)
    known = np.where(np.arange(150) < number, truth, -1)
    given = {"source": source, "engine": ENGINE, "strength": 10.0, "progress": False}
    fit = sb.fit("domain_adaptation", x, known, **given)
    guesses = {"ported": source.predict(x), "default": fit.classes(x)["class"]}
    if number:
        guesses["chosen"] = chosen(x, known, first, y, source)
    return {name: (np.asarray(guess) == truth)[known < 0].mean() for name, guess in guesses.items()}


def show_few():
    """Accuracies by the move and by the number of known rows."""
    table = {
        (by, number): pd.DataFrame([few(by, number, seed) for seed in range(5)]).mean()
        for by in (0.0, 0.75, 1.5, 3.0)
        for number in (0, 1, 2, 3, 5, 10, 20, 50)
    }
    print(pd.DataFrame(table).T.round(3).to_string())


def show_spreads(names, draws):
    """Factors outside of the spreads that a source allows, by which the verdict tells other units."""
    table = {}
    for name in names:
        x, labels = rows_of(name)
        factors = []
        for seed in range(draws):
            first, y, second, truth, _ = halves(x, labels, seed)
            source = sb.fit_source(first, y, num_components=1, progress=False)
            few = np.random.default_rng(seed).uniform(size=len(truth)) < 0.2
            for one in (truth == c for c in range(source.num_classes)):
                targets = (second[kept] for kept in (one | ~one, ~one | few, one | few, one))
                factors += [np.exp(np.abs(np.log(spread_factors(source, own)))) for own in targets]
        table[name] = {
            "median column": max(map(np.median, factors)),
            "one column": max(map(np.max, factors)),
        }
    print(pd.DataFrame(table).T.round(2).to_string())


def show_frequencies(names, draws):
    """Accuracies under changed frequencies, and where means have moved along the line between classes."""
    cases = {name: partial(other_frequencies, *rows_of(name)) for name in names}
    for shares in ((0.6, 0.3, 0.1), (0.05, 0.9, 0.05)):
        cases[f"Gaussians, {shares}"] = partial(gaussians, shares)
    for by, size in ((0.5, 100), (0.5, 400), (1.0, 100), (1.0, 400)):
        cases[f"moved by {by}, {size} rows"] = partial(along, by, size)
    table = {}
    for name, case in cases.items():
        found = [one for seed in range(draws if name in names else 5) for one in case(seed)]
        table[name] = pd.DataFrame(found).mean()
        print(f"{name:30} {table[name].round(3).to_dict()}", flush=True)
    frame = pd.DataFrame(table).T
    mean = frame.loc[names].mean().to_frame("mean of the sets").T
    print(pd.concat([frame, mean]).round(3).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--choice", action="store_true", help="select_adaptation as well")
    parser.add_argument("--former", action="store_true", help="the former default as well")
    parser.add_argument("--frequencies", action="store_true", help="other frequencies of classes")
    parser.add_argument("--few", action="store_true", help="few known rows, simulated moves")
    parser.add_argument(
        "--spreads", action="store_true", help="spreads that no frequencies explain"
    )
    options = parser.parse_args()
    if options.spreads:
        show_spreads(options.sets.split(","), options.draws)
        return
    use_compilation_cache()
    if options.few:
        show_few()
        return
    if options.frequencies:
        show_frequencies(options.sets.split(","), options.draws)
        return
    table = {}
    for name in options.sets.split(","):
        x, labels = rows_of(name)
        draws = [
            accuracies(x, labels, seed, choice=options.choice, former=options.former)
            for seed in range(options.draws)
        ]
        table[name] = pd.DataFrame(draws).mean()
        print(f"{name:14} {table[name].round(3).to_dict()}", flush=True)
    frame = pd.DataFrame(table).T
    print(pd.concat([frame, frame.mean().to_frame("mean").T]).round(3).to_string())


if __name__ == "__main__":
    main()
