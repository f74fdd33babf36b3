"""Pictures of clusters on the circle and on the sphere."""

import numpy as np
import pytest
from sidebayes.diagnostics.pictures.plots import plot_parameters
from sidebayes.diagnostics.pictures.report_parts import part_of
from sidebayes.diagnostics.pictures.spheres import _curve, _seen, _view

import sidebayes as sb
from tests.support.draws import at_one
from tests.support.spheres import around, two_clusters

X, LABELS = two_clusters()
QUICK = sb.EM(num_restarts=2, max_steps=20)


def fit(x, **options):
    return sb.fit("sphere_mixture", x, num_clusters=2, engine=QUICK, progress=False, **options)


@pytest.mark.filterwarnings("ignore::sidebayes.common.warnings.SideBayesWarning")
@pytest.mark.parametrize("family", ["wrapped_normal", "von_mises_fisher"])
def test_the_sphere_is_seen_from_both_sides(family):
    links = sb.simulate_links(LABELS, 12, weight=2.0, seed=0)
    found = fit(X, links=links, reading="relation", family=family)
    assert found.picture == "sphere"
    (axis,) = found.plot().axes
    points = axis.collections[-3].get_offsets()
    assert len(points) == len(X)
    left = points[:, 0] < 1.125
    assert left.any()
    assert np.hypot(points[:, 0] - 2.25 * ~left, points[:, 1]).max() < 1 + 1e-9
    assert part_of(found, "").picture


@pytest.mark.filterwarnings("ignore::sidebayes.common.warnings.SideBayesWarning")
def test_the_circle_has_arcs():
    rng = np.random.default_rng(0)
    x = np.vstack([around(rng, [1.0, 0.0], 0.2, 30), around(rng, [-0.6, 0.8], 0.3, 30)])
    found = fit(x)
    (axis,) = found.plot().axes
    arcs = [line.get_xydata() for line in axis.lines[1:]]
    spread = np.sqrt(np.trace(found.params["covariance"], axis1=1, axis2=2))
    for arc, deviation in zip(arcs, spread, strict=True):
        np.testing.assert_allclose(np.linalg.norm(arc, axis=1), 1.07)
        first, last = arc[[0, -1]] / 1.07
        np.testing.assert_allclose(np.arccos(first @ last), 2 * 1.645 * deviation, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sidebayes.common.warnings.SideBayesWarning")
@pytest.mark.parametrize("family", ["wrapped_normal", "von_mises_fisher"])
def test_more_dimensions_are_drawn_as_other_mixtures_are(family):
    rng = np.random.default_rng(0)
    x = np.vstack([around(rng, np.eye(5)[k], 0.2, 40) for k in range(2)])
    found = fit(x, family=family)
    assert found.picture == "clusters"
    assert found.plot().axes
    assert plot_parameters(found).axes


def test_both_sides_of_the_sphere_are_seen_the_right_way_around():
    """From the front the right is on the right; from behind it is on the left."""
    frame = _view(X)
    np.testing.assert_allclose(frame.T @ frame, np.eye(3), atol=1e-12)
    assert np.linalg.det(frame) > 0
    front = frame @ [0.8, 0.6, 0.0]
    back = frame @ [-0.8, 0.6, 0.0]
    np.testing.assert_allclose(
        _seen(np.array([front, back]), frame), [[0.6, 0], [1.65, 0]], atol=1e-12
    )
    root = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.1]])
    curve = _curve(np.eye(3)[0], root, on_circle=False)
    tangent = curve[:, 1:] * (np.arccos(curve[:, 0]) / np.sin(np.arccos(curve[:, 0])))[:, None]
    np.testing.assert_allclose(((tangent / [0.2, 0.1]) ** 2).sum(axis=1), 4.605, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::sidebayes.common.warnings.SideBayesWarning")
def test_many_coordinates_of_noise_do_not_hide_clusters():
    """Standardising the coordinates, which share a unit, amplified the noise."""
    rng = np.random.default_rng(2)
    x = np.vstack([around(rng, np.eye(50)[k], 0.04, 30) for k in range(2)])
    known = {
        "direction_vector": np.eye(50)[:2],
        "concentration": [600.0, 600.0],
        "weights": [0.5, 0.5],
    }
    found = sb.fit(
        "sphere_mixture",
        x,
        num_clusters=2,
        family="von_mises_fisher",
        engine=at_one(known),
        progress=False,
    )
    (axis,) = found.plot().axes
    points = next(c.get_offsets() for c in axis.collections if len(c.get_offsets()) == len(x))
    first, second = points[:30], points[30:]
    apart = np.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
    assert apart > 20 * max(first.std(axis=0).max(), second.std(axis=0).max())
