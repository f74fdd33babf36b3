"""Graphs of neighbours and geodesic distances that follow insertions and removals, beside those of scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from sidebayes.guides.transformers.isomap.graphs.adjacency import Edges
from sidebayes.guides.transformers.isomap.graphs.geodesics import Geodesics
from sidebayes.guides.transformers.isomap.graphs.manifold import Manifold
from sidebayes.guides.transformers.isomap.graphs.neighbors import KNearest, Radius
from sidebayes.guides.transformers.isomap.graphs.rows import TableRows
from sidebayes.models.blocks.embedding.landmarks import spread_landmarks

from tests.reference.swiss_roll import swiss_roll

pytest.importorskip("numba")
RULES = {"nearest": lambda: KNearest(6), "radius": lambda: Radius(4.0)}


def manifold(x, rule, num_landmarks=None, metric="euclidean"):
    rows = TableRows(x.copy(), metric)
    graph = rule.start(rows)
    if num_landmarks is None:
        return Manifold(rows, rule, Geodesics(graph))
    return Manifold(rows, rule, Geodesics(graph, *spread_landmarks(graph, num_landmarks)))


def assert_as_new(found, rule):
    """The graph is that of the same rows from scratch, and distances are scipy's."""
    graph = rule.start(found.rows)
    kept = found.geodesics.adjacency.matrix()
    kept.sort_indices()
    np.testing.assert_array_equal(kept.indptr, graph.indptr)
    np.testing.assert_array_equal(kept.indices, graph.indices)
    np.testing.assert_allclose(kept.data, graph.data, rtol=1e-14)
    assert_shortest(found.geodesics)


def assert_shortest(geodesics):
    whole = shortest_path(geodesics.adjacency.matrix(), directed=False)
    np.testing.assert_allclose(geodesics.rows, whole[geodesics.sources], rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_landmarks", [None, 10])
@pytest.mark.parametrize("rule", RULES)
def test_every_insertion_and_removal_is_exact(rule, num_landmarks):
    """Checks 1, 2 and 12; check 4: few distances are computed."""
    x = swiss_roll(200, 0)
    found = manifold(x[:100], RULES[rule](), num_landmarks)
    shares = []
    for row in range(100, 200):
        found.insert(x[row : row + 1])
        assert_as_new(found, RULES[rule]())
        shares.append(found.geodesics.num_computed / found.geodesics.rows.size)
    assert np.mean(shares) < 0.15
    rng = np.random.default_rng(1)
    for _ in range(40):
        found.remove(np.unique(rng.integers(0, len(found), rng.integers(1, 4))))
        assert_as_new(found, RULES[rule]())


@pytest.mark.parametrize("num_landmarks", [None, 10])
@pytest.mark.parametrize("rule", RULES)
def test_many_rows_at_once_are_the_same_as_one_by_one(rule, num_landmarks):
    x = swiss_roll(260, 2)
    found = manifold(x[:50], RULES[rule](), num_landmarks)
    found.insert(x[50:])
    assert_as_new(found, RULES[rule]())
    found.remove(np.arange(0, 260, 2))
    np.testing.assert_array_equal(found.rows.x, x[1::2])
    assert_as_new(found, RULES[rule]())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4]), st.sampled_from([None, 3]), st.booleans()
)
def test_ties_duplicates_and_several_parts(seed, number, num_landmarks, by_radius):
    """Rows on a small grid, where equal paths, equal rows and parts are the rule."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, (60, 2)).astype(float)

    def rule():
        return Radius(float(number) / 2) if by_radius else KNearest(number)

    found = manifold(x[:12], rule(), num_landmarks, metric="cityblock")
    for row in range(12, 60):
        found.insert(x[row : row + 1])
        if row % 3 == 0:
            found.remove(rng.integers(0, len(found), 1))
        assert_as_new(found, rule())


def test_of_equally_near_rows_the_first_are_neighbours():
    """A lattice, where most rows have more equally near rows than neighbours, whatever finds them."""
    x = np.stack(np.meshgrid(*3 * [np.arange(5.0)], indexing="ij"), axis=-1).reshape(-1, 3)
    x = np.random.default_rng(0).permutation(x)
    by_cells = TableRows(x, "euclidean").nearest(4, approximate=False)
    wide = np.hstack([x, np.zeros((125, 8))])  # too many features for cells
    for found, wanted in zip(by_cells, TableRows(wide, "euclidean").nearest(4, False), strict=True):
        np.testing.assert_array_equal(found, wanted)
    found = manifold(x[:60], KNearest(4))
    for row in x[60:90]:
        found.insert(row[None])
    found.remove(np.arange(0, 90, 11))
    assert_as_new(found, KNearest(4))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_any_edges_come_and_go(seed, has_ties):
    rng = np.random.default_rng(seed)
    size = 40

    def drawn(first, second):
        lengths = rng.integers(0, 4, len(first)) * 1.0 if has_ties else rng.random(len(first))
        return Edges.unique(first, second, lengths)

    pairs = np.column_stack(np.triu_indices(size, 1))
    start = drawn(*pairs[rng.random(len(pairs)) < 3 / size].T)
    both = np.hstack([start.ends.T, start.ends[:, ::-1].T])
    graph = csr_array((np.tile(start.lengths, 2), both), shape=(size, size))
    found, few = Geodesics(graph.copy()), Geodesics(graph.copy(), np.arange(0, size, 9))
    for _ in range(10):
        edges = found.adjacency.edges()
        gone = edges.where(rng.random(len(edges.lengths)) < 0.1)
        absent = {*map(tuple, pairs.tolist())} - {*map(tuple, edges.ends.tolist())}
        chosen = np.array(sorted(absent))[rng.integers(0, len(absent), 4)]
        new = drawn(*chosen.T)
        for one in (found, few):
            one.change(gone, new)
            assert_shortest(one)


def test_edges_that_lie_on_no_shortest_path():
    """Check 6: removing one changes nothing; removing a bridge cuts, putting it back restores."""
    ends = np.array([[0, 1], [1, 2], [0, 2], [2, 3], [3, 4]])
    edges = Edges(ends, np.array([1.0, 1.0, 5.0, 1.0, 1.0]))
    both = np.hstack([ends.T, ends[:, ::-1].T])
    found = Geodesics(csr_array((np.tile(edges.lengths, 2), both), shape=(5, 5)))
    before = found.rows.copy()
    is_long, is_bridge = edges.lengths > 1, (ends == [2, 3]).all(axis=1)
    found.change(edges.where(is_long), Edges.none())
    np.testing.assert_array_equal(found.rows, before)
    assert found.num_computed == 0
    found.change(edges.where(is_bridge), Edges.none())
    assert np.isinf(found.rows[:3, 3:]).all()
    np.testing.assert_array_equal(found.parts(), [0, 0, 0, 1, 1])
    found.change(Edges.none(), edges.where(is_bridge))
    np.testing.assert_array_equal(found.rows, before)


@pytest.mark.parametrize("num_landmarks", [None, 15])
def test_contraction_keeps_all_other_distances(num_landmarks):
    """Check 11, first part; a plain removal does not."""
    x = swiss_roll(300, 4)
    found, plain = manifold(x, KNearest(6), num_landmarks), manifold(x, KNearest(6))
    before, rng = plain.geodesics.rows.copy(), np.random.default_rng(0)
    kept = np.arange(300)
    for _ in range(150):
        gone = rng.integers(0, len(found), 1)
        found.contract(gone)
        plain.remove(gone)
        kept = np.delete(kept, gone)
    within = before[np.ix_(kept, kept)]
    graph = found.geodesics.adjacency.matrix()
    np.testing.assert_allclose(shortest_path(graph, directed=False), within, atol=1e-12)
    assert_shortest(found.geodesics)
    assert np.abs(plain.geodesics.rows - within).max() > 0.1
    for row in swiss_roll(20, 5):  # edges that stand for contracted rows take part in what follows
        found.insert(row[None])
        found.remove(rng.integers(0, len(found), 1))
        assert_shortest(found.geodesics)


def hemisphere(number, seed):
    x = np.random.default_rng(seed).normal(size=(number, 3))
    x[:, 2] = np.abs(x[:, 2])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def error_of_arcs(found):
    """Root mean square difference of distances from arcs of the sphere."""
    x = found.rows.x
    arcs = np.arccos(np.clip(x[found.geodesics.sources] @ x.T, -1, 1))
    return np.sqrt(np.mean(np.square(found.geodesics.rows - arcs)))


def test_contraction_keeps_what_a_stream_has_shown():
    """Check 11, second part: 150 rows are kept of 750 on a hemisphere, where distances are known."""
    x = hemisphere(750, 0)
    found, stored = (manifold(x[:150], KNearest(6), 15) for _ in range(2))
    for row in x[150:]:
        found.insert(row[None])
        graph = found.geodesics.adjacency.matrix()
        nearest = np.minimum.reduceat(graph.data, graph.indptr[:-1])
        nearest[found.geodesics.sources] = np.inf
        found.contract(np.array([np.argmin(nearest)]))  # the most crowded row
        stored.insert(row[None])
    assert_shortest(found.geodesics)
    assert len(found) == 150
    assert error_of_arcs(found) < 0.06
    assert error_of_arcs(found) < error_of_arcs(stored) / 2


def test_places_of_contracted_neighbours_are_for_near_rows():
    """They are taken by a new row that is among the nearest, and not by one from far away."""
    x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    found = manifold(x, KNearest(2))
    found.contract(np.array([1, 2]))
    assert found.geodesics.rows[0, 1] == 3
    found.insert(np.array([[50.0]]))
    found.insert(np.array([[2.5]]))
    assert 0 not in found.geodesics.adjacency.neighbors(3)[0]
    assert 0 in found.geodesics.adjacency.neighbors(4)[0]
    assert_shortest(found.geodesics)
