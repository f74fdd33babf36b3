"""Where runs start: at k-means partitions of the data, other sites near zero, or as told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.distributions import constraints
from scipy.special import expit
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

from .base import Problem
from .density import abstract_trace, as_numpy, filling, latent_sites
from .programs import compiled

__all__ = [
    "data_matrix",
    "has_centres",
    "initial_values",
    "kmeans_centres",
    "random_keys",
    "starting_point",
]

_ELEMENTWISE: dict[type, Callable[[NDArray], NDArray]] = {
    type(constraints.real): np.positive,
    type(constraints.positive): np.exp,
    type(constraints.unit_interval): expit,
}
"""Maps from unconstrained numbers to supports that need no compiled program."""

_MOST_ROWS = 20_000
"""Rows that k-means looks at."""


def starting_point(problem: Problem, init: Any) -> dict[str, Any]:
    """Take the values of the latent sites, as NumPy arrays, from a mapping or a result's ``params``.

    Raises
    ------
    ValueError
        If a latent site has no value, or one of another shape.
    """
    values = getattr(init, "params", init)
    found = {}
    for name, site in latent_sites(abstract_trace(problem)).items():
        if name not in values:
            raise ValueError(f"init has no value for site {name!r}; it has {sorted(values)}")
        value = np.asarray(values[name], jnp.result_type(float))
        shape = jnp.shape(site["value"])
        if value.shape != shape:
            raise ValueError(f"init[{name!r}] has shape {value.shape}; expected {shape}")
        found[name] = value
    return found


def initial_values(problem: Problem, seed: int, num_starts: int) -> dict[str, NDArray]:
    """Starting values for several runs, each array with a leading axis of length `num_starts`.

    Means start at the centres of k-means partitions, covariances at the data covariance shrunk to
    the cell of a cluster, mixing weights uniform; other sites are drawn around zero in
    unconstrained space. Starts at random rows would find higher modes of a Gaussian mixture, but
    spurious ones: small clusters along chance alignments of points.
    """
    latent = latent_sites(abstract_trace(problem))
    shapes = {name: jnp.shape(site["value"]) for name, site in latent.items()}
    found: dict[str, NDArray] = {}
    if "weights" in shapes and latent["weights"]["fn"].support is constraints.simplex:
        found["weights"] = np.full(shapes["weights"], 1.0 / shapes["weights"][-1])
    data = data_matrix(problem.args)
    if data is not None and has_centres(shapes, data):
        shape = shapes["mean"]
        centres, scales = kmeans_centres(data, shape[0], seed, num_starts)
        if len(shape) == 3:
            centres = _centres_within(data, centres, scales, shape[1], seed)
        found |= {"mean": centres.reshape(num_starts, *shape)} | _spread(data, shapes)
    rest = _near_zero(problem, latent, seed, num_starts, set(shapes) - set(found))
    real = jnp.result_type(float)
    return {
        name: np.broadcast_to(
            found[name] if name in found else rest[name], (num_starts, *shape)
        ).astype(real)
        for name, shape in shapes.items()
    }


def _near_zero(
    problem: Problem, latent: Mapping[str, dict], seed: int, num_starts: int, wanted: set[str]
) -> dict[str, NDArray]:
    """Values of the wanted sites, drawn around zero in unconstrained space."""
    if not wanted:
        return {}
    # drawn here: compiled random numbers cost a second or two of every first fit
    sizes = [math.prod(jnp.shape(site["value"])) for site in latent.values()]
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, (num_starts, sum(sizes)))
    kinds = {name: type(latent[name]["fn"].support) for name in wanted}
    if all(kind in _ELEMENTWISE for kind in kinds.values()):
        own = dict(zip(latent, np.split(noise, np.cumsum(sizes[:-1]), axis=1), strict=True))
        return {
            name: _ELEMENTWISE[kind](own[name]).reshape(-1, *jnp.shape(latent[name]["value"]))
            for name, kind in kinds.items()
        }

    def build(bare: Problem) -> Callable:
        def start(noise: Array, args: tuple) -> dict[str, Array]:
            used = 0

            def draw(shape: tuple[int, ...]) -> Array:
                nonlocal used
                taken = noise[used : used + math.prod(shape)]  # supports have no more freedom
                used += math.prod(shape)
                return taken.reshape(shape)

            seeded = handlers.seed(bare.model, jax.random.key(0))
            substituted = handlers.substitute(seeded, substitute_fn=filling(draw))
            sites = handlers.trace(substituted).get_trace(*args, **bare.kwargs)
            return {name: sites[name]["value"] for name in latent}

        return jax.vmap(start, in_axes=(0, None))

    inputs = noise.astype(jnp.result_type(float)), problem.args
    program, _ = compiled("starts", problem, num_starts, build, *inputs, once=True)
    return as_numpy(program(*inputs))


def random_keys(seed: int, count: int) -> NDArray[np.uint32]:
    """Raw random keys, for `jax.random.wrap_key_data`; made here, as JAX would compile programs."""
    return (
        np.random.SeedSequence(seed).generate_state(2 * count).astype(np.uint32).reshape(count, 2)
    )


def data_matrix(args: tuple) -> NDArray | None:
    """First argument that is a table of numbers, points by features; None if there is none."""
    arrays = (a for a in args if isinstance(a, jax.Array | np.ndarray) and a.ndim in (1, 2))
    found = next(arrays, None)
    if found is None or not len(found):
        return None
    table = np.asarray(found, float).reshape(len(found), -1)
    return table if np.isfinite(table).all() else None


def has_centres(shapes: Mapping[str, tuple[int, ...]], data: NDArray) -> bool:
    """Tell whether there is a site "mean" with a centre for each cluster in the space of the data."""
    mean = shapes.get("mean", ())
    plain = len(mean) in (2, 3) and mean[-1:] == data.shape[1:]
    return plain or (len(mean) == 1 and data.shape[1] == 1)


def kmeans_centres(
    data: NDArray, num_clusters: int, seed: int, num_starts: int
) -> tuple[NDArray, NDArray]:
    """Centres of k-means partitions, every other one of standardised features.

    Returns
    -------
    centres : ndarray, shape (num_starts, num_clusters, num_features)
    scales : ndarray, shape (num_starts, num_features)
        What the features were divided by to measure distances.
    """
    rng = np.random.default_rng(seed)
    if len(data) > _MOST_ROWS:
        data = data[rng.choice(len(data), _MOST_ROWS, replace=False)]
    deviation = data.std(axis=0)
    deviation[deviation == 0] = 1.0
    scales = np.ones((num_starts, data.shape[1]))
    scales[1::2] = deviation
    centres = np.empty((num_starts, num_clusters, data.shape[1]))
    for number, scale in enumerate(scales):
        if len(data) < num_clusters:
            centres[number] = data[rng.integers(len(data), size=num_clusters)]
            continue
        kmeans = KMeans(num_clusters, n_init=1, random_state=int(rng.integers(2**31)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            centres[number] = kmeans.fit(data / scale).cluster_centers_ * scale
    return centres, scales


def _centres_within(
    data: NDArray, centres: NDArray, scales: NDArray, num_components: int, seed: int
) -> NDArray:
    """Centres of k-means inside every cell, shape (num_starts, num_clusters, num_components, d)."""
    out = np.repeat(centres[:, :, None], num_components, axis=2)
    for number, (centre, scale) in enumerate(zip(centres, scales, strict=True)):
        cell = pairwise_distances_argmin(data / scale, centre / scale)
        for cluster in range(len(centre)):
            rows = data[cell == cluster]
            if len(rows) >= num_components:
                found, _ = kmeans_centres(rows / scale, num_components, seed + number, 1)
                out[number, cluster] = found[0] * scale
    return out


def _spread(data: NDArray, shapes: Mapping[str, tuple]) -> dict[str, NDArray]:
    """Covariances to start from, where the model has sites of that name and shape."""
    num_features = data.shape[1]
    mean = shapes["mean"]
    cells = mean[:-1] if len(mean) > 1 else mean
    variance = data.var(axis=0) / math.prod(cells) ** (2 / num_features)
    variance = variance + 1e-6 * variance.mean() + 1e-12
    out = {}
    if shapes.get("covariance", ())[-2:] == (num_features, num_features):
        out["covariance"] = np.diag(variance)
    spread = shapes.get("variance")
    if spread == cells:
        out["variance"] = variance.mean()
    elif spread in ((num_features,), (*cells, num_features)):
        out["variance"] = variance
    return out
