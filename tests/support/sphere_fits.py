"""Fits of two clusters on the sphere, by each kind of component."""

import pytest

import sidebayes as sb
from tests.support.spheres import two_clusters

KINDS = {
    "full": {"covariance": "full"},
    "spherical": {"covariance": "spherical"},
    "low_rank": {"covariance": "low_rank"},
    "von_mises_fisher": {"family": "von_mises_fisher"},
}
EACH = pytest.mark.parametrize(
    "options",
    [
        pytest.param(given, marks=[pytest.mark.slow] * (name in ("spherical", "low_rank")), id=name)
        for name, given in KINDS.items()
    ],
)
EVERY = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
X, LABELS = two_clusters()


def fit(x=X, links=None, engine="em", num_clusters=2, **options):
    return sb.fit(
        "sphere_mixture",
        x,
        links,
        num_clusters=num_clusters,
        engine=engine,
        progress=False,
        **options,
    )
