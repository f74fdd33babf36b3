"""Gradient of the log-likelihood of a Gaussian mixture, against NumPyro's own mixture in the same run.

What MAP, SVI, Laplace and the samplers pay at each step, on one core or more. Both sides take the same
Cholesky factors and give the same numbers.

Run: python benchmarks/gradient_speed.py [--sizes 569x30x2,6435x36x6,100000x16x10]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian

import sidebayes as sb


def ours(log_weights, mean, scale_tril, x):
    graph = sb.LabelGraph.build(None, len(x))
    labels = sb.LinkedCategorical(log_weights, graph)
    return sb.LinkedMixture(labels, Gaussian(mean, scale_tril=scale_tril)).log_prob(x)


def numpyros(log_weights, mean, scale_tril, x):
    components = dist.MultivariateNormal(mean, scale_tril=scale_tril)
    return (
        dist.MixtureSameFamily(dist.Categorical(logits=log_weights), components).log_prob(x).sum()
    )


def measure(log_likelihood, params, x, repeats):
    """Value and gradient, best seconds of processor, MiB of temporaries."""
    slope = jax.jit(jax.value_and_grad(log_likelihood, (0, 1, 2))).lower(*params, x).compile()
    found = jax.block_until_ready(slope(*params, x))
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(slope(*params, x))
        seconds.append(time.process_time() - began)
    return found, min(seconds), slope.memory_analysis().temp_size_in_bytes / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", default="569x30x2,6435x36x6,100000x16x10", help="points x features x clusters"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| points, features, clusters | covariance | NumPyro ms, MiB | ours ms, MiB | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for size in options.sizes.split(","):
        num_points, num_features, num_clusters = map(int, size.split("x"))
        x = jnp.asarray(rng.normal(size=(num_points, num_features)))
        mean = jnp.asarray(rng.normal(size=(num_clusters, num_features)))
        log_weights = jnp.full(num_clusters, -np.log(num_clusters))
        noise = 0.1 * rng.normal(size=(num_clusters, num_features, num_features))
        full = jnp.asarray(np.tril(noise) + np.eye(num_features))
        for covariance, scale_tril in (("full", full), ("tied", full[0])):
            params = log_weights, mean, scale_tril
            expected, theirs, memory = measure(numpyros, params, x, options.repeats)
            found, seconds, own_memory = measure(ours, params, x, options.repeats)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
            print(
                f"| {num_points:,}, {num_features}, {num_clusters} | {covariance} "
                f"| {1e3 * theirs:.1f}, {memory:.0f} | {1e3 * seconds:.1f}, {own_memory:.0f} "
                f"| {theirs / seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
