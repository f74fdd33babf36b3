"""What blocks can do, as engines ask for it."""

import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.models.blocks import block, block_facts
from sidebayes.models.blocks.block import Block
from sidebayes.models.blocks.components.centroids import Centroids
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents
from sidebayes.models.blocks.effects.parameters import mixed_parameters
from sidebayes.models.blocks.effects.priors import EffectsPrior
from sidebayes.models.blocks.kernels.curves import Curves
from sidebayes.models.blocks.mixtures.reliability import FlipRate
from sidebayes.models.blocks.mixtures.sticks import Sticks
from sidebayes.models.blocks.mixtures.weights import MixingWeights
from sidebayes.models.blocks.partitions.component_clusters import ComponentClusters
from sidebayes.models.blocks.partitions.discriminants import Discriminants

import sidebayes as sb
from sidebayes.runs.problems import _sentence

GAUSSIANS = GaussianComponents(2, 3, "full", None)
CONJUGATE = {"Updatable", "Conditional", "Drawable", "Factored"}


def capabilities(of):
    kinds = [getattr(file, name) for file in (block, block_facts) for name in file.__all__]
    kinds = (kind for kind in kinds if kind is not Block and kind is not block.Observation)
    return {kind.__name__ for kind in kinds if isinstance(of, kind)}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (MixingWeights(2, 1.0), CONJUGATE | {"Obstructed", "Remarking"}),
        (Sticks(3, 1.0, "open"), CONJUGATE | {"Obstructed", "Typical", "Remarking"}),
        (FlipRate(dist.Beta(1.0, 4.0), None), CONJUGATE | {"Typical", "Remarking"}),
        (Curves(2, 5, None), CONJUGATE | {"FollowsPoints", "HasMeans", "Starting", "Checking"}),
        (
            GAUSSIANS,
            CONJUGATE
            | {"OnePass", "OnePassOfBatches", "Batched", "Regularised"}
            | {"Starting", "Collapsible", "Improper", "Checking", "HasUnits"}
            | {"Remarking", "RemarkingOnData", "Doubting"},
        ),
        (
            Centroids(2, 3, 1.0),
            {"Updatable", "Conditional", "Improper", "RemarkingOnData", "Starting"},
        ),
        (ComponentClusters(4, 2, keep_all=True), {"Updatable", "Discrete", "HasUnits", "Starting"}),
        (
            Discriminants(4, "full", GAUSSIANS),
            {"Tightening", "HasUnits", "Starting", "HasCodeLength"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_capabilities(of, expected):
    assert capabilities(of) == expected
    assert of.has_update == ("Updatable" in expected)


def test_an_update_may_depend_on_the_prior():
    x = np.ones((4, 1))
    proper = EffectsPrior([0.0], [1.0], [1.0], 1.0)
    blocks = [mixed_parameters(None, x, x, prior=prior) for prior in ("flat", proper)]
    assert [of.has_update for of in blocks] == [True, False]
    assert not FlipRate(dist.Uniform(0.0, 0.5), None).has_update


def test_a_block_needs_no_methods():
    class Bare(Block):
        factor, roles = "unary", ("location",)

    assert capabilities(Bare()) == set()
    assert not Bare().has_update
    assert Bare().factors == ("unary",)


def test_a_capability_can_be_taken_away():
    class Silent(MixingWeights):
        expected_factors = None

    assert capabilities(Silent(2, 1.0)) == CONJUGATE - {"Factored"} | {"Obstructed", "Remarking"}


def test_a_remark_that_is_no_sentence_is_left_out_with_a_warning():
    class Talking(Block):
        def remark(self, values):
            return values

    assert _sentence(Talking(), "remark", "So it is") == "So it is"
    with pytest.warns(sb.SideBayesWarning, match="Talking.remark returned 3, which is left out"):
        assert _sentence(Talking(), "remark", 3) is None
