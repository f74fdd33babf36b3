"""Reproduce Lu (2008), chapters 7 and 8: lines of both groups, and predictions of individuals.

On series drawn from the lines that the thesis prints, since its data are private; see `detection.py`, which
runs this as well.

Run: python benchmarks/reproduce/individuals.py [--repeats 4]
"""

import argparse
import itertools
import operator

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import sidebayes as sb
from sidebayes.data.simulators import decline_populations

MEASURES = (
    "seconds",
    "steps",
    "tapping_dominant",
    "tapping_other",
    "delayed_recall",
    "logical_memory",
)
MOTOR = MEASURES[:4]
SEEN = (1, 2, 3, 4, 5, 6, 8)
REFERENCE_ERRORS = {
    "steps": {
        "BLUP": (0.0271, 0.0246, 0.0236, 0.0230, 0.0228, 0.0226, 0.0224),
        "MixPrior": (0.0274, 0.0248, 0.0239, 0.0234, 0.0231, 0.0228, 0.0224),
        "ridge": (0.0476, 0.0379, 0.0351, 0.0330, 0.0310, 0.0287, 0.0261),
        "least squares": (0.373, 0.989, 0.257, 0.114, 0.069, 0.047, 0.032),
        "population": (0.043, 0.042, 0.041, 0.040, 0.039, 0.039, 0.039),
    },
    "seconds": {
        "BLUP": (0.0517, 0.0432, 0.0400, 0.0382, 0.0371, 0.0363, 0.0355),
        "MixPrior": (0.0534, 0.0449, 0.0419, 0.0401, 0.0390, 0.0378, 0.0368),
        "ridge": (0.0667, 0.0511, 0.0466, 0.0439, 0.0419, 0.0402, 0.0381),
        "least squares": (0.288, 1.557, 0.405, 0.179, 0.109, 0.074, 0.050),
        "population": (0.109, 0.110, 0.111, 0.111, 0.113, 0.115, 0.120),
    },
}
"""Mean squared error after so many visits, in that run."""

asked = []


def bound(text, value, relation, limit, reason=""):
    """Note and print what was asked, what came out, and for a miss the reason."""
    good = {">=": operator.ge, "<=": operator.le}[relation](value, limit)
    asked.append(good)
    why = "" if good or not reason else f"\n      {reason}"
    print(
        f"{'pass' if good else 'MISS'}  {text}: {value:.3f} {relation} {limit:.3f}{why}", flush=True
    )


def series(frame, degree=1):
    """Table of the visits, and whether each subject will be impaired."""
    table = sb.LongTable.from_times(
        frame["value"], frame["age"], frame["subject"], degree=degree, center=80, unit=10
    )
    return table, table.by_subject(frame["impaired"])


def held_out(rule, table, labels, cv):
    return cross_val_predict(rule, table, labels, cv=cv, method="decision_function")


def folds(seed):
    return StratifiedKFold(10, shuffle=True, random_state=seed)


def fits(repeats):
    """X8: lines of both groups, maximum likelihood against restricted, straight lines against curves."""
    rows = []
    for measure in MEASURES:
        for seed in range(repeats):
            table, labels = series(sb.simulate_decline(measure, seed=seed))
            both = [sb.estimate_population(table.take(np.flatnonzero(labels == c))) for c in (0, 1)]
            spread = np.trace(both[1].covariance) / np.trace(both[0].covariance)
            slopes = [one.coefficients[1] for one in (*both, *decline_populations(measure))]
            rows.append(
                (measure, slopes[0], slopes[1] - slopes[0], slopes[3] - slopes[2], np.log(spread))
            )
    columns = ["measure", "normal", "slope", "printed slope", "spread"]
    mean = pd.DataFrame(rows, columns=columns).groupby("measure", sort=False).mean()
    print("slopes a decade, of the normal and of the impaired less these; log ratio of variances")
    print(mean.round(3))
    for measure in ("seconds", "steps"):
        bound(f"{measure}: the impaired slow down faster", mean["slope"][measure], ">=", 0.0)
    for measure in ("tapping_dominant", "tapping_other"):
        bound(f"{measure}: the impaired lose taps faster", mean["slope"][measure], "<=", 0.0)
        bound(f"{measure}: they differ more among each other", mean["spread"][measure], ">=", 0.0)
    for measure in MEASURES[4:]:
        bound(f"{measure}: the impaired lose faster", mean["slope"][measure], "<=", 0.0)
    bound("logical_memory: the normal learn", mean["normal"]["logical_memory"], ">=", 0.0)
    table, labels = series(sb.simulate_decline("steps", seed=0))
    one = table.take(np.flatnonzero(labels == 0))
    by_likelihood = sb.estimate_population(one)
    fit = sb.fit(
        "mixed_effects", one.y, one.fixed, one.random, one.names[one.codes], progress=False
    )
    restricted = sb.Population.of(fit)
    change = np.abs(by_likelihood.coefficients - restricted.coefficients).max()
    bound("steps: restricted and ordinary likelihood, change of the lines", change, "<=", 0.01)
    curved, _ = series(sb.simulate_decline("steps", seed=0), degree=2)
    straight, bent = (
        roc_auc_score(labels, held_out(sb.LikelihoodRatio(), t, labels, folds(0)))
        for t in (table, curved)
    )
    bound("steps: AUC of curves no better than of lines", bent, "<=", straight + 0.01)


def errors(measure, seed, multiple=10):
    """X9: squared errors of all later visits, after each number of visits seen."""
    trained, labels = series(sb.simulate_decline(measure, seed=seed))
    learned = sb.LikelihoodRatio().fit(trained, labels)
    frame = sb.simulate_decline(measure, 97 * multiple, 46 * multiple, seed=1000 + seed)
    table, group = series(frame)
    rows = table.y, table.fixed, table.random, table.codes
    predicted = [sb.forecast(one, *rows) for one in learned.populations_]
    own = group[predicted[0]["subject"].to_numpy()].astype(bool)
    at, seen = predicted[0]["row"].to_numpy(), predicted[0]["seen"].to_numpy()
    found = pd.DataFrame({"seen": seen, "row": at, "subject": predicted[0]["subject"]})
    found["BLUP"] = np.where(own, predicted[1]["mean"], predicted[0]["mean"])
    found["MixPrior"] = sb.forecast(learned.mixture(), *rows)["mean"]
    level = [table.fixed @ one.coefficients for one in learned.populations_]
    found["population"] = np.where(own, level[1][at], level[0][at])
    raw = np.stack([np.ones(len(table.y)), frame["age"].to_numpy()], axis=1)
    penalties = np.array([0.0, *np.logspace(-8, 1, 46)])
    result = {}
    for count in SEEN:
        part = found[found["seen"] == count]
        y = table.y[part["row"]]
        nth = frame.groupby("subject").cumcount().to_numpy()
        known = nth < count
        gram, cross = np.zeros((len(table), 2, 2)), np.zeros((len(table), 2))
        np.add.at(gram, table.codes[known], raw[known][:, :, None] * raw[known][:, None, :])
        np.add.at(cross, table.codes[known], raw[known] * table.y[known][:, None])
        pinv = np.linalg.pinv(gram, rcond=1e-13)
        lines = [np.einsum("sij,sj->si", pinv, cross)]
        lines += [
            np.linalg.solve(gram + p * np.eye(2), cross[..., None])[..., 0] for p in penalties[1:]
        ]
        subject, x = part["subject"].to_numpy(), raw[part["row"]]
        by_penalty = [np.mean(((x * one[subject]).sum(axis=1) - y) ** 2) for one in lines]
        result[count] = {
            **{n: np.mean((part[n] - y) ** 2) for n in ("BLUP", "MixPrior", "population")},
            "ridge": min(by_penalty),
            "least squares": by_penalty[0],
        }
    return pd.DataFrame(result)


def individuals(repeats):
    out = {}
    for measure, reference in REFERENCE_ERRORS.items():
        found = sum(errors(measure, seed) for seed in range(repeats)) / repeats
        found = out[measure] = found.loc[list(reference)]
        expected = pd.DataFrame(reference, index=list(SEEN)).T
        print(
            f"\nmean squared error of later {measure}, by visits seen; below, the independent run"
        )
        print(found.round(4).to_string())
        print(expected.to_string())
        for count in (2, 3, 4, 5, 6):
            own = found[count]
            order = ["BLUP", "MixPrior", "ridge", "least squares"]
            gap = min(np.log(own[b] / own[a]) for a, b in itertools.pairwise(order))
            bound(
                f"{measure}, {count} visits: BLUP < MixPrior < ridge < least squares", gap, ">=", 0
            )
        for name in ("BLUP", "MixPrior", "ridge"):
            off = np.abs(found.loc[name] / expected.loc[name] - 1).max()
            bound(f"{measure}, {name}: furthest off the independent run", off, "<=", 0.15)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4, help="data sets of every experiment")
    options = parser.parse_args()
    fits(options.repeats)
    individuals(options.repeats)
    print(f"{sum(asked)} of {len(asked)} hold")


if __name__ == "__main__":
    main()
