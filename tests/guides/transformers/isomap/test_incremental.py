"""`IncrementalIsomap`: scikit-learn's contract, beside its Isomap, odd input, files, short circuits."""

import sys
import warnings
from contextlib import suppress
from unittest import SkipTest

import numpy as np
import pytest
import scipy.sparse
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.manifold import Isomap
from sklearn.neighbors import kneighbors_graph
from sklearn.utils.estimator_checks import estimator_checks_generator

from sidebayes import IncrementalIsomap, SideBayesWarning
from tests.reference.removals import moved_by_each
from tests.reference.swiss_roll import swiss_roll

pytest.importorskip("numba")
from sidebayes.guides.transformers.isomap.graphs import removals

ROOM = "sidebayes.guides.transformers.isomap.graphs"


@pytest.fixture
def roll():
    return swiss_roll(220, 0)


def assert_same_map(found, wanted, rows=slice(None)):
    np.testing.assert_allclose(found.dist_matrix_, wanted.dist_matrix_, atol=1e-10)
    signs = np.sign(np.nansum(found.embedding_ * wanted.embedding_, axis=0))
    np.testing.assert_allclose(found.embedding_ * signs, wanted.embedding_, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
@pytest.mark.filterwarnings("ignore:.*sparse:UserWarning")
def test_contract_of_scikit_learn():
    for estimator, check in estimator_checks_generator(IncrementalIsomap()):
        with suppress(SkipTest):
            check(estimator)


@pytest.mark.parametrize("rule", [{"n_neighbors": 6}, {"n_neighbors": None, "radius": 7.0}])
def test_fit_is_the_isomap_of_scikit_learn(roll, rule):
    found, peer = IncrementalIsomap(**rule).fit(roll[:200]), Isomap(**rule).fit(roll[:200])
    assert_same_map(found, peer)
    signs = np.sign(np.sum(found.embedding_ * peer.embedding_, axis=0))
    np.testing.assert_allclose(
        found.transform(roll[200:]) * signs, peer.transform(roll[200:]), atol=1e-6
    )
    np.testing.assert_allclose(found.transform(roll[:200]), found.embedding_, atol=1e-8)


@pytest.mark.filterwarnings("ignore:the graph has:sidebayes.SideBayesWarning")
def test_digits_in_batches_are_digits_at_once():
    """Ties: pixels are integers. Batches small and large, and rows that go, end in the same map."""
    x = load_digits().data[:300]
    found = IncrementalIsomap(3, n_neighbors=7, converge=True).fit(x[:100])
    found.partial_fit(x[100:110]).partial_fit(x[110:180]).remove(np.arange(20, 40))
    found.partial_fit(x[180:])
    whole = IncrementalIsomap(3, n_neighbors=7).fit(np.delete(x, np.arange(20, 40), axis=0))
    assert_same_map(found, whole)


@pytest.mark.parametrize("act", ["remove", "contract"])
def test_many_rows_that_go_make_a_map_from_scratch(roll, act):
    """One step from the map before left distances 3 away from theirs."""
    gone = np.arange(60)
    found, wanted = (
        IncrementalIsomap(n_neighbors=6, converge=one).fit(roll) for one in (False, True)
    )
    for one in (found, wanted):
        getattr(one, act)(gone)
    assert_same_map(found, wanted)


@pytest.mark.parametrize("converge", [False, True])
def test_signs_stay_when_rows_come_and_go(roll, converge):
    """Rows that turn the largest coordinate negative do not flip the map."""
    x = roll[np.argsort(roll[:, 1])] - roll.mean(axis=0)
    found = IncrementalIsomap(n_neighbors=12, converge=converge).fit(x[60:160])
    for change, kept in (
        (lambda: found.partial_fit(x[160:165]), slice(None)),
        (lambda: found.remove(np.arange(20)), slice(20, None)),
        (lambda: found.partial_fit(x[:60]), slice(None)),
        (lambda: found.partial_fit(x[165:]), slice(None)),
    ):
        before = found.embedding_[kept]
        change()
        assert (np.sum(found.embedding_[: len(before)] * before, axis=0) > 0).all()


@pytest.mark.slow
def test_approximate_neighbours_are_nearly_exact():
    pytest.importorskip("pynndescent")
    x = load_digits().data
    found = IncrementalIsomap(n_neighbors=8, neighbors="approximate").fit(x)
    exact = IncrementalIsomap(n_neighbors=8).fit(x)
    lists = [one._manifold.neighbors for one in (found, exact)]
    assert np.mean(lists[0].index == lists[1].index) > 0.97
    same = lists[0].index == lists[1].index
    np.testing.assert_allclose(lists[0].length[same], lists[1].length[same], rtol=1e-12)
    found.partial_fit(x[:3] + 1).remove([0])
    assert np.isfinite(found.embedding_).all()


@pytest.mark.parametrize("rule", [{"n_neighbors": 6}, {"n_neighbors": None, "radius": 6.0}])
def test_given_distances_are_rows(roll, rule):
    distances = cdist(roll, roll)
    found = IncrementalIsomap(metric="precomputed", converge=True, **rule).fit(
        distances[:150, :150]
    )
    found.partial_fit(distances[150:180, :180]).remove([3, 17]).contract([50])
    rows = IncrementalIsomap(converge=True, **rule).fit(roll[:150])
    rows.partial_fit(roll[150:180]).remove([3, 17]).contract([50])
    assert_same_map(found, rows)
    kept = np.delete(np.delete(np.arange(180), [3, 17]), 50)
    np.testing.assert_allclose(
        np.abs(found.transform(distances[180:][:, kept])),
        np.abs(rows.transform(roll[180:])),
        atol=1e-6,
    )


def test_given_graphs_keep_their_edges(roll):
    """An edge may be stated in one direction; new rows bring theirs to rows before and to one another."""
    graph = scipy.sparse.csr_array(kneighbors_graph(roll, 9, mode="distance"))
    found = IncrementalIsomap(metric="precomputed", converge=True).fit(graph[:150, :150])
    found.partial_fit(graph[150:, :])
    full = graph.toarray()
    full[:150, 150:] = 0  # old rows state edges to rows that were not there yet
    shortest = scipy.sparse.csgraph.shortest_path(scipy.sparse.csr_array(full), directed=False)
    np.testing.assert_allclose(found.dist_matrix_, shortest, atol=1e-10)
    own = scipy.sparse.csr_array((np.zeros(220), (np.arange(220), np.arange(220))))
    np.testing.assert_allclose(found.transform(own), found.embedding_, atol=1e-8)


@pytest.mark.parametrize("n_landmarks", [None, 12])
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_single_edges_of_a_given_graph_can_be_changed(roll, tmp_path, n_landmarks):
    matrix = kneighbors_graph(roll[:60], 5, mode="distance").toarray()
    matrix = np.maximum(matrix, matrix.T)
    options = {"metric": "precomputed", "converge": True, "n_landmarks": n_landmarks}
    found = IncrementalIsomap(**options).fit(scipy.sparse.csr_array(matrix))
    rng = np.random.default_rng(0)
    for turn in range(60):
        first, second = rng.choice(60, 2, replace=False)
        if turn % 3:  # every third change joins any two rows, the others meet an edge
            first, second = rng.choice(np.argwhere(matrix))
        length = None if turn % 3 == 1 else float(rng.uniform(0.1, 8.0))
        matrix[first, second] = matrix[second, first] = length or 0.0
        found.set_edge(first, second, length)
        shortest = scipy.sparse.csgraph.shortest_path(matrix, directed=False)
        wanted = shortest if n_landmarks is None else shortest[found.landmarks_]
        np.testing.assert_allclose(found.dist_matrix_, wanted, atol=1e-10)
    found.save(tmp_path / "map.npz")
    again = IncrementalIsomap.load(tmp_path / "map.npz").set_edge(0, 1, 0.01)
    np.testing.assert_array_equal(again.dist_matrix_, found.set_edge(0, 1, 0.01).dist_matrix_)


def test_edges_that_there_cannot_be_are_named(roll):
    graph = scipy.sparse.csr_array(kneighbors_graph(roll, 9, mode="distance"))
    found = IncrementalIsomap(metric="precomputed").fit(graph)
    before = found.dist_matrix_.copy()
    for edge, message in {
        (0, 220, 1.0): "second = 220; pass the number of a row, from 0 to 219",
        (3, 3, 1.0): "first and second are both 3",
        (0, 1, -1.0): "length = -1.0; pass a number of zero or more, or None",
        (0, 1, np.nan): "length = nan",
    }.items():
        with pytest.raises(ValueError, match=message):
            found.set_edge(*edge)
    np.testing.assert_array_equal(found.dist_matrix_, before)
    with pytest.raises(ValueError, match="edges follow from the rows of this map"):
        IncrementalIsomap().fit(roll).set_edge(0, 1, 1.0)


@pytest.mark.parametrize("n_landmarks", [None, 12])
@pytest.mark.parametrize("kind", ["rows", "radius", "distances", "graph"])
def test_a_file_goes_on_as_if_never_away(roll, tmp_path, kind, n_landmarks):
    distances = cdist(roll, roll)
    graph = scipy.sparse.csr_array(np.where(distances < 6, distances, 0))
    given, options = {
        "rows": (roll, {"n_neighbors": 6}),
        "radius": (roll, {"n_neighbors": None, "radius": 6.0}),
        "distances": (distances, {"metric": "precomputed", "n_neighbors": 6}),
        "graph": (graph, {"metric": "precomputed"}),
    }[kind]
    is_square = kind in ("distances", "graph")

    kept = np.delete(np.arange(160), [5, 101])

    def part(low, high, columns):
        return given[low:high][:, columns] if is_square else given[low:high]

    found = IncrementalIsomap(n_landmarks=n_landmarks, **options).fit(part(0, 150, np.arange(150)))
    found.contract([5]).remove([100])
    path = tmp_path / "map.npz"
    found.save(path)
    back = IncrementalIsomap.load(path)
    assert back.get_params() == found.get_params()
    back.save(tmp_path / "again.npz")
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()
    for one in (found, back):
        one.partial_fit(part(150, 160, kept))
        one.remove([2, 40, 157])
    for name in ("embedding_", "dist_matrix_", "landmarks_", "eigenvalues_", "residual_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(back, name))


def test_files_that_hold_no_map(tmp_path):
    path = tmp_path / "map.npz"
    with pytest.raises(ValueError, match="there is no file"):
        IncrementalIsomap.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="holds no whole map"):
        IncrementalIsomap.load(path)
    np.savez(path, header=np.array('{"kind": "another"}'))
    with pytest.raises(ValueError, match="it is 'another', not 'sidebayes.IncrementalIsomap/1'"):
        IncrementalIsomap.load(path)
    IncrementalIsomap(n_neighbors=3).fit(swiss_roll(20, 0)).save(path)
    arrays = dict(np.load(path))
    for name in arrays.keys() - {"header", "fixed"}:
        changed = {one: value for one, value in arrays.items() if one != name}
        np.savez(path, **changed)
        with pytest.raises(ValueError, match="holds no whole map"):
            IncrementalIsomap.load(path)
    np.savez(path, **(arrays | {"graph_to": arrays["graph_to"] + 15}))
    with pytest.raises(ValueError, match="holds no whole map"):
        IncrementalIsomap.load(path)
    np.savez(path, header=np.array({"kind": 1}, dtype=object))
    with pytest.raises(ValueError, match="holds no whole map"):
        IncrementalIsomap.load(path)


def test_several_parts_are_said_and_grow_together(roll):
    near, far = roll[:60], roll[:40] + np.array([200.0, 0, 0])
    with pytest.warns(SideBayesWarning, match="2 parts, of 60, 40 rows"):
        found = IncrementalIsomap(n_neighbors=6).fit(np.concatenate([far, near]))
    np.testing.assert_array_equal(np.isnan(found.embedding_[:, 0]), np.arange(100) < 40)
    np.testing.assert_array_equal(found.parts_, np.arange(100) < 40)
    with pytest.warns(SideBayesWarning, match="rows 0, 1 of X have no neighbour in the largest"):
        placed = found.transform(np.concatenate([far[:2], near[:2]]))
    np.testing.assert_array_equal(np.isnan(placed[:, 0]), [True, True, False, False])
    ends = np.linspace(near.mean(axis=0), far.mean(axis=0), 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        found.partial_fit(ends)
    assert np.isfinite(found.embedding_).all()
    whole = IncrementalIsomap(n_neighbors=6).fit(np.concatenate([far, near, ends]))
    assert_same_map(found, whole)


def test_rows_in_another_unit_are_told(roll):
    found = IncrementalIsomap(n_neighbors=8).fit(roll[:150])
    found.transform(roll[150:])
    told = "50 of 50 rows of X, the first of them 0, are more than 10 times as far"
    with pytest.warns(SideBayesWarning, match=told):
        found.transform(1000 * roll[150:200])
    with pytest.warns(SideBayesWarning, match=told):
        found.partial_fit(1000 * roll[150:200])
    twice = IncrementalIsomap(n_neighbors=8).fit(np.concatenate([roll[:150], roll[:150]]))
    twice.transform(roll[150:])  # distances of zero from a twin are no measure


def test_rows_beyond_the_radius_are_parts_of_their_own(roll):
    found = IncrementalIsomap(n_neighbors=None, radius=6.0).fit(roll[:150])
    before = found.embedding_.copy()
    with pytest.warns(SideBayesWarning, match="2 parts, of 150, 1 rows"):
        found.partial_fit(roll[:1] + 100)
    assert np.isnan(found.embedding_[150]).all()
    np.testing.assert_allclose(found.embedding_[:150], before, atol=1e-6)
    found.remove([150])
    assert len(found.embedding_) == 150


@pytest.mark.parametrize("n_landmarks", [None, 4])
@pytest.mark.filterwarnings("ignore:(only .|no) eigenvalue:sidebayes.SideBayesWarning")
def test_parts_with_fewer_rows_than_coordinates(roll, n_landmarks):
    """Rows that are all alone, then two that are neighbours, then a part that has all coordinates."""
    found = IncrementalIsomap(3, n_neighbors=None, radius=1e-3, n_landmarks=n_landmarks)
    with pytest.warns(SideBayesWarning, match="20 parts, of 1, 1, 1, 1, 1, ... rows"):
        found.fit(roll[:20])
    np.testing.assert_array_equal(found.embedding_[0], 0)
    assert np.isnan(found.embedding_[1:]).all()
    with pytest.warns(SideBayesWarning, match="20 parts, of 2, 1, 1, 1, 1, ... rows"):
        found.partial_fit(roll[4:5] + np.array([5e-4, 0, 0]))
    np.testing.assert_allclose(np.abs(found.embedding_[[4, 20], 0]), 2.5e-4)
    with pytest.warns(SideBayesWarning, match="parts, of 22, 1, 1, 1, 1, ... rows"):
        found.partial_fit(roll[4] + 3e-4 * np.random.default_rng(0).normal(size=(20, 3)))
    assert np.ptp(found.embedding_[20:], axis=0).min() > 1e-4
    with pytest.warns(SideBayesWarning, match="row 0 of X has no neighbour"):
        placed = found.transform(roll[[3, 4]])
    assert len(found.landmarks_) == (n_landmarks or 41)
    np.testing.assert_allclose(placed[1], found.embedding_[4], atol=1e-8)


def test_rows_given_twice_are_added_and_said(roll):
    found = IncrementalIsomap(n_neighbors=6, converge=True).fit(roll[:150])
    with pytest.warns(SideBayesWarning, match=r"3 of 4 .*\(row 0 of X from row 10\)"):
        found.partial_fit(roll[[10, 11, 12, 150]])
    np.testing.assert_array_equal(found.dist_matrix_[[10, 11], [150, 151]], 0)
    assert_same_map(
        found, IncrementalIsomap(n_neighbors=6).fit(roll[[*range(150), 10, 11, 12, 150]])
    )


def test_fewer_rows_than_neighbours(roll):
    found = IncrementalIsomap(n_neighbors=8, converge=True)
    with pytest.warns(SideBayesWarning, match="n_neighbors = 8 and there are 5 rows"):
        found.fit(roll[:5])
    np.testing.assert_allclose(found.dist_matrix_, cdist(roll[:5], roll[:5]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SideBayesWarning)
        for row in roll[5:40]:
            found.partial_fit(row[None])
    assert_same_map(found, IncrementalIsomap(n_neighbors=8).fit(roll[:40]))


def test_equal_rows_have_no_coordinates():
    with pytest.warns(SideBayesWarning, match="no eigenvalue is positive"):
        found = IncrementalIsomap(n_neighbors=3).fit(np.ones((4, 2)))
    np.testing.assert_array_equal(found.embedding_, 0)
    with pytest.warns(SideBayesWarning, match="only 1 eigenvalues are positive"):
        line = IncrementalIsomap(n_neighbors=3).fit(np.arange(12.0)[:, None])
    np.testing.assert_allclose(np.ptp(line.embedding_[:, 0]), 11)


ODD = {
    "NaN": (lambda f, x: f.partial_fit(np.full((1, 3), np.nan)), "NaN"),
    "infinite": (lambda f, x: f.partial_fit(np.full((1, 3), np.inf)), "infinity"),
    "huge": (lambda f, x: f.partial_fit(np.full((1, 3), 1e200)), "squares overflow"),
    "columns": (lambda f, x: f.partial_fit(x[:3, :2]), "2 features"),
    "no rows": (lambda f, x: f.partial_fit(x[:0]), "0 sample"),
    "last rows": (lambda f, x: f.remove(np.arange(148)), "2 of 150 rows would be left"),
    "all rows": (lambda f, x: f.contract(slice(None)), "0 of 150 rows would be left"),
    "rows from the end": (
        lambda f, x: f.remove([-1, -2]),
        "expected row numbers from 0 on and below 150",
    ),
    "row from the end": (lambda f, x: f.contract([-1]), "row numbers from 0 on"),
    "no such row": (lambda f, x: f.remove([150]), "row numbers from 0 on and below 150"),
    "of": (lambda f, x: f.short_circuits(of="points"), "expected 'edges' or 'rows'"),
    "number": (lambda f, x: f.short_circuits(0), "number = 0"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_refused_changes_nothing(roll, odd):
    found = IncrementalIsomap(n_neighbors=6).fit(roll[:150])
    before, distances = found.embedding_.copy(), found.dist_matrix_
    act, message = ODD[odd]
    with pytest.raises(ValueError, match=message):
        act(found, roll)
    np.testing.assert_array_equal(found.embedding_, before)
    np.testing.assert_array_equal(found.dist_matrix_, distances)
    found.partial_fit(roll[150:160])
    np.testing.assert_allclose(
        found.dist_matrix_, Isomap(n_neighbors=6).fit(roll[:160]).dist_matrix_, atol=1e-10
    )


@pytest.mark.parametrize("act", ["partial_fit", "remove", "contract", "short_circuits"])
def test_what_needs_numba_says_so(roll, monkeypatch, act):
    found = IncrementalIsomap(n_neighbors=6).fit(roll[:150])
    before = found.dist_matrix_
    for name in ("numba", *(f"{ROOM}.{file}" for file in ("paths", "removals"))):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"{ROOM}.paths")
    monkeypatch.delattr(f"{ROOM}.paths", raising=False)
    given = {
        "partial_fit": (roll[150:],),
        "remove": ([3],),
        "contract": ([3],),
        "short_circuits": (),
    }[act]
    with pytest.raises(ImportError, match=r"pip install 'sidebayes\[isomap\]'"):
        getattr(found, act)(*given)
    np.testing.assert_array_equal(found.dist_matrix_, before)
    assert len(found.embedding_) == len(found.transform(roll[:150]))


ARGUMENTS = {
    "n_components = 0": {"n_components": 0},
    "n_neighbors = 0": {"n_neighbors": 0},
    "n_neighbors = 2.5": {"n_neighbors": 2.5},
    "radius = -1": {"n_neighbors": None, "radius": -1},
    "both given": {"radius": 1.0},
    "both None": {"n_neighbors": None},
    "metric = 'manhattan'": {"metric": "manhattan"},
    "neighbors = 'fast'": {"neighbors": "fast"},
    "Euclidean distances, and metric": {"neighbors": "approximate", "metric": "cityblock"},
    "converge = 'yes'": {"converge": "yes"},
    "n_landmarks = 2": {"n_landmarks": 2},
    "n_samples = 220; 2 coordinates and 300 landmarks": {"n_landmarks": 300},
    "n_samples = 220; 220 coordinates": {"n_components": 220},
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_out_of_range(roll, message):
    with pytest.raises(ValueError, match=message):
        IncrementalIsomap(**ARGUMENTS[message]).fit(roll)


DISTANCES = {
    "expected \\(3, 3\\)": np.ones((3, 2)),
    "below zero": np.array([[0, -1.0, 1], [-1, 0, 1], [1, 1, 0]]),
    "away from itself": np.ones((3, 3)),
    "not symmetric": np.array([[0, 1.0, 1], [2, 0, 1], [1, 1, 0]]),
    "two lengths": scipy.sparse.csr_array(np.array([[0, 1.0, 1], [2, 0, 1], [1, 1, 0]])),
}


@pytest.mark.parametrize("message", DISTANCES)
def test_distances_that_contradict_themselves(message):
    with pytest.raises(ValueError, match=message):
        IncrementalIsomap(1, metric="precomputed", n_neighbors=2).fit(DISTANCES[message])


def test_new_rows_need_all_their_distances(roll):
    distances = cdist(roll, roll)
    found = IncrementalIsomap(metric="precomputed", n_neighbors=6).fit(distances[:100, :100])
    with pytest.raises(ValueError, match=r"expected \(2, 102\): .* and to the other new rows"):
        found.partial_fit(distances[100:102, :100])
    with pytest.raises(ValueError, match=r"shape \(2, 102\); expected \(2, 100\)"):
        found.transform(distances[100:102, :102])
    with pytest.raises(ValueError, match="an array of all distances|a sparse array"):
        found.transform(scipy.sparse.csr_array(distances[100:102, :100]))


@pytest.mark.parametrize("of", ["edges", "rows"])
@pytest.mark.parametrize("n_landmarks", [None, 15])
def test_short_circuits_are_what_moves_most(of, n_landmarks):
    check_short_circuits(of, n_landmarks, 90)


@pytest.fixture
def loops_of_python(monkeypatch):
    """In place of what numba takes seconds to compile."""
    for name, loop in vars(removals).copy().items():
        if hasattr(loop, "py_func"):
            monkeypatch.setattr(removals, name, loop.py_func)


@pytest.mark.parametrize("of", ["edges", "rows"])
@pytest.mark.parametrize("n_landmarks", [None, 15])
def test_short_circuits_by_loops_of_python(of, n_landmarks, loops_of_python):
    check_short_circuits(of, n_landmarks, 60)


def check_short_circuits(of, n_landmarks, size):
    found = IncrementalIsomap(n_neighbors=4, n_landmarks=n_landmarks).fit(swiss_roll(size, 0))
    table = found.short_circuits(8, of=of)
    distances = found.dist_matrix_
    wanted = moved_by_each(found._manifold.geodesics.adjacency.matrix(), of == "rows")
    names = (
        [int(row) for row in table["row"]]
        if of == "rows"
        else list(zip(table["first"], table["second"], strict=True))
    )
    if n_landmarks is None:
        order = sorted(wanted, key=lambda one: (wanted[one][1], wanted[one][0]), reverse=True)
        assert names == order[:8]
        moved = [wanted[one][0] / distances.sum() for one in names]
        np.testing.assert_allclose(table["moved"], moved, rtol=1e-8)
    assert table["moved"].is_monotonic_decreasing
    np.testing.assert_array_equal(found.dist_matrix_, distances)


def test_a_point_between_two_turns_is_found():
    """A short circuit: a row in the gap of the roll, which shortens distances to what they are not."""
    x = swiss_roll(800, 1)
    found = IncrementalIsomap(n_neighbors=6).fit(x)
    clean = found.short_circuits(1, of="rows")["moved"][0]
    radius = np.hypot(x[:, 0], x[:, 2])
    inner = x[np.argmin(np.abs(radius - 8) + 100 * (x[:, 0] < 0))]
    outward = inner * [1, 0, 1] / np.hypot(*inner[[0, 2]])
    found.partial_fit((inner + 3.1 * outward)[None])
    first = found.short_circuits(1, of="rows").iloc[0]
    assert first["row"] == 800
    assert first["moved"] > 3 * clean


def test_cut_edges_come_first(loops_of_python):
    """A chain: every edge cuts, the middle one most, and so do rows but for the ends."""
    chain = IncrementalIsomap(1, n_neighbors=None, radius=1.0).fit(np.arange(4.0)[:, None])
    table = chain.short_circuits(9)
    np.testing.assert_allclose(table["cut"], [8 / 16, 6 / 16, 6 / 16])
    assert np.isinf(table["detour"]).all()
    np.testing.assert_array_equal(chain.short_circuits(of="rows")["row"], [1, 2])


def test_clone_and_names(roll):
    found = IncrementalIsomap(3, n_neighbors=7, n_landmarks=20)
    assert clone(found).get_params() == found.get_params()
    names = found.fit(roll).get_feature_names_out()
    assert list(names) == ["incrementalisomap0", "incrementalisomap1", "incrementalisomap2"]
    with pytest.raises(ValueError, match="below 220"):
        found.remove([500])


def test_rows_whose_squares_underflow_are_refused():
    rows = 1e-170 * np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match="squares are zero in float64; give X in smaller units"):
        IncrementalIsomap(n_neighbors=5).fit(rows)
