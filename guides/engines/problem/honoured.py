"""NumPyro's primitives and handlers in a fit: which are supported, and which are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jax.interpreters import partial_eval
from numpyro import handlers
from numpyro.primitives import Messenger
from sidebayes.models.blocks.independent_mixture import as_collapsed
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

__all__ = [
    "Honoured",
    "check_sites",
    "check_unset",
    "in_scan",
    "is_factor",
    "is_improper",
    "is_outcome",
    "live_inputs",
    "live_inputs_of",
    "mask_of",
]

_KEY = "numpyro.prng_key()"

_NAMED = {
    "sample": "sampled site",
    "deterministic": "deterministic site",
    "plate": "plate",
    "param": "parameter",
}
"""Primitives whose names a trace holds, and their names in messages."""

_SHARED = ("plate", "param")
"""Primitives that may occur twice under one name, since both are then the same."""


class Honoured(Messenger):
    """A model whose plates take all rows, and that has neither state nor values from outside.

    Parameters
    ----------
    model : callable
    stand_ins : mapping, optional
        Values for parameters (``numpyro.param``) and for random keys that the model requests.

    Attributes
    ----------
    unset : set of str
        Parameters and keys that received no value in the model.
    plates : dict of str to int
        Sizes of the plates that were opened.

    Raises
    ------
    ValueError
        While the model runs, for primitives that a fit does not support and for names that are used twice.
    """

    def __init__(self, model: Callable[..., None], stand_ins: Mapping[str, Any] | None = None):
        if isinstance(model, handlers.collapse):
            raise ValueError(
                "numpyro.handlers.collapse integrates sites out by funsor, which a fit does not do; give "
                "the model without it"
            )
        inner: Any = model
        while inner is not None:
            if isinstance(inner, handlers.mask) and jnp.ndim(inner.mask):
                raise ValueError(
                    "handlers.mask around the whole model takes away priors of its parameters too; mask "
                    "observed sites only, or leave rows out of the data, and of links by links.subset(rows)"
                )
            inner = getattr(inner, "model", getattr(inner, "fn", None))
        super().__init__(model)
        self.stand_ins = {} if stand_ins is None else stand_ins
        self.unset: set[str] = set()
        self.plates: dict[str, int] = {}
        self._kinds: dict[str, str] = {}

    def __enter__(self) -> Any:
        """Begin a run of the model, in which each name may be used once."""
        self._kinds.clear()
        return super().__enter__()

    def process_message(self, msg: Any) -> None:
        """Check one primitive, after the model's own handlers and before any others."""
        kind, given = msg["type"], msg.get("value") is not None
        if kind in _NAMED:
            self._refuse_second_use(kind, msg["name"])
        if kind == "plate":
            _take_all_rows(msg)
            self.plates[msg["name"]] = msg["args"][0]
        elif kind == "mutable":
            raise ValueError(
                f"{msg['name']!r} is a numpyro.mutable: it would change with every evaluation of the "
                "density; sample it, or pass it to the model"
            )
        elif kind in ("param", "prng_key") and not given:
            name = msg.get("name", _KEY)
            self.unset.add(name)
            msg["value"] = self.stand_ins.get(name)
        elif kind == "sample" and given and not msg["is_observed"] and not in_scan(msg):
            raise ValueError(
                f"site {msg['name']!r} is given a value by handlers.substitute or handlers.replay, which a "
                f"fit would replace; fix it with handlers.condition(model, data={{{msg['name']!r}: ...}})"
            )

    def _refuse_second_use(self, kind: str, name: str) -> None:
        """Refuse a name that another site has already, as NumPyro's trace would hold only one of them."""
        first = self._kinds.get(name)
        self._kinds[name] = kind
        if first is not None and not (first == kind and kind in _SHARED):
            one, other = _NAMED[first], _NAMED[kind]
            what = f"two {one}s are" if first == kind else f"a {one} and a {other} are both"
            raise ValueError(
                f"{what} called {name!r}; give each a name of its own, in a loop such as "
                f"f'{name}_{{number}}', or by numpyro.handlers.scope(prefix=...) where a part of the model "
                "is used twice"
            )


def _take_all_rows(msg: Any) -> None:
    """Make a plate with a ``subsample_size`` take every row, since engines use all data."""
    size, _ = msg["args"]
    if msg["value"] is not None and len(msg["value"]) != size:
        raise ValueError(
            f"plate {msg['name']!r} is given {len(msg['value'])} of its {size} rows; leave these out, all "
            "rows are fitted"
        )
    msg["value"], msg["args"] = jnp.arange(size), (size, None)


def check_unset(density: Callable[[dict[str, Any]], Any], values: Mapping[str, Any]) -> None:
    """Refuse parameters and random numbers of the model's own that its density depends on.

    Parameters
    ----------
    density : callable
        The log density, given these parameters and keys.
    values : mapping
        Parameters by name, with the model's values; a random key is listed by the name of its primitive.
    """
    used = live_inputs(density, dict(values))
    for name in values:
        if not any(jax.tree.leaves(used[name])):
            continue
        if name == _KEY:
            raise ValueError(
                "the density depends on random numbers that the model draws for itself, by "
                "numpyro.prng_key() or at a site that handlers.block hides: they would be drawn once and "
                "held; sample what is unknown with numpyro.sample, in sight"
            )
        raise ValueError(
            f"{name!r} is a numpyro.param, and would stay at its first value; sample it, under a flat prior "
            "dist.ImproperUniform(support, (), ()) if you like, or use "
            f"handlers.lift(model, prior={{{name!r}: ...}})"
        )


def live_inputs(function: Callable[[Any], Any], values: Any) -> Any:
    """Return, as a pytree of bool, on which leaves of a pytree the result of a function depends."""
    (live,) = live_inputs_of(lambda given: {"": function(given)}, values).values()
    return live


def live_inputs_of(function: Callable[[Any], dict[str, Any]], values: Any) -> dict[str, Any]:
    """Return `live_inputs` for each part of the dictionary that a function returns."""
    leaves, tree = jax.tree.flatten(values)
    trace = jax.make_jaxpr(
        lambda *flat: function(jax.tree.unflatten(tree, flat)), return_shape=True
    )
    program, shapes = trace(*leaves)
    sizes = {name: len(jax.tree.leaves(part)) for name, part in shapes.items()}
    owners = np.repeat(list(sizes), list(sizes.values()))
    found = {}
    for name in sizes:
        _, live = partial_eval.dce_jaxpr(program.jaxpr, [owner == name for owner in owners])
        found[name] = jax.tree.unflatten(tree, live)
    return found


def is_outcome(site: Mapping[str, Any]) -> bool:
    """Return whether a site observes data: it is no factor, no known parameter, and not masked altogether."""
    if site["type"] != "sample" or not site["is_observed"] or is_factor(site):
        return False
    known = _is_number(site["value"]) or (site.get("infer") or {}).get("block") is not None
    return mask_of(site["fn"]) is not False and not known


def is_factor(site: Mapping[str, Any]) -> bool:
    """Whether a site is a ``numpyro.factor``."""
    fn = site.get("fn")
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    return isinstance(fn, dist.Unit)


def _is_number(value: Any) -> bool:
    """Return whether an observed value is one known number, as where handlers.condition fixes a parameter."""
    return jnp.ndim(value) == 0 and not isinstance(value, Tracer)


def mask_of(fn: Any) -> Any:
    """Return the mask of a distribution: an array, False, or True where there is none."""
    mask: Any = True
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        if isinstance(fn, dist.MaskedDistribution) and fn._mask is not True:
            if fn._mask is False or mask is True:
                mask = fn._mask
            elif mask is not False:
                mask = mask & fn._mask
        fn = fn.base_dist
    return mask


def is_improper(fn: Any) -> bool:
    """Return whether a prior is flat, with infinite mass: improper uniform, or masked out."""
    if mask_of(fn) is False:
        return True
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)


def check_sites(trace: Mapping[str, dict]) -> None:
    """Refuse sites whose density does not have one term per value, and sites that share labels.

    Raises
    ------
    ValueError
        The message names the site, the shapes and the remedy.
    """
    _check_labels(trace)
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        if site["is_observed"]:
            if not _is_number(site["value"]):
                _check_terms(name, site)
        elif in_scan(site):
            raise ValueError(
                f"site {name!r} is sampled inside numpyro's scan, which no engine here runs; sample all "
                "steps in a plate before it, and let jax.lax.scan carry values"
            )
        elif not isinstance(mask_of(site["fn"]), bool):
            observed = name.removesuffix("_unobserved")
            raise ValueError(
                f"the mask of latent site {name!r} takes away the prior of some of its values"
                + (
                    f" (obs_mask samples what it does not observe); observe the known rows of {observed!r} "
                    "only, obs=y[rows], or mask them with handlers.mask"
                    if name != observed
                    else "; mask observed sites only"
                )
            )


def _check_labels(trace: Mapping[str, dict]) -> None:
    """Refuse one object of labels at two sites: each would sum the labels out as if they were its own."""
    owners: dict[int, str] = {}
    for name, site in trace.items():
        fn = site["fn"] if site["type"] == "sample" else None
        while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
            fn = fn.base_dist
        if isinstance(fn, FiniteMixture):
            other = owners.setdefault(id(fn.labels), name)
            if other != name:
                raise ValueError(
                    f"sites {other!r} and {name!r} have the same labels, which each of them would sum out as "
                    "labels of its own; observe one site, and give the log density of the other outcome in "
                    f"each cluster as a factor of its labels: LinkedMixture(labels, components, log_side="
                    f"density.log_prob({other}[:, None])); if each site is to have labels of its own, make a "
                    "LinkedCategorical for each"
                )


def in_scan(site: Mapping[str, Any]) -> bool:
    """Return whether a site is in the body of ``numpyro.contrib.control_flow.scan``."""
    return bool(site.get("_control_flow_done"))


def _check_terms(name: str, site: Mapping[str, Any]) -> None:
    """Compare the shape of a site's values with that of its distribution."""
    fn, shape = site["fn"], jnp.shape(site["value"])
    rank = len(shape) - fn.event_dim
    own, event = shape[: max(rank, 0)], shape[max(rank, 0) :]
    collapsed = as_collapsed(fn, site["value"])
    inside = fn
    while isinstance(inside, dist.ExpandedDistribution | dist.MaskedDistribution):
        inside = inside.base_dist
    one_event = inside.event_dim == len(shape) and as_collapsed(inside, site["value"]) is not None
    if one_event and jnp.ndim(mask_of(fn)):
        raise ValueError(
            f"handlers.mask leaves out some rows of site {name!r}, whose distribution is one event of all "
            "rows, so that no mask takes some out; leave these rows out of the data, with links.subset(rows) "
            "of the links, or build the density of the components so that it is 1 there"
        )
    terms = _broadcast(own, fn.batch_shape)
    inner = event if collapsed is not None else _broadcast(event, fn.event_shape)
    if not own and is_factor(site):  # NumPyro counts a factor once for each row of its plate
        own = fn.batch_shape
    if terms is None or inner is None or prod(terms) > prod(own) or prod(inner) > prod(event):
        plates = [f"{frame.name!r} of size {frame.size}" for frame in site["cond_indep_stack"]]
        where = f", in plate {' and '.join(plates)}" if plates else ""
        whole = (*fn.batch_shape, *fn.event_shape)
        found = "they do not fit together"
        if terms is not None and inner is not None:
            found = f"together they make {prod(terms) * prod(inner)} terms of {prod(shape)} values"
        slip = ""
        if collapsed is not None and own != terms:
            slip = "it is one density of all rows, so take it out of the plate, or "
        elif len(shape) == rank + fn.event_dim > 1 and shape[-1] == 1:
            slip = "observe one column as a vector, obs=y[:, 0], or "
        raise ValueError(
            f"site {name!r} observes values of shape {shape}, and its distribution has shape {whole}{where}: "
            f"{found}; {slip}give both one shape"
        )
    scale = _broadcast(jnp.shape(site["scale"]) if site.get("scale") is not None else (), terms)
    if scale is None or prod(scale) > prod(terms):
        raise ValueError(
            f"handlers.scale gives site {name!r} weights of shape {jnp.shape(site['scale'])}, and its "
            f"density has terms of shape {terms}; give one weight for each term"
        )


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return jnp.broadcast_shapes(*shapes)
    except ValueError:
        return None
