"""What the arguments of a model are, read off its signature."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pytest
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import Held, Role, signature_of
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from sidebayes import CARDS
from tests.support.cards import CLUSTERING, LONGITUDINAL


def roles_of(model):
    """Kind and dimensions of every argument that is data."""
    return {role.name: (role.kind, role.dims) for role in signature_of(model).data}


def test_annotated_tables():
    def model(
        y: Annotated[ArrayLike, "rows outputs"],
        times: Annotated[ArrayLike | None, "rows"] = None,
        *,
        num_clusters: int = 2,
        scale: float = 1.0,
    ):
        del y, times, num_clusters, scale

    found = signature_of(model)
    assert found.data == (
        Role("y", "table", ("rows", "outputs"), required=True, declared=True, whole=True),
        Role("times", "table", ("rows",), required=False, declared=True, whole=True),
    )
    assert found.options == ("num_clusters", "scale")
    assert (found.positional, found.open) == (2, False)
    assert "y" in found
    assert "scale" not in found


def test_tables_of_jaxtyping():
    def model(
        y: Float[Array, "rows outputs"],
        codes: Int[np.ndarray, " rows"] | None = None,
        image: Float[Array, "rows ... colour"] | None = None,
        rate: float = 1.0,
    ):
        del y, codes, image, rate

    assert roles_of(model) == {
        "y": ("table", ("rows", "outputs")),
        "codes": ("table", ("rows",)),
        "image": ("table", ("rows", "...", "colour")),
    }
    found = signature_of(model)
    assert [role.required for role in found.data] == [True, False, False]
    assert found.options == ("rate",)


def test_side_information_by_its_type():
    def model(
        y: Annotated[ArrayLike, "rows"],
        subjects: Annotated[Groups, "rows"],
        links: Annotated[Links | LabelGraph | None, "subjects"] = None,
        known: Annotated[PartialLabels | None, "rows"] = None,
        sets: Annotated[Sequence[ArrayLike], "rows"] = (),
    ):
        del y, subjects, links, known, sets

    assert roles_of(model) == {
        "y": ("table", ("rows",)),
        "subjects": ("groups", ("rows",)),
        "links": ("links", ("subjects",)),
        "known": ("labels", ("rows",)),
        "sets": ("sets", ("rows",)),
    }
    found = signature_of(model)
    assert [role.name for role in found.of_kind("links")] == ["links"]
    assert found.of_kind("nothing") == ()


def test_data_by_keyword_only():
    def model(
        y: Annotated[ArrayLike, "rows"],
        *,
        links: Annotated[Links | None, "rows"] = None,
        weight: Annotated[ArrayLike | None, "rows"] = None,
        rate: float = 1.0,
        **more,
    ):
        del y, links, weight, rate, more

    found = signature_of(model)
    assert [role.name for role in found.data] == ["y", "links", "weight"]
    assert found.options == ("rate",)
    assert found.positional == 1
    assert found.open


def test_a_model_without_annotations_follows_the_convention():
    def model(x, links=None, scale=1.0):
        del x, links, scale

    found = signature_of(model)
    assert found.data == (
        Role("x", "table", ("points", "features"), required=True, declared=False, whole=True),
        Role("links", "links", ("points",), required=False, declared=False),
    )
    assert found.options == ("scale",)
    assert (found.unit, found.positional) == ("points", 2)

    def typed(table: ArrayLike, factor: float = 1.0):
        del table, factor

    assert roles_of(typed) == {"table": ("table", ("points", "features"))}
    assert signature_of(typed).options == ("factor",)

    def nothing(*, scale=1.0):
        del scale

    assert signature_of(nothing).data == ()
    assert signature_of(nothing).unit is None


def test_one_annotation_ends_the_convention():
    def model(x, y: Annotated[ArrayLike, "rows"], links=None):
        del x, y, links

    found = signature_of(model)
    assert [role.name for role in found.data] == ["y"]
    assert found.options == ("x", "links")


def test_an_annotation_without_dimensions_declares_nothing():
    def model(y: Annotated[ArrayLike, "rows"], scale: Annotated[float, 3] = 1.0):
        del y, scale

    assert [role.name for role in signature_of(model).data] == ["y"]
    assert signature_of(model).options == ("scale",)


def test_annotations_that_cannot_be_evaluated_are_refused():
    def model(y: Annotated[Missing, "rows"]):  # noqa: F821
        del y

    with pytest.raises(TypeError, match=r"annotations of model cannot be evaluated .*Missing"):
        signature_of(model)

    def plain(x, scale: Missing = 1.0):  # noqa: F821
        del x, scale

    assert roles_of(plain) == {"x": ("table", ("points", "features"))}


def test_partial_models_and_objects_are_seen_through():
    def model(y: Annotated[ArrayLike, "rows"], *, depth: int, rate: float = 1.0):
        del y, depth, rate

    half = functools.partial(model, depth=3)
    assert roles_of(half) == {"y": ("table", ("rows",))}

    class Model:
        def __call__(self, y: Annotated[ArrayLike, "rows columns"], rate: float = 1.0):
            del y, rate

    assert roles_of(Model()) == {"y": ("table", ("rows", "columns"))}
    assert signature_of(Model()).options == ("rate",)
    assert roles_of(Model().__call__) == roles_of(Model())  # a bound method

    @functools.wraps(model)
    def wrapped(*args, **kwargs):
        return model(*args, **kwargs)

    assert roles_of(wrapped) == {"y": ("table", ("rows",))}


def test_units_are_what_links_join_then_groups_then_rows():
    def table(y: Annotated[ArrayLike, "rows outputs"]):
        del y

    def grouped(y: Annotated[ArrayLike, "rows"], people: Annotated[Groups, "rows"]):
        del y, people

    def linked(
        y: Annotated[ArrayLike, "rows"],
        people: Annotated[Groups, "rows"],
        links: Annotated[Links | None, "sites"] = None,
    ):
        del y, people, links

    def known(labels: Annotated[PartialLabels, "rows"]):
        del labels

    units = [signature_of(model).unit for model in (table, grouped, linked, known)]
    assert units == ["rows", "people", "sites", None]


def test_every_method_of_the_zoo_declares_its_data():
    for name, card in LONGITUDINAL.items():
        found = signature_of(card.model)
        assert all(role.declared for role in found.data), name
        assert found.unit == "subjects", name
    for name, card in CLUSTERING.items():
        found = signature_of(card.model)
        assert all(role.declared for role in found.data), name
        assert found.data[0].name == "x", name
        assert found.data[0].dims == ("points", "features"), name
        assert found.unit == "points", name
        assert bool(found.of_kind("links")) == (card.links != "none"), name
    sets = signature_of(CARDS["constraint_fit"].model).of_kind("sets")
    assert {role.name for role in sets} == {"must_groups", "cannot_groups"}
    assert all(role.dims == ("points",) for role in sets)


def test_held_options_are_options_whose_arrays_are_no_constants():
    def model(
        x: Annotated[ArrayLike, "points features"],
        *,
        places: Annotated[Sequence[int], Held()] = (),
        size: Annotated[int, "a note", Held()] = 3,
        number: int = 2,
    ):
        del x, places, size, number

    found = signature_of(model)
    assert found.held == ("places",)
    assert found.options == ("places", "number")
    assert signature_of(CARDS["nfgl"].model).held == ("anchors", "prior")
