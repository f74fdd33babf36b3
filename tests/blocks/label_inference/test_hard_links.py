"""Hard links that contradict each other are refused, and the message shows why."""

import itertools

import numpy as np
import pytest
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.side_information import hard_links, uncolourable
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

import sidebayes as sb


def test_a_contradiction_names_the_shortest_path():
    must = Links.must_link([(4, 9), (9, 2), (2, 7), (7, 5), (9, 7), (0, 1)], num_points=10)
    links = must + Links.cannot_link([(0, 4), (5, 4)], num_points=10)
    message = r"cannot-link \(5, 4\) contradicts must-links 5–7–9–4; drop one of them"
    for refuse in (links.check, lambda: LabelGraph.build(links, 10)):
        with pytest.raises(ValueError, match=message):
            refuse()


def test_contradictions_through_chunklets_name_points():
    """Triangle of chunklets for two clusters: the cycle is told in the users' row numbers."""
    must = Links.must_link([(0, 3), (1, 4), (2, 5)])
    links = must + Links.cannot_link([(3, 4), (1, 5), (2, 0)])
    with pytest.raises(
        ValueError, match=r"points \d, \d, \d are mutually cannot-linked and need 3"
    ):
        links.check(num_clusters=2)
    assert links.check(num_clusters=3).num_chunklets == 3


def test_an_odd_cycle_is_named_in_order():
    ring = np.array([(i, (i + 1) % 5) for i in range(5)])
    links = Links.cannot_link(np.array([10, 3, 8, 6, 1])[ring], num_points=12)
    with pytest.raises(ValueError, match="odd cycle") as refused:
        LabelGraph.build(links, 12, num_clusters=2)
    cycle = [int(p) for p in str(refused.value).split("odd cycle ")[1].split(",")[0].split("–")]
    steps = {tuple(sorted(step)) for step in itertools.pairwise(cycle)}
    assert cycle[0] == cycle[-1]
    assert steps == {tuple(sorted(pair)) for pair in links.pairs.tolist()}
    LabelGraph.build(links, 12, num_clusters=3)


def test_one_cluster_admits_no_cannot_link():
    with pytest.raises(ValueError, match=r"cannot-link \(2, 3\) needs two clusters"):
        Links.cannot_link([(2, 3)]).check(num_clusters=1)


def test_a_compiled_graph_belongs_to_its_rows():
    graph = LabelGraph.build(Links.must_link([(0, 1)]), 3)
    assert as_label_graph(graph, 3) is graph
    with pytest.raises(ValueError, match="is for 3 points, the data have 4"):
        as_label_graph(graph, 4)


def test_the_report_counts_chunklets_and_connected_sets():
    links = Links([(0, 1), (1, 2), (2, 3), (5, 6), (7, 8)], [np.inf, np.inf, 1.0, -np.inf, -2.0])
    report = links.check(num_points=10)
    assert (report.num_links, report.num_must, report.num_cannot, report.num_hard) == (5, 3, 2, 3)
    assert (report.num_chunklets, report.largest_chunklet) == (1, 3)
    assert (report.num_connected_sets, report.largest_connected_set) == (3, 4)
    assert "5 links over 10 points: 3 must, 2 cannot, 3 of them hard" in str(report)
    graph = LabelGraph.build(links, 10)
    edges = set(graph.edge_of_link[graph.edge_of_link < graph.num_edges])
    assert (len(set(graph.node)), len(edges), graph.num_connected_sets) == (8, 3, 5)
    np.testing.assert_array_equal(graph.node_size, [3] + [1] * 7 + [0] * 2)
    np.testing.assert_array_equal(graph.links.pairs, links.pairs)


def between_classes(classes):
    i, j = np.nonzero(np.triu(classes[:, None] != classes))
    return Links.cannot_link(np.stack([i, j], axis=1))


def test_links_between_known_classes_need_no_search(monkeypatch):
    """As many clusters as classes do, which a greedy colouring shows at once."""
    links = between_classes(np.repeat([0, 1, 2], 30))
    with pytest.raises(ValueError, match=r"points \d+, \d+, \d+ are mutually cannot-linked"):
        links.check(num_clusters=2)
    monkeypatch.setattr(uncolourable, "_best_met", None)
    assert links.check(num_clusters=3).num_cannot == 2700
    assert Links.cannot_link([(0, i) for i in range(1, 50)]).check(num_clusters=2).num_cannot == 49


def test_the_search_for_a_clique_is_bounded(monkeypatch):
    """A graph without large cliques that a greedy colouring does not settle: some starts are tried."""
    i, j = np.nonzero(np.triu(np.random.default_rng(0).random((60, 60)) < 0.5, 1))
    links = Links.cannot_link(np.stack([i, j], axis=1))
    monkeypatch.setattr(uncolourable, "_MOST_SEARCHED", 0)
    grown = []
    best = uncolourable._best_met
    monkeypatch.setattr(uncolourable, "_best_met", lambda *given: grown.append(1) or best(*given))
    for most in (10**8, 0):
        grown.clear()
        monkeypatch.setattr(uncolourable, "_MOST_WORK", most)
        links.check(num_clusters=9)
        assert (len(grown) > 60) == (most > 0)


def test_a_clique_among_many_links_is_found():
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 400, (500, 2))
    few = Links.cannot_link(pairs[pairs[:, 0] != pairs[:, 1]], num_points=400)
    clique = rng.choice(400, 5, replace=False)
    links = few + Links.cannot_link(
        list(itertools.combinations(clique.tolist(), 2)), num_points=400
    )
    with pytest.raises(ValueError, match="need 5 clusters, num_clusters is 4") as refused:
        links.check(num_clusters=4)
    named = str(refused.value).split("points ")[1].split(" are")[0].split(", ")
    assert sorted(map(int, named)) == sorted(clique.tolist())


def test_only_what_no_labeling_keeps_is_refused():
    """Against all labelings of small random graphs, of which nothing is overlooked."""
    rng = np.random.default_rng(2)
    labelings = {k: np.array(list(itertools.product(range(k), repeat=6))) for k in (1, 2, 3)}
    every = np.array(list(itertools.combinations(range(6), 2)))
    for _ in range(150):
        pairs = every[rng.random(len(every)) < rng.uniform(0.2, 0.9)]
        for k, labels in labelings.items():
            possible = (labels[:, pairs[:, 0]] != labels[:, pairs[:, 1]]).all(axis=1).any()
            try:
                Links.cannot_link(pairs, num_points=6).check(num_clusters=k)
            except ValueError:
                assert not possible
            else:
                assert possible


def test_links_that_need_a_cluster_more_without_a_clique_name_their_points(monkeypatch):
    """Moser's spindle needs four clusters, though no four points are mutually linked."""
    spindle = [
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 3),
        (2, 3),
        (0, 4),
        (0, 5),
        (4, 5),
        (4, 6),
        (5, 6),
        (3, 6),
    ]
    rhombus = np.array([(10, 11), (10, 12), (11, 12), (11, 13), (12, 13)])  # three are enough here
    links = Links.cannot_link(np.concatenate([rhombus, spindle]))
    with pytest.raises(ValueError, match=r"among points 0, 1, 2, 3, 4, 5, 6; add clusters"):
        links.check(num_clusters=3)
    assert links.check(num_clusters=4).num_cannot == 16
    monkeypatch.setattr(uncolourable, "_MOST_SEARCHED", 0)
    links.check(num_clusters=3)  # what would take long is left to the fit


@pytest.mark.parametrize("method", ["feature_saliency", "sphere_mixture"])
def test_known_clusters_that_hard_links_contradict(method):
    x = np.random.default_rng(0).normal(size=(12, 3))
    x = x / np.linalg.norm(x, axis=1, keepdims=True)

    def refused(known, links, told):
        with pytest.raises(ValueError, match=told):
            sb.fit(method, x, known=known, links=links, num_clusters=3)

    known = np.full(12, -1)
    known[[2, 7, 9]] = 0, 1, 1
    refused(
        known,
        Links.must_link([(2, 4), (4, 7)]),
        r"known\[2\] = 0 and known\[7\] = 1 contradict must-links 2–4–7; correct one of the labels",
    )
    refused(
        np.where(known < 0, "", np.array(["", "a", "b"])[known + 1]),
        Links.cannot_link([(7, 9)]),
        r"known\[7\] = 'b' and known\[9\] = 'b' contradict cannot-link \(7, 9\); correct",
    )
    refused(
        known,
        Links.cannot_link([(7, 4)]) + Links.must_link([(9, 4)]),
        r"known\[7\] = 1 and known\[9\] = 1 contradict cannot-link \(7, 4\) between rows that must",
    )


def test_known_clusters_may_be_linked():
    known = PartialLabels(np.array([0, 1, 1, -1, -1]))
    hard = Links([(1, 2), (0, 3), (0, 1), (3, 4), (3, 1)], [np.inf, np.inf, *[-np.inf] * 3])
    soft = Links([(0, 1), (1, 2)], [1.0, -1.0])
    for links in (None, hard, soft, Links.must_link([(0, 5)])):
        hard_links.check_known_clusters({"known": known, "links": links})
    none = PartialLabels(np.full(5, -1))
    hard_links.check_known_clusters({"known": none, "links": hard})
    for labels in (none, PartialLabels(np.array([0, 1, 0, 1, -1]))):
        data = {"known": labels, "links": Links.cannot_link([(0, 1)]), "num_clusters": 2}
        hard_links.check_known_clusters(data)
    some = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], bool)
    may = {"known": PartialLabels(some), "links": Links.must_link([(0, 1), (0, 3)])}
    hard_links.check_known_clusters(may)
    told = r"known\[1\] = 1 or 2 and known\[2\] = 0 contradict must-links 1–3–2"
    with pytest.raises(ValueError, match=told):
        hard_links.check_known_clusters(may | {"links": Links.must_link([(1, 3), (3, 2)])})


def test_known_clusters_and_cannot_links_leave_none():
    known = PartialLabels(np.array([0, 1, -1, -1, -1, -1]))

    def check(links, num_clusters=2, known=known):
        data = {"known": known, "links": links, "num_clusters": num_clusters}
        hard_links.check_known_clusters(data)

    both = Links.cannot_link([(2, 0), (2, 1)])
    told = r"leave no cluster to row 2: it is held apart from row 0 \(cluster 0\) and row 1 \(cluster 1\)"
    with pytest.raises(ValueError, match=told):
        check(both)
    check(both, 3)
    chain = Links.cannot_link([(0, 2), (2, 3), (3, 4), (4, 1)])  # 1, 0, 1, and then nothing
    with pytest.raises(ValueError, match=r"row . \(cluster .\)"):
        check(chain)
    check(chain, 3)
    check(Links.cannot_link([(0, 2), (2, 3), (3, 1)]))
    tied = Links.cannot_link([(2, 0), (3, 1)]) + Links.must_link([(2, 3)])
    with pytest.raises(ValueError, match="no cluster to row 2"):
        check(tied)
    named = PartialLabels(np.array(["a", "b", "", "", "", ""]))
    with pytest.raises(ValueError, match=r"row 0 \(cluster 'a'\)"):
        check(both, 2, named)
    some = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], *[[1, 1, 1]] * 3], bool)
    with pytest.raises(ValueError, match="no cluster to row 2"):
        check(both, 3, PartialLabels(some))


def test_no_labelling_is_refused_that_exists():
    """Against all labelings of six rows: what is refused has none."""
    rng = np.random.default_rng(3)
    labelings = np.array(list(itertools.product(range(3), repeat=6)))
    refused = missed = 0
    for _ in range(200):
        values = np.where(rng.random(6) < 0.5, rng.integers(3, size=6), -1)
        pairs = np.array([(i, j) for i in range(6) for j in range(i) if rng.random() < 0.4])
        if not len(pairs):
            continue
        fits = ((values < 0) | (labelings == values)).all(axis=1)
        fits &= (labelings[:, pairs[:, 0]] != labelings[:, pairs[:, 1]]).all(axis=1)
        links = Links.cannot_link(pairs)
        data = {"known": PartialLabels(values), "links": links, "num_clusters": 3}
        try:
            links.check(6, 3)
            hard_links.check_known_clusters(data)
        except ValueError:
            assert not fits.any()
            refused += 1
        else:
            missed += not fits.any()
    assert refused > 20
    assert missed < 0.1 * refused
