"""Later rows of subjects are predicted as dense Gaussian conditioning does."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal, norm

import sidebayes as sb
from sidebayes import MixPrior, Population, forecast
from sidebayes.data.simulators import decline_populations
from tests.support.draws import at_one
from tests.support.series import IMPAIRED, NORMAL, series


def by_hand(population, y, x, z, noise, seen, row):
    """Mean, deviation and log density of what was seen."""
    spread = z @ population.covariance @ z.T + np.diag(noise**2)
    residual = y - x @ population.coefficients
    known, cross = spread[np.ix_(seen, seen)], spread[row, seen]
    gain = np.linalg.solve(known, cross) if seen else np.zeros(0)
    mean = x[row] @ population.coefficients + gain @ residual[seen]
    density = multivariate_normal.logpdf(residual[seen], cov=known) if seen else 0.0
    return mean, np.sqrt(spread[row, row] - gain @ cross), density


def rows_of(table):
    return table.y.copy(), table.fixed, table.random, table.names[table.codes]


@pytest.mark.parametrize("missing", [False, True])
def test_every_later_row_after_every_visit(missing):
    table = series(6, seed=3)
    y, x, z, names = rows_of(table)
    if missing:
        y[[2, 7, 8]] = np.nan
    populations, share = (NORMAL, IMPAIRED), np.array([0.6, 0.4])
    found = forecast(MixPrior(populations, share), y, x, z, names, probability=0.8)
    expected = []
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        known = rows[~np.isnan(y[rows])]
        for count in range(len(known) + 1):
            seen = known[:count].tolist()
            for row in rows[rows > (seen[-1] if seen else -1)]:
                parts = [by_hand(p, y, x, z, np.full(len(y), 0.6), seen, row) for p in populations]
                mean, sd, density = map(np.array, zip(*parts, strict=True))
                weight = softmax(density + np.log(share))
                center = weight @ mean
                spread = np.sqrt(weight @ (sd**2 + (mean - center) ** 2))
                expected.append((name, count, row, center, spread, *weight))
    columns = ["subject", "seen", "row", "mean", "sd", "class_0", "class_1"]
    target = pd.DataFrame(expected, columns=columns)
    pd.testing.assert_frame_equal(found[columns], target, check_dtype=False)
    # ends of the bands are quantiles: their mixture has these probabilities
    one, other = (forecast(p, y, x, z, names) for p in populations)
    for end, probability in (("lower", 0.1), ("upper", 0.9)):
        below = found["class_0"] * norm.cdf(found[end], one["mean"], one["sd"])
        below += found["class_1"] * norm.cdf(found[end], other["mean"], other["sd"])
        np.testing.assert_allclose(below, probability, atol=1e-10)
    np.testing.assert_allclose(one["upper"], norm.ppf(0.95, one["mean"], one["sd"]))


def test_columns_are_those_of_the_fit_by_name():
    table = series(8, seed=3)
    y, x, z, names = rows_of(table)
    fixed, random = (pd.DataFrame(v, columns=[f"c{n}" for n in range(v.shape[1])]) for v in (x, z))
    factor = np.diag([0.8, 0.4])
    known = {"factor": factor[np.tril_indices(2)], "covariance": factor @ factor.T, "noise": 0.6}
    fit = sb.fit("mixed_effects", y, fixed, random, names, engine=at_one(known), progress=False)
    turned = [one[one.columns[::-1]] for one in (fixed, random)]
    plain = forecast(fit, y, x, z, names)
    for prior in (fit, Population.of(fit)):
        pd.testing.assert_frame_equal(forecast(prior, y, *turned, names), plain)
    with pytest.raises(ValueError, match=r"fixed lacks \['c0'\]"):
        forecast(fit, y, fixed.rename(columns={"c0": "odd"}), random, names)


def test_bands_of_classes_far_apart():
    away = Population([50.0], [[1.0]], 0.5)
    one, here = np.ones((1, 1)), Population([0.0], [[1.0]], 0.5)
    found = forecast(MixPrior((here, away), [0.999, 0.001]), [np.nan], one, one, ["a"])
    sd = np.sqrt(1.25)
    np.testing.assert_allclose(found["lower"], norm.ppf(0.05 / 0.999, 0, sd), rtol=1e-10)
    found = forecast(MixPrior((here, away)), [np.nan], one, one, ["a"], probability=0.5)
    np.testing.assert_allclose(found["upper"], norm.ppf(0.5, 50, sd), rtol=1e-10)


def test_several_outputs_inform_each_other():
    rng, code = np.random.default_rng(0), np.array([0, 1, 1, 0, 1])
    basis = np.eye(2)[code]
    root = rng.normal(size=(2, 2))
    people = Population([1.0, -1.0], root @ root.T, [0.3, 0.8])
    y = rng.normal(size=5)
    found = forecast(people, y, basis, basis, ["a"] * 5, outputs=np.eye(2)[code])
    noise = people.noise[code]
    for line in found.itertuples():
        mean, sd, _ = by_hand(people, y, basis, basis, noise, list(range(line.seen)), line.row)
        assert (line.mean, line.sd) == (pytest.approx(mean), pytest.approx(sd))


def test_bands_hold_what_they_say():
    frame = sb.simulate_decline("steps", 1500, 1500, seed=5)
    table = sb.LongTable.from_times(
        frame["value"], frame["age"], frame["subject"], center=80, unit=10
    )
    prior = MixPrior(decline_populations("steps"))
    found = forecast(prior, *rows_of(table))
    value = frame["value"].to_numpy()[found["row"]]
    inside = (found["lower"] < value) & (value < found["upper"])
    for seen in (0, 1, 4):
        # one row a subject, so that they are independent
        first = found[found["seen"] == seen].drop_duplicates("subject").index
        error = np.sqrt(0.09 / len(first))
        assert abs(inside[first].mean() - 0.9) < 4 * error
    spread = found.groupby("seen")["sd"].mean()
    assert (spread.diff().iloc[1:6] < 0).all()


def test_columns_and_subjects_are_checked():
    y, x, z, names = rows_of(series())
    with pytest.raises(ValueError, match="3 fixed"):
        forecast(NORMAL, y, np.ones((len(y), 3)), z, names)
    with pytest.raises(ValueError, match="fixed"):
        forecast(NORMAL, y, np.where(x > 1, np.nan, x), z, names)
    with pytest.raises(ValueError, match="probability"):
        forecast(NORMAL, y, x, z, names, probability=1.5)
    with pytest.raises(TypeError, match="pass a Fit"):
        forecast("gmm", y, x, z, names)
    with pytest.raises(ValueError, match="no subject"):
        forecast(NORMAL, y, x, z, np.where(names == "s001", None, names))
    assert forecast([NORMAL, IMPAIRED], y, x, z, names)["class_1"].between(0, 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["steps", "seconds"])
def test_errors_of_simulated_decline(measure):
    """Those of an independent run, in the order that the thesis found."""
    folder = Path(sb.__file__).resolve().parents[1] / "benchmarks" / "reproduce"
    script = runpy.run_path(str(folder / "individuals.py"))
    found = sum(script["errors"](measure, seed) for seed in range(4)) / 4
    order = found.loc[["BLUP", "MixPrior", "ridge", "least squares"], [2, 3, 4, 5, 6]]
    assert (order.diff().iloc[1:] > 0).all(axis=None)
    expected = pd.DataFrame(script["REFERENCE_ERRORS"][measure], index=list(script["SEEN"])).T
    for name in ("BLUP", "MixPrior", "ridge"):
        np.testing.assert_allclose(found.loc[name], expected.loc[name], rtol=0.15)
