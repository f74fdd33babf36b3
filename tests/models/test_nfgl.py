"""Labelled rows that vote within components: conditionals, search, limits, what a fit says."""

import warnings
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.nfgl import joined_probabilities, neighbours_in_cluster, place_anchors
from sidebayes.models.blocks.classes.anchors import Anchors, conditionals, log_pseudo_likelihood
from sidebayes.models.blocks.classes.neighbours import anchor_distances

import sidebayes as sb
from tests.support.classes import some_known, split2d, xor2d
from tests.support.draws import AtStart, at_one

RNG = np.random.default_rng(2)
NUM_ANCHORS = 7
POINTS = RNG.normal(size=(NUM_ANCHORS, 2))
APART = ((POINTS[:, None] - POINTS) ** 2).sum(axis=2)
CLASSES, CLUSTERS = np.array([0, 1, 0, 1, 2, 0, 1]), np.array([0, 0, 0, 0, 1, 1, 1])
SCALE = np.array([0.8, 0.3])
TABLE = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
SIZES = {"num_clusters": 2, "num_classes": 2}
NAMES = np.array(["yes", "no"])  # not in sorted order
FIFTH = np.arange(40) % 5 == 0
ROUND = {"covariance": "spherical", "progress": False, **SIZES}
ONE = {"engine": AtStart(), **ROUND}
"""With forty rows of which eight are told, so that fits of several tests share their programs."""

START = {
    "weights": np.full(2, 0.5),
    "mean": np.array([[1.5, 0.0], [5.0, 0.0]]),
    "covariance": np.tile(np.eye(2), (2, 1, 1)),
}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def given(scale=SCALE):
    member = np.eye(2)[CLUSTERS]
    return tuple(jnp.asarray(v) for v in (APART, CLASSES, member, scale, TABLE))


def by_hand(rule, scale=SCALE):
    """Eqs. 2.4-2.5 written out, the smoothed law of the docstring as well."""
    out = np.empty((2, NUM_ANCHORS, 3))
    for j, i, c in product(range(2), range(NUM_ANCHORS), range(3)):
        others = [m for m in range(NUM_ANCHORS) if m != i and CLUSTERS[m] == j]
        kernel = np.exp(-scale[j] * APART[i, others])
        same = kernel[CLASSES[others] == c].sum()
        if rule == "smoothed":
            extra = 0.1 * kernel.max()
            out[j, i, c] = (same + extra * TABLE[j, c]) / (kernel.sum() + extra)
        else:
            out[j, i, c] = same / kernel.sum() if (CLASSES[others] == c).any() else TABLE[j, c]
    return out / out.sum(axis=2, keepdims=True) if rule == "normalised" else out


@pytest.mark.parametrize(
    ("rule", "options"),
    [("raw", {}), ("normalised", {"normalise": True}), ("smoothed", {"smoothing": 0.1})],
)
def test_conditionals_are_those_of_the_thesis(rule, options):
    found, expected = jax.jit(partial(conditionals, **options))(*given()), by_hand(rule)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    own = expected[CLUSTERS, np.arange(NUM_ANCHORS), CLASSES]
    total = np.bincount(CLUSTERS, np.log(own))
    found = jax.jit(partial(log_pseudo_likelihood, **options))(*given())
    np.testing.assert_allclose(found, total, rtol=1e-10)


def test_printed_conditionals_sum_to_more_than_one():
    """Check R5: absent classes keep their full share of the table."""
    apart, classes = APART[:3, :3], jnp.asarray([0, 1, 1])
    table, member = jnp.asarray([[0.5, 0.5]]), jnp.ones((3, 1))
    law = jnp.asarray(apart), classes, member, jnp.ones(1), table
    assert float(conditionals(*law)[0, 0].sum()) == pytest.approx(1.5)
    assert float(conditionals(*law, normalise=True)[0, 0].sum()) == pytest.approx(1.0)


def test_slopes_in_scales_are_those_of_the_thesis():
    """Check R6, by the printed formula."""
    slope = jax.jit(jax.grad(lambda a: log_pseudo_likelihood(*given(a)).sum()))(SCALE)
    expected = np.zeros(2)
    for i in range(NUM_ANCHORS):
        j = CLUSTERS[i]
        others = np.array([m for m in range(NUM_ANCHORS) if m != i and CLUSTERS[m] == j])
        same = others[CLASSES[others] == CLASSES[i]]
        if not len(same):
            continue
        every, alike = (np.exp(-SCALE[j] * APART[i, rows]) for rows in (others, same))
        expected[j] += every @ APART[i, others] / every.sum() - alike @ APART[i, same] / alike.sum()
    np.testing.assert_allclose(slope, expected, rtol=1e-9)


def test_no_joint_law_has_these_conditionals():
    """The counter-example to the thesis: scans in two orders have two stationary laws."""
    points = np.array([0.0, 1.0, 2.5])
    states = np.array(list(product((0, 1), repeat=3)))

    @jax.jit
    def all_chances(state):
        apart = jnp.asarray((points[:, None] - points) ** 2)
        law = apart, state, jnp.ones((3, 1)), jnp.full(1, 0.5), jnp.full((1, 2), 0.5)
        return conditionals(*law, normalise=True)[0]

    def chance(state, i):
        return np.asarray(all_chances(jnp.asarray(state))[i])

    def kernel(i):
        out = np.zeros((8, 8))
        for row, state in enumerate(states):
            for c in (0, 1):
                new = state.copy()
                new[i] = c
                out[row, (states == new).all(axis=1).argmax()] += chance(state, i)[c]
        return out

    def stationary(order):
        scan = np.linalg.multi_dot([kernel(i) for i in order])
        law = np.linalg.matrix_power(scan, 200)[0]
        np.testing.assert_allclose(law @ scan, law, atol=1e-10)
        return law

    one, other = stationary((0, 1, 2)), stationary((2, 1, 0))
    assert np.abs(one - other).sum() / 2 == pytest.approx(0.22, abs=0.01)


def test_votes_in_the_limits():
    """Check R4: the nearest labelled row of the component, and shares of classes."""
    new, member = RNG.normal(size=(20, 2)), np.eye(2)[np.arange(20) % 2]
    anchors = Anchors(POINTS, CLASSES, CLUSTERS, TABLE)

    @jax.jit
    def votes(scale, smoothing):
        found = anchors.prototypes(jnp.full(2, scale), smoothing)
        return found.class_probabilities(jnp.asarray(new), jnp.asarray(member))

    sharp = votes(1e6, 1e-9)
    known = np.concatenate([CLASSES, np.full(20, -1)])
    rows = np.concatenate([POINTS, new])
    inside = np.concatenate([np.eye(2)[CLUSTERS], member])
    nearest = neighbours_in_cluster(rows, inside, new, member, known)
    np.testing.assert_array_equal(sharp.argmax(axis=1), nearest)
    flat = votes(1e-12, 1e-12)
    shares = np.array([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(flat, shares[np.arange(20) % 2], atol=1e-8)
    bare = np.array([[1.0, 0.0]] * 20)
    only = np.where(CLUSTERS == 1, CLASSES, -1)
    assert (neighbours_in_cluster(POINTS, np.eye(2)[CLUSTERS], new, bare, only) >= 0).all()


def test_the_nearest_row_is_the_same_under_an_offset():
    rng = np.random.default_rng(0)
    x, new = (rng.integers(0, 100, (size, 3)).astype(float) for size in (20, 30))
    sole, alone = np.ones((20, 1)), np.ones((30, 1))
    plain, moved = (
        neighbours_in_cluster(x + o, sole, new + o, alone, np.arange(20)) for o in (0.0, 2.0**33)
    )
    np.testing.assert_array_equal(plain, moved)


@pytest.mark.parametrize("smoothing", [0.1, pytest.param(0.0, marks=pytest.mark.slow)])
def test_new_rows_join_the_labelled_ones(smoothing):
    """Rule A (eq. 2.15) by sums over components and classes of all rows, the new one among them."""
    new, member = RNG.normal(size=(2, 2)), np.array([[0.3, 0.7], [0.9, 0.1]])
    anchors = Anchors(POINTS, CLASSES, CLUSTERS, TABLE)
    found = joined_probabilities(new, member, anchors, SCALE, smoothing=smoothing)
    law = jax.jit(partial(log_pseudo_likelihood, smoothing=smoothing))
    for row, share, got in zip(new, member, found, strict=True):
        points = np.concatenate([POINTS, row[None]])
        apart = ((points[:, None] - points) ** 2).sum(axis=2)
        score = np.zeros(3)
        for j, c in product(range(2), range(3)):
            classes, inside = np.array([*CLASSES, c]), np.eye(2)[[*CLUSTERS, j]]
            terms = np.asarray(law(apart, classes, inside, SCALE, TABLE))
            score[c] += share[j] * np.exp(terms.sum())
        np.testing.assert_allclose(got, score / score.sum(), rtol=1e-9)


@pytest.fixture(scope="module")
def searched():
    rng = np.random.default_rng(3)
    x, classes = split2d(rng, 60)
    known = some_known(rng, classes, 24)
    rows = np.flatnonzero(known >= 0)
    clusters = np.arange(len(rows)) % 2
    anchors = Anchors(x[rows], known[rows], clusters, np.array([[0.5, 0.5], [0.1, 0.9]]))
    options = {"num_clusters": 2, "prior": "flat"}
    with jax.enable_x64(True):
        placed = place_anchors(x, rows, anchors, START, options, max_steps=40)
    return x, known, rows, anchors, placed


def test_anchors_with_room_for_more_have_the_same_law():
    """Padding is in no component, votes for nothing and is near nothing."""
    new, member, scale = (
        jnp.asarray(RNG.normal(size=(4, 2))),
        jnp.full((4, 2), 0.5),
        jnp.asarray(SCALE),
    )

    @jax.jit
    def law(anchors):
        apart, typical = anchor_distances(anchors)
        votes = anchors.prototypes(scale, 0.1).class_probabilities(new, member)
        slope = jax.grad(lambda a: anchors.log_pseudo_likelihood(apart, a, 0.1).sum())
        return typical, votes, anchors.log_pseudo_likelihood(apart, scale, 0.1), slope(scale)

    anchors = Anchors(POINTS, CLASSES, CLUSTERS, TABLE)
    assert len(anchors.padded().classes) == 32
    for padded, plain in zip(law(anchors.padded()), law(anchors), strict=True):
        np.testing.assert_allclose(padded, plain, rtol=1e-12)


def test_other_numbers_of_labelled_rows_are_searched_by_one_program(searched):
    """Also without the last ones, components of those that are left end at a mode."""
    x, known, rows, anchors, _ = searched
    few = rows[:-3]
    own = Anchors(x[few], known[few], anchors.clusters[:-3], anchors.table)
    with counted_compilations() as names:
        placed = place_anchors(
            x, few, own, START, {"num_clusters": 2, "prior": "flat"}, max_steps=40
        )
    assert names == []
    assert placed.clusters.shape == few.shape
    assert set(placed.clusters) <= {0, 1}
    assert np.diff(placed.objective).min() >= -1e-8 * abs(placed.objective[-1])


def test_search_never_falls(searched):
    """Check R1, for steps of mixture, scales and components of labelled rows."""
    placed = searched[-1]
    assert len(placed.objective) > 2
    assert np.diff(placed.objective).min() >= -1e-8 * abs(placed.objective[-1])
    assert placed.objective[-1] > placed.objective[0] + 1


def test_search_ends_where_no_row_would_move(searched):
    """Brute force: no single move of an unguarded row raises the objective."""
    x, known, rows, anchors, placed = searched
    assert (placed.clusters != anchors.clusters).any()
    law = np.linalg.inv(placed.params["covariance"])
    apart = x[rows][:, None] - placed.params["mean"]
    base = np.log(placed.params["weights"]) - 0.5 * np.einsum("nki,kij,nkj->nk", apart, law, apart)
    base = base - 0.5 * np.linalg.slogdet(2 * np.pi * placed.params["covariance"])[1]
    distances = ((x[rows][:, None] - x[rows]) ** 2).sum(axis=2)
    scale = jnp.exp(placed.params["log_scale"])

    @jax.jit
    def objective(clusters):
        member = jax.nn.one_hot(clusters, 2)
        given = jnp.asarray(distances), jnp.asarray(known[rows]), member, scale
        labels = log_pseudo_likelihood(*given, jnp.asarray(anchors.table), smoothing=1e-3).sum()
        return labels + jnp.take_along_axis(jnp.asarray(base), clusters[:, None], axis=1).sum()

    best = float(objective(jnp.asarray(placed.clusters)))
    counts = np.eye(2)[placed.clusters].T @ np.eye(2)[known[rows]]
    guarded = (counts == 1).any(axis=1)
    assert not guarded.all()
    for row in range(len(rows)):
        moved = placed.clusters.copy()
        moved[row] = 1 - moved[row]
        if not guarded[placed.clusters[row]] and not guarded[moved[row]]:
            assert float(objective(jnp.asarray(moved))) <= best + 1e-6


@pytest.fixture(scope="module")
def told():
    """Rows of two clusters, the names of their classes, and a fit of `moe` to every fifth of them."""
    rng, z = np.random.default_rng(0), np.arange(40) // 20
    x, labels = rng.normal(size=(40, 2)) + 6.0 * z[:, None], np.where(FIFTH, z, -1)
    base = sb.fit("moe", x, sb.PartialLabels(labels, NAMES), **ROUND)
    return x, NAMES[z], base


@pytest.fixture(scope="module")
def swapped(told):
    """The names exchanged, which nothing but their order numbers, and a fit to them."""
    x, names, _ = told
    other = np.where(names == "yes", "no", "yes")
    return other, sb.fit_nfgl(x, np.where(FIFTH, other, None), **ONE)


def test_new_rows_have_no_component(told, swapped, tmp_path):
    """Component of each labelled row is of the fit: predictions, densities and classifiers do without."""
    x, (_, found), z = told[0], swapped, np.arange(40) // 20
    found.save(tmp_path / "fit.nc")
    for one in (found, sb.load(tmp_path / "fit.nc", engine=ONE["engine"])):
        np.testing.assert_array_equal(one.class_probabilities(x).argmax(axis=1), z)
        assert one.predict(x).shape == one.log_prob(x).shape == (40,)
    model = sb.MixtureClassifier(
        method="nfgl", engine=ONE["engine"], options={"covariance": "spherical"}, random_state=0
    )
    np.testing.assert_array_equal(model.fit(x, np.where(FIFTH, z, -1)).predict(x), z)
    assert "init" not in found.verdict[1]


@pytest.mark.parametrize(
    "routine", [sb.fit_nfgl, sb.grow_prototypes], ids=["fit_nfgl", "grow_prototypes"]
)
def test_names_of_classes_are_kept(told, swapped, routine, tmp_path):
    """Numbered in sorted order, or as a fit of `moe` has them; the numbers of rows are the same here."""
    (x, names, base), (other, alone) = told, swapped
    other_told, options, kept = np.where(FIFTH, other, None), ONE, {"engine": ONE["engine"]}
    if routine is not sb.fit_nfgl:  # of sites that are computed from others
        options, kept = ONE | {"engine": sb.MAP(num_restarts=1, max_steps=5)}, {}
        alone = routine(x, other_told, **options)
    found = routine(x, np.where(FIFTH, names, None), base=base, **options)
    for first, one, classes in (("no", alone, other), ("yes", found, names)):
        assert one.class_names[0] == first
        np.testing.assert_array_equal(one.classes()["class"], classes)
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", **kept)
    np.testing.assert_array_equal(again.classes(x)["class"], names)
    with pytest.raises(ValueError, match="known are other classes than those that base was told"):
        routine(x, other_told, base=base, **options)


@pytest.mark.parametrize(("name", "size"), [("num_clusters", 3), ("num_classes", 4)])
@pytest.mark.parametrize("routine", [sb.fit_nfgl, sb.grow_prototypes])
def test_a_base_of_other_numbers_is_refused(told, routine, name, size):
    x, names, base = told
    options = {**ROUND, name: size}
    with pytest.raises(
        ValueError, match=f"base is a fit with {name} = 2, and {name} = {size} here"
    ):
        routine(x, np.where(FIFTH, names, None), base=base, **options)


@pytest.mark.parametrize(("number", "said"), [(0, "0 rows"), (1, "1 row,")])
def test_votes_need_two_rows(told, number, said):
    x, _, base = told
    known = np.full(40, -1)
    known[:number] = 0
    base = sb.fit("moe", x, known, **ROUND | {"engine": at_one(base.params)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", sb.SideBayesWarning)
        with pytest.raises(ValueError, match=f"the class of {said}.* needs two at least"):
            sb.fit_nfgl(x, known, base=base, **ROUND)


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(0)
    x, classes = xor2d(rng, 400)
    known = some_known(rng, classes, 160)
    engine = sb.EM(num_restarts=1)
    base = sb.fit("moe", x, known, engine=engine, progress=False, **SIZES)
    found = sb.fit_nfgl(x, known, base=base, engine=engine, progress=False, **SIZES)
    return known, base, found


@pytest.mark.slow
def test_votes_solve_crossed_classes(fit, tmp_path):
    """Check R10: a table of classes is of no use there."""
    known, base, found = fit
    new, classes = xor2d(np.random.default_rng(9), 1000)
    assert abs((base.classes(new)["class"] != classes).mean() - 0.5) < 0.03
    assert (found.classes(new)["class"] != classes).mean() <= 0.14
    means = found.params["mean"][found.params["mean"][:, 0].argsort()]
    np.testing.assert_allclose(means, [[0, 0], [6, 0]], atol=0.15)
    told = known >= 0
    np.testing.assert_array_equal(found.classes()["class"][told], known[told])
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc").class_probabilities(new)
    np.testing.assert_allclose(again, found.class_probabilities(new), rtol=1e-12)
    law = trace_model(found.run.problem, found.params)["classes"]["fn"]
    assert np.isfinite(law.log_factor).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Anchors(POINTS, CLASSES, CLUSTERS, TABLE * 2), "no probabilities"),
        (lambda: Anchors(POINTS, CLASSES + 1, CLUSTERS, TABLE), "classes = .* from 0 to 2"),
        (lambda: Anchors(POINTS, CLASSES, CLUSTERS[:3], TABLE), "clusters = .* each of the 7"),
        (lambda: Anchors(POINTS * np.nan, CLASSES, CLUSTERS, TABLE), "finite"),
        (
            lambda: sb.fit("nfgl", POINTS, anchors=POINTS, progress=False, **SIZES),
            "pass Anchors",
        ),
        (
            lambda: sb.fit_nfgl(POINTS, CLUSTERS, smoothing=0.0, **SIZES),
            "smoothing = 0.0",
        ),
        (
            lambda: neighbours_in_cluster(POINTS, TABLE, POINTS, TABLE, np.full(7, -1)),
            "known names no class",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
