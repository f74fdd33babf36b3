"""Results do not depend on the units of the features, nor on where their zero lies."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris

import sidebayes as sb
from sidebayes import EM, MAP, Continuation, KMeans, Links

X, SPECIES = load_iris(return_X_y=True)
X, SPECIES = X[::3], SPECIES[::3]
STATED = sb.simulate_links(SPECIES, 12, seed=0)
SOFT = Links(STATED.pairs, np.where(STATED.same, 1.5, -1.5), len(X))
UNITS = {
    "1e-12": 1e-12,
    "1e12": 1e12,
    "each": np.array([1e-9, 1e9, 1e-3, 1e3]),
}
COVARIANCES = ["full", "tied", "diagonal", "spherical"]
CASES = [(c, u) for c in COVARIANCES for u in UNITS if (c, u) != ("spherical", "each")]
"""Spheres have one unit for all features."""


def fitted(method, data, engine, **options):
    links = {} if method == "gmm" else {"links": options.pop("links", SOFT)}
    return sb.fit(method, data, num_clusters=3, engine=engine, progress=False, **links, **options)


@pytest.fixture(scope="module")
def plain():
    """Fits in the units of the data, made once."""
    kept = {}

    def of(method, engine, **options):
        key = method, repr(engine), repr(options)
        if key not in kept:
            kept[key] = fitted(method, X, engine, **options)
        return kept[key]

    return of


def check_same(one, other, unit, *, shift=0.0, rtol=1e-4):
    """The same labels, and the same means in other units."""
    means = [fit.params["mean"].reshape(3, -1) for fit in (one, other)]
    order = [np.argsort(mean[:, 0]) for mean in means]
    expected, found = (mean[o] for mean, o in zip(means, order, strict=True))
    np.testing.assert_allclose((found - shift) / unit, expected, rtol=rtol)
    ranks = (np.argsort(o)[fit.labels()] for fit, o in zip((one, other), order, strict=True))
    np.testing.assert_array_equal(*ranks)


@pytest.mark.parametrize(("covariance", "unit"), CASES)
def test_em(plain, covariance, unit):
    engine = EM(num_restarts=4, tol=1e-12)
    options = {"covariance": covariance, "prior": "empirical"}
    one = plain("gmm", engine, **options)
    check_same(one, fitted("gmm", X * UNITS[unit], engine, **options), UNITS[unit])


@pytest.mark.parametrize("method", ["ppc", "pair_mixture"])
def test_em_with_links(plain, method):
    engine, unit = EM(num_restarts=4, tol=1e-12), UNITS["each"]
    one = plain(method, engine, prior="empirical")
    check_same(one, fitted(method, X * unit, engine, prior="empirical"), unit)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_shifts(plain, covariance):
    engine = EM(num_restarts=4, tol=1e-12)
    options = {"covariance": covariance, "prior": "empirical"}
    other = fitted("gmm", X + 1e6, engine, **options)
    check_same(plain("gmm", engine, **options), other, 1.0, shift=1e6)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_gradients(plain, covariance, unit):
    """MAP's ascent moves in units of the data; in raw ones it stops anywhere and says converged."""
    engine = MAP(num_restarts=2, tol=1e-9)
    options = {"covariance": covariance, "prior": "empirical"}
    one = plain("gmm", engine, **options)
    check_same(one, fitted("gmm", X * unit, engine, **options), unit)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_kmeans(plain, unit):
    """The width of the spheres is given in the units of the data."""
    options = {"links": STATED, "scale": 1.0}
    one = plain("constrained_kmeans", KMeans(num_restarts=4), **options)
    other = fitted(
        "constrained_kmeans", X * unit, KMeans(num_restarts=4), **options | {"scale": unit}
    )
    check_same(one, other, unit)
    best = [np.nanmax(fit.objective) for fit in (one, other)]
    np.testing.assert_allclose(*best, rtol=1e-9)


def test_continuation(plain):
    unit, engine = UNITS["each"], Continuation(num_restarts=2)
    options = {"covariance": "tied", "prior": "empirical"}
    one = plain("constraint_fit", engine, **options)
    check_same(one, fitted("constraint_fit", X * unit, engine, **options), unit, rtol=1e-3)
