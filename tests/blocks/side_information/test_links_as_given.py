"""Links keep every statement in the order given, with who made it and what else is known of it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import expit, logsumexp
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.reliability import learned_pair_weights
from sidebayes.models.blocks.side_information.links import Links

from tests.reference import brute_force
from tests.support.inference import LOOPY, inferred

PAIRS = [(3, 1), (0, 2), (1, 3), (4, 0), (1, 3), (2, 4)]
SAME = [True, False, False, True, False, True]
WHO = ["eve", "ann", "ann", "bob", "eve", "ann"]
pytestmark = pytest.mark.usefixtures("x64")
STATED = Links.from_pairs(PAIRS, SAME, 1.0, 5, group=WHO, columns={"id": np.arange(10, 16)})


def test_statements_stay_in_the_order_given():
    np.testing.assert_array_equal(STATED.pairs, PAIRS)
    np.testing.assert_array_equal(STATED.weights, [1, -1, -1, 1, -1, 1])
    assert STATED.group.names[STATED.group.codes].tolist() == WHO
    graph = LabelGraph.build(STATED, 5, 3)
    np.testing.assert_array_equal(graph.links.pairs, PAIRS)
    np.testing.assert_array_equal(graph.pair_weights, STATED.weights)
    np.testing.assert_array_equal(graph.group, STATED.group.codes)


def test_weights_of_one_pair_add_up_in_the_density():
    rng = np.random.default_rng(0)
    unary, weights = rng.normal(size=(7, 3)), rng.normal(size=len(PAIRS))
    weights[3] = np.inf  # hard
    graph = LabelGraph.build(Links(PAIRS, weights, 7), 7, 3, room=LOOPY)
    log_z, marginals, agree, _, _ = brute_force.infer(unary, PAIRS, weights)
    found = inferred(unary, graph)
    np.testing.assert_allclose(found.log_partition, log_z, rtol=1e-12)
    np.testing.assert_allclose(found.responsibilities, marginals, atol=1e-12)
    np.testing.assert_allclose(found.pair_marginals[: len(PAIRS)], agree, atol=1e-12)


def test_opposite_statements_of_one_pair_are_evidence_of_error():
    """Their weights cancel in the field, but each is an observation under the relation reading."""
    links = Links.from_pairs([(0, 1), (1, 0)], [True, False], 1.3, 2)
    assert len(links) == 2
    weights = np.array([0.6, 0.4])
    labels = LinkedCategorical(np.log(weights), LabelGraph.build(links, 2, 2), reading="relation")
    # exactly one of the two is wrong, whatever the labels
    expected = np.log(expit(1.3) * expit(-1.3))
    found = jax.jit(labels.log_evidence)(np.zeros((2, 2)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_flip_rate_per_group_weighs_each_statement_by_who_made_it():
    rng = np.random.default_rng(1)
    unary, log_weights = rng.normal(size=(5, 2)), np.log([0.3, 0.7])
    rates = {"ann": 0.1, "bob": 0.25, "eve": 0.4}
    with _values({"flip_rate": jnp.array(list(rates.values()))}):
        graph = LabelGraph.build(STATED, 5, 2)
        given = learned_pair_weights(graph, "learned", "relation")
    labels = LinkedCategorical(log_weights, graph, reading="relation", pair_weights=given)
    total = []
    for z in itertools.product(range(2), repeat=5):
        one = sum(unary[i, k] + log_weights[k] for i, k in enumerate(z))
        for (i, j), same, who in zip(PAIRS, SAME, WHO, strict=True):
            one += np.log(1 - rates[who] if (z[i] == z[j]) == same else rates[who])
        total.append(one)
    found = jax.jit(labels.log_evidence)(unary)
    np.testing.assert_allclose(found, logsumexp(total), rtol=1e-12)


def _values(values):
    from numpyro import handlers

    return handlers.substitute(handlers.seed(rng_seed=0), data=values)


def test_selections_keep_columns_and_the_numbers_of_groups():
    some = STATED.subset([1, 3, 2, 4])
    np.testing.assert_array_equal(some.pairs, [(1, 0), (0, 1), (0, 1), (2, 3)])
    np.testing.assert_array_equal(some.columns["id"], [10, 12, 14, 15])
    assert some.group.num_groups == 3  # a refit on some rows has the sites of the whole
    assert some.group.names[some.group.codes].tolist() == ["eve", "ann", "eve", "ann"]
    assert STATED.with_strength(2.0).weights.tolist() == [2, -2, -2, 2, -2, 2]
    np.testing.assert_array_equal(STATED.take([0]).hardened().take([0]).columns["id"], [10])


def test_sums_of_links_keep_columns_or_refuse():
    both = STATED.take([0, 1]) + STATED.take([5])
    np.testing.assert_array_equal(both.columns["id"], [10, 11, 15])
    assert both.group.names[both.group.codes].tolist() == ["eve", "ann", "ann"]
    assert len(STATED + Links.empty(5)) == len(STATED)
    with pytest.raises(
        ValueError, match=r"only one of the two sets of links has \['group', 'id'\]"
    ):
        STATED + Links.must_link([(0, 1)], num_points=5)


def test_a_confidence_below_one_half_is_told_to_reverse_statements():
    with pytest.warns(UserWarning, match=r"below 0.5 in 1 statement.*confidence\[1\] = 0.2"):
        links = Links.from_confidence([(0, 1), (1, 2)], True, [0.9, 0.2])
    assert links.same.tolist() == [True, False]


def test_a_weight_of_zero_states_nothing_and_stays():
    links = Links([(0, 1), (1, 2)], [0.0, 2.0], 3)
    assert links.weights.tolist() == [0, 2]
    assert links.hardened().weights.tolist() == [0, np.inf]
    assert Links.from_confidence([(0, 1)], False, 0.5).weights.tolist() == [0]
    graph = LabelGraph.build(links, 3, 2)
    with _values({"flip_rate": jnp.asarray(0.2)}):
        weights = learned_pair_weights(graph, dist.Uniform(0, 0.5), "relation")
    np.testing.assert_allclose(weights, [0.0, np.log(4)], rtol=1e-12)


@pytest.mark.parametrize("name", ["links.csv", "links.parquet"])
def test_files_keep_groups_and_columns(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    STATED.write(tmp_path / name)
    again = Links.read(tmp_path / name, 5)
    np.testing.assert_array_equal(again.pairs, STATED.pairs)
    np.testing.assert_array_equal(again.weights, STATED.weights)
    np.testing.assert_array_equal(again.group.codes, STATED.group.codes)
    np.testing.assert_array_equal(again.columns["id"], STATED.columns["id"])
    assert again.num_points == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ["ann"]}, "group has 1 entries for 6 links"),
        ({"group": [*WHO[:5], None]}, r"group\[5\] is missing"),
        ({"group": [1, 2, 3, 4, -1, 6]}, r"group\[4\] is missing"),
        ({"columns": {"id": [1, 2]}}, r"columns\['id'\] has shape \(2,\); expected \(6,\)"),
        ({"columns": {"same": SAME}}, "columns may not be named 'same'"),
        ({"columns": {"id": [[]] * 6}}, r"columns\['id'\] has shape"),
    ],
)
def test_what_does_not_fit_the_links_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Links.from_pairs(PAIRS, SAME, 1.0, 5, **options)
    with pytest.raises(TypeError, match=r"columns\['when'\] holds datetime64"):
        Links(PAIRS, 1.0, columns={"when": np.zeros(6, "datetime64[s]")})


def test_links_of_a_compiled_graph_have_numbers_for_groups():
    links = LabelGraph.build(STATED, 5, 3).links
    assert links.table()["group"].tolist() == STATED.group.codes.tolist()
    assert (links + links).group.names.tolist() == [0, 1, 2]
    assert links.take([3]).table()["group"].tolist() == [1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1, 2], "columns is a list; pass a mapping"),
        ("id", "columns is a str; pass a mapping"),
        ({1: SAME}, "may not be named 1; give text"),
        ({"a/b": SAME}, "may not be named 'a/b'; give text that can be shown, without a slash"),
        ({"": SAME}, "may not be named ''"),
        ({"a\n": SAME}, r"may not be named 'a\\n'"),
        ({"weight": SAME}, "which links have of their own"),
        ({"a": [1]}, r"columns\['a'\] has shape \(1,\); expected \(6,\)"),
        ({"a": [[1], [1, 2]]}, r"columns\['a'\] = .*expected rows of one length"),
        ({"a": ["u\0v"] * 6}, "with a character that files cannot hold"),
        ({"a": [None] * 6}, r"columns\['a'\] holds object; give numbers or text"),
    ],
    ids=str,
)
def test_columns_that_are_refused(columns, message):
    for make in (
        lambda: Links(PAIRS, 1.0, 5, columns=columns),
        lambda: Links.from_pairs(PAIRS, SAME, 1.0, columns=columns),
        lambda: Links.from_confidence(PAIRS, SAME, 0.8, columns=columns),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make()


def test_parts_and_weights_that_are_refused():
    for links in ([6], [-7], "x", [[0]], [0.5], [True]):
        with pytest.raises(
            ValueError, match="row numbers from 0 on and below 6, or a mask over all 6"
        ):
            STATED.take(links)
    assert len(STATED.take([])) == 0
    with pytest.raises(TypeError, match="weights = 'a'; expected real numbers"):
        STATED.with_weights("a")
    with pytest.raises(ValueError, match=r"weights has shape \(2,\); expected \(\) or \(6,\)"):
        STATED.with_weights([1, 2])
    with pytest.raises(TypeError, match="unsupported operand"):
        STATED + 3
    with pytest.raises(TypeError, match="same = .*expected rows of one length"):
        Links.from_pairs(PAIRS[:2], [[True], [True, False]])


@pytest.mark.parametrize("rows", [[-1], np.array([0, -2])])
def test_links_are_not_counted_from_the_end(rows):
    with pytest.raises(ValueError, match="row numbers from 0 on and below 6"):
        STATED.take(rows)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({(0, 1)}, r"links is a set, .*pass list\(links\)"),
        (zip([0], [1], strict=True), r"links is a zip, .*pass list\(links\)"),
        (pd.Series([(0, 1), (1, 2)]), r"of pairs in a column pass links.tolist\(\)"),
        (np.array([[0, 1, 1]]), r"is for Links.from_pairs"),
        ("ab", r"got \(\): 'ab'; give pairs of row numbers"),
    ],
)
def test_pairs_in_other_containers_are_met_with_the_remedy(pairs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Links.must_link(pairs)
