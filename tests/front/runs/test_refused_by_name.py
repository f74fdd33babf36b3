"""Refusals name the argument, its value and what to pass, before anything is compiled."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels, log_admissible

import sidebayes as sb

X = np.random.default_rng(0).normal(size=(40, 2))
NAMED = pd.Series(["a", "b", "c"] + [None] * 37)
SUBJECTS = {
    "y": np.arange(80.0),
    "fixed": np.ones((80, 1)),
    "random": np.ones((80, 1)),
    "subjects": np.repeat(np.arange(40), 2),
}


@pytest.mark.parametrize(
    ("method", "data", "size"),
    [
        ("moe", {"x": X}, "num_classes"),
        ("geodesic_embedding", {"x": X, "num_dimensions": 1}, "num_classes"),
        ("sphere_mixture", {"x": X / np.linalg.norm(X, axis=1, keepdims=True)}, "num_clusters"),
        ("mixed_effects_mixture", SUBJECTS, "num_clusters"),
    ],
)
def test_a_known_class_too_many_is_named_with_the_number_to_raise(method, data, size):
    sizes = {"num_clusters": 2, "num_classes": 2} if method == "moe" else {size: 2}
    message = (
        f"known: labels name class 'c', too many for {size} = 2; pass {size}=3 at least, or correct"
    )
    with pytest.raises(ValueError, match=message):
        sb.fit(method, **data, known=NAMED, **sizes, progress=False)


def test_classes_by_number_and_masks_that_are_too_many():
    numbers, mask = PartialLabels([0, 2, -1]), PartialLabels(np.ones((3, 3), bool))
    with pytest.raises(
        ValueError, match=r"class 2 \(numbered from 0\), too many for num_clusters = 2"
    ):
        log_admissible(numbers, 2)
    message = (
        "labels allow 3 classes, and num_classes = 2; pass num_classes=3, or a mask with 2 col"
    )
    with pytest.raises(ValueError, match=message):
        mask.admissible(2)
    with pytest.raises(ValueError, match="known: labels allow 3 classes, and num_classes = 2"):
        sb.fit("moe", X[:3], mask, num_clusters=2, num_classes=2, progress=False)


@pytest.mark.parametrize("component", ["student", 7])
def test_a_component_that_is_no_function_is_refused_with_an_example(component):
    with pytest.raises(TypeError, match=rf"component = {component!r}; expected a function") as said:
        sb.fit("gmm", X, num_clusters=2, component=component, progress=False)
    example = str(said.value).partition("such as ")[2]
    function = eval(example, {"dist": dist, "numpyro": numpyro})
    with numpyro.handlers.seed(rng_seed=0):
        assert mixture_components(None, 3, component=function).batch_shape == (3,)
