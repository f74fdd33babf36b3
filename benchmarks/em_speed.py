"""One EM iteration of a full-covariance Gaussian mixture, against scikit-learn in the same run.

Run: python benchmarks/em_speed.py [--points 500000] [--features 16] [--clusters 10] [--fit]
Both sides start at the same weights, means and covariances, in the same precision. An iteration
of either is the difference between a long and a short run, divided by the extra iterations: what
comes before and after (checks, the final E-step) cancels.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from sidebayes.models.blocks.components.gaussians.gaussian_stats import gaussian_pass
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import sidebayes as sb

SHORT, LONG = 2, 7
TARGETS = {"float64": 20, "float32": 20}


def simulate(num_points, num_features, num_clusters, seed=0):
    """Overlapping clusters, and a start a little off the truth."""
    rng = np.random.default_rng(seed)
    centre = 2 * rng.normal(size=(num_clusters, num_features))
    root = 0.3 * rng.normal(size=(num_clusters, num_features, num_features)) + np.eye(num_features)
    label = rng.integers(num_clusters, size=num_points)
    x = rng.normal(size=(num_points, num_features))
    for k in range(num_clusters):
        x[label == k] = centre[k] + x[label == k] @ root[k].T
    mean = centre + 0.3 * rng.normal(size=centre.shape)
    covariance = np.stack([np.cov(x.T) / 2] * num_clusters)
    return x, np.full(num_clusters, 1 / num_clusters), mean, covariance


@jax.jit
def iterate(x, weights, mean, covariance):
    """One EM iteration: log-likelihood at the parameters given, and the next ones."""
    step = gaussian_pass(x, jnp.log(weights), mean, jnp.linalg.cholesky(covariance))
    new_mean, new_covariance = step.moments.estimates(mean)
    return step.log_likelihood, (step.moments.total / len(x), new_mean, new_covariance)


def ours(x, start, num_steps):
    trace = []
    for _ in range(num_steps):
        value, start = iterate(x, *start)
        trace.append(value)
    return np.array(jax.block_until_ready(trace), float) / len(x)


def sklearns(x, start, num_steps):
    weights, mean, covariance = start
    model = GaussianMixture(
        len(weights),
        weights_init=weights,
        means_init=mean,
        precisions_init=np.linalg.inv(covariance),
        max_iter=num_steps,
        tol=0.0,
        reg_covar=0.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(x).lower_bounds_, float)


def fitted(x, start, num_steps):
    weights, mean, covariance = start
    fit = sb.fit(
        "gmm", x, num_clusters=len(weights), prior="flat", dtype=str(x.dtype), progress=False,
        init={"weights": weights, "mean": mean, "covariance": covariance},
        engine=sb.EM(max_steps=num_steps, tol=1e-15),
    )  # fmt: skip
    flat_prior = gammaln(len(weights))  # density of the flat Dirichlet, part of the objective
    return fit.seconds["run"], (np.asarray(fit.objective[0]) - flat_prior) / len(x)


def timed(function, *args):
    began = time.perf_counter()
    value = function(*args)
    return time.perf_counter() - began, value


def per_iteration(run, repeats):
    """Best difference between a long and a short run, by the iterations between, and the trace."""
    seconds = []
    for _ in range(repeats):
        short, start = run(SHORT)
        long, trace = run(LONG)
        seconds.append((long - short) / (len(trace) - len(start)))
    return min(seconds), trace


def matmul_rate(dtype, size=2048):
    """Flops a second of the machine's matrix product."""
    square = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    best = min(timed(lambda: jax.block_until_ready(product(square, square)))[0] for _ in range(7))
    return 2 * size**3 / best


def pass_flops(num_points, num_features, num_clusters):
    """Multiplications and additions that the pass cannot do without, exponentials as one each."""
    d = num_features
    density = d + d * (d + 1) + 2 * d + 4  # differences, triangular product, squares, softmax
    moments = d + 2 * d + d * (d + 1)  # weighted differences, their sums, half a second moment
    return num_points * num_clusters * (density + moments)


def report(dtype, data, exact, repeats, through_fit):
    """Print an iteration of each side; returns how many times ours is as fast."""
    x, *start = data
    x, start = x.astype(dtype), [v.astype(dtype) for v in start]
    shape = len(x), x.shape[1], len(start[0])
    on_device = jax.device_put(x)
    memory = iterate.lower(on_device, *start).compile().memory_analysis()
    ours(on_device, start, 1)
    print(f"{dtype}, {shape[0]:,} x {shape[1]}, {shape[2]} clusters")
    peer, trace = per_iteration(lambda n: timed(sklearns, x, start, n), max(1, repeats // 3))
    print(f"  scikit-learn         {peer:.3f} s per iteration, {error(trace, exact)}")
    seconds, trace = per_iteration(lambda n: timed(ours, on_device, start, n), repeats)
    print(
        f"  gaussian_pass        {seconds:.3f} s per iteration, {error(trace, exact)}: "
        f"{peer / seconds:.1f} times faster (aim {TARGETS[dtype]})"
    )
    ratios = {"pass": peer / seconds}
    if through_fit:
        fitting, trace = per_iteration(lambda n: fitted(x, start, n), repeats)
        print(
            f"  sidebayes.fit('gmm') {fitting:.3f} s per iteration, {error(trace, exact)}: "
            f"{peer / fitting:.1f} times faster"
        )
        ratios["fit"] = peer / fitting
    rate, flops = matmul_rate(dtype), pass_flops(*shape)
    print(
        f"  gaussian_pass does {flops / seconds / 1e9:.1f} GFlop/s, {flops / seconds / rate:.0%} of "
        f"the matrix product's {rate / 1e9:.1f}; its temporaries take "
        f"{memory.temp_size_in_bytes / 2**20:.1f} MiB, an (N, K, d) array "
        f"{np.prod([float(n) for n in shape]) * x.itemsize / 2**20:.0f} MiB",
        flush=True,
    )
    return ratios | {"product": rate * seconds / flops}


def error(trace, exact):
    """Largest relative error of the log-likelihoods, against the pass in double precision."""
    gap = np.max(np.abs(trace / exact[: len(trace)] - 1))
    return f"log-likelihoods to {gap:.0e}"


def measured(dtype, points=500_000, features=16, clusters=10, repeats=3, through_fit=True):
    """Figures of one precision."""
    data = simulate(points, features, clusters)
    with jax.enable_x64(True):
        exact = ours(jax.device_put(data[0]), data[1:], LONG + 1)
    with jax.enable_x64(dtype == "float64"):
        return report(dtype, data, exact, repeats, through_fit)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fit", action="store_true", help="also time sidebayes.fit")
    options = parser.parse_args()
    sizes = options.points, options.features, options.clusters
    for dtype in TARGETS:
        measured(dtype, *sizes, options.repeats, options.fit)


if __name__ == "__main__":
    main()
