"""Domain adaptation where nothing has shifted: what the defaults cost on halves of public sets.

A source is learned from a random half of each set, raw, and moved to the other half, a tenth of whose rows
keep their classes. Figures are accuracies at the rest, means over draws of the halves: of the source with one
component per class, of the default source, ported, and of the default adaptation. `--choice` adds
`select_adaptation`, and `--former` the prior that used to be the default, ``ShiftPrior()``.

Run: SIDEBAYES_DATA=folder python benchmarks/domain_adaptation.py [--draws 3] [--choice] [--former]
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
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


def accuracies(x, labels, seed, *, choice=False, former=False):
    """Accuracies of one draw of the halves, by method."""
    first, second, y, truth = train_test_split(
        x, labels, test_size=0.5, stratify=labels, random_state=seed
    )
    varies = (np.ptp(first, axis=0) > 0) & (np.ptp(second, axis=0) > 0)
    first, second = first[:, varies], second[:, varies]
    known = np.where(np.random.default_rng(seed).uniform(size=len(truth)) < 0.1, truth, -1)
    known[0] = truth[0]  # one at least
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
        fit = sb.select_adaptation(
            second,
            known,
            source_x=first,
            source_labels=y,
            num_starts=3,
            strengths=(10.0,),
        ).fit
        guesses["chosen"] = fit.classes()["class"]
    return {name: (np.asarray(guess) == truth)[free].mean() for name, guess in guesses.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--choice", action="store_true", help="select_adaptation as well")
    parser.add_argument("--former", action="store_true", help="the former default as well")
    options = parser.parse_args()
    use_compilation_cache()
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
