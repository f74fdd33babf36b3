"""Hard links that contradict each other are refused, and the message shows why."""

import itertools

import numpy as np
import pytest
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.side_information.links import Links


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


def test_the_report_counts_chunklets_and_components():
    links = Links([(0, 1), (1, 2), (2, 3), (5, 6), (7, 8)], [np.inf, np.inf, 1.0, -np.inf, -2.0])
    report = links.check(num_points=10)
    assert (report.num_links, report.num_must, report.num_cannot, report.num_hard) == (5, 3, 2, 3)
    assert (report.num_chunklets, report.largest_chunklet) == (1, 3)
    assert (report.num_components, report.largest_component) == (3, 4)
    assert "5 links over 10 points: 3 must, 2 cannot, 3 of them hard" in str(report)
    graph = LabelGraph.build(links, 10)
    edges = set(graph.edge_of_link[graph.edge_of_link < graph.num_edges])
    assert (len(set(graph.node)), len(edges), graph.num_components) == (8, 3, 5)
    np.testing.assert_array_equal(graph.node_size, [3] + [1] * 7 + [0] * 2)
    np.testing.assert_array_equal(graph.links.pairs, links.pairs)
