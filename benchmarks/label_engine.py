"""Label engine at scale and in small: compilation, the exact E-step, the named approximation.

Fits to one draw of links after another are in `latency.py`.

Run: python benchmarks/label_engine.py [--million], the second for the parts with a million points alone.
"""

import resource
import sys
import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
from sidebayes.guides.engines.steps import row_tables
from sidebayes.models.blocks.components.gaussians.gaussian_stats import (
    gaussian_log_prob,
    gaussian_pass,
    weighted_moments,
)
from sidebayes.models.blocks.components.gaussians.linked_pass import linked_pass
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import BeliefPropagation, MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

import sidebayes as sb

NUM_POINTS, NUM_CLUSTERS, NUM_FEATURES = 1_000_000, 10, 16


def random_links(num_links: int, seed: int = 0, num_points: int = NUM_POINTS) -> Links:
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, num_points, (num_links, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return Links(pairs, 2 * rng.normal(size=len(pairs)), num_points)


def median_seconds(compiled, *args, repeats: int = 7) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def small_graphs() -> None:
    """Compilation as a user waits for it: ten restarts of a small problem."""
    for num_links in (0, 30, 60, 120):
        graph = LabelGraph.build(random_links(num_links, num_points=150), 150, 3)
        unary = jnp.zeros((10, 150, 3))
        routine = jax.vmap(jax.value_and_grad(partition.log_partition), in_axes=(0, None))
        start, work = time.perf_counter(), time.process_time()
        jax.jit(routine).lower(unary, graph).compile()
        print(
            f"150 points, {num_links} links: traced and compiled in "
            f"{time.perf_counter() - start:.2f} s ({time.process_time() - work:.2f} s of processor)"
        )


def wide_loops() -> None:
    """An exact E-step of random links in loops, from narrow to as wide as the budget admits."""
    for name, num_links, seed, hard in (
        ("iris", 100, 0, False),
        ("iris", 200, 0, True),
        ("wine", 200, 0, False),
        ("iris", 200, 1, False),
    ):
        labels = sb.load_dataset(name).labels
        links = sb.simulate_links(labels, num_links, seed=seed)
        links = links if hard else links.with_strength(2.0)
        start = time.perf_counter()
        graph = LabelGraph.build(links, len(labels), 3)
        host = time.perf_counter() - start
        unary = jnp.asarray(np.random.default_rng(0).normal(size=(len(labels), 3)))
        compiled = (
            jax.jit(jax.value_and_grad(partition.log_partition)).lower(unary, graph).compile()
        )
        seconds = median_seconds(compiled, unary, graph, repeats=3)
        buckets = graph.buckets
        cells = (3.0 ** (buckets.bag_size[buckets.place < len(buckets.row)] + 1)).sum()
        memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
        print(
            f"{name}, {num_links} {'hard' if hard else 'soft'} links: {cells:.2g} cells, ordered in "
            f"{host:.2f} s, E-step {1000 * seconds:.1f} ms, {memory:.0f} MiB"
        )


def giant_loop() -> None:
    links = random_links(450_000, num_points=300_000)
    start = time.perf_counter()
    graph = LabelGraph.build(links, 300_000, NUM_CLUSTERS)
    print(f"a giant loop given up in {time.perf_counter() - start:.2f} s; {graph}")


def seconds_of_processor(compiled, *args, repeats: int = 7) -> float:
    """Least processor time of several calls, which other work on the machine changes little."""
    jax.block_until_ready(compiled(*args))
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(compiled(*args))
        taken.append(time.process_time() - start)
    return min(taken)


def host_compilation(num_links: int, seed: int) -> tuple[LabelGraph, dict[str, float]]:
    """Links checked and compiled, with the seconds of processor and the GiB that it takes."""
    tracemalloc.start()
    LabelGraph.build(random_links(num_links, seed), NUM_POINTS, NUM_CLUSTERS, "mean_field")
    most = tracemalloc.get_traced_memory()[1] / 2**30
    tracemalloc.stop()
    start = time.process_time()
    links = random_links(num_links, seed)
    read = time.process_time()
    graph = LabelGraph.build(links, NUM_POINTS, NUM_CLUSTERS, "mean_field")
    taken = time.process_time() - read
    print(
        f"host, {num_links:,} links: checked in {read - start:.2f} s of processor, compiled in "
        f"{taken:.2f}, at most {most:.2f} GiB\n  {graph}"
    )
    return graph, {"seconds": taken + read - start, "gib": most}


def gaussians() -> tuple:
    """Points, and log weights, means and Cholesky factors of Gaussians that overlap."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(NUM_POINTS, NUM_FEATURES)))
    mean = jnp.asarray(rng.normal(size=(NUM_CLUSTERS, NUM_FEATURES)))
    root = jnp.broadcast_to(jnp.eye(NUM_FEATURES), (NUM_CLUSTERS, NUM_FEATURES, NUM_FEATURES))
    return x, jnp.full(NUM_CLUSTERS, -jnp.log(NUM_CLUSTERS)), mean, root


def unlinked_e_step() -> float:
    """Densities, responsibilities and moments of points without links, seconds of processor."""
    given = gaussians()
    return seconds_of_processor(jax.jit(gaussian_pass).lower(*given).compile(), *given)


def exact_e_step() -> dict[str, float]:
    """Densities, label sums and moments in one pass and in three: times an E-step without links."""
    graph = jax.device_put(host_compilation(300_000, 0)[0])
    x, *parameters = gaussians()

    def one_pass(x, graph, log_weights, mean, root):
        known = graph, log_weights, graph.pair_weights
        found = linked_pass(x, *known, mean, root)
        return found.log_partition, found.moments

    def three_passes(x, graph, log_weights, mean, root):
        unary = gaussian_log_prob(x, mean, root)
        log_z, share = jax.value_and_grad(partition.log_partition)(unary, graph, log_weights)
        return log_z, weighted_moments(x, share, mean)

    without, ratios = unlinked_e_step(), {}
    for function in (one_pass, three_passes):
        compiled = jax.jit(function).lower(x, graph, *parameters).compile()
        taken = seconds_of_processor(compiled, x, graph, *parameters)
        memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
        print(
            f"E-step with 300,000 links, {function.__name__}: {taken:.3f} s of processor, {without:.3f} "
            f"without links, ratio {taken / without:.2f} (aim 1.5); temporaries {memory:.0f} MiB"
        )
        ratios[function.__name__] = taken / without
    return ratios


def approximate_e_step() -> dict[str, float]:
    """One sweep of mean field and one round of belief propagation: times an E-step without links."""
    graph = jax.device_put(host_compilation(1_000_000, 2)[0])
    try:
        partition.check_inference(graph, NUM_CLUSTERS, "exact")
    except ValueError as error:
        print(f"  exact is refused: {error}")
    x, log_weights, mean, root = gaussians()
    unary = jax.jit(gaussian_log_prob)(x, mean, root)
    without, ratios = unlinked_e_step(), {}
    for method in (MeanField, BeliefPropagation):
        taken = []
        for sweeps in (1, 6):
            inference = method(num_sweeps=sweeps, tol=0.0)

            def labels(unary, graph, log_weights, inference=inference):
                total = partition.log_partition
                return jax.value_and_grad(total)(unary, graph, log_weights, inference=inference)

            compiled = jax.jit(labels).lower(unary, graph, log_weights).compile()
            taken.append(seconds_of_processor(compiled, unary, graph, log_weights, repeats=3))
        sweep = (taken[1] - taken[0]) / 5
        print(
            f"{method.name}, a million links: {sweep:.3f} s of processor a sweep, {taken[0] - sweep:.3f} "
            f"beside; {sweep / without:.2f} times an E-step without links, {without:.3f} s (aim 3)"
        )
        ratios[method.name] = sweep / without
    return ratios


def linked_fits(num_links: int = 300_000) -> None:
    """Seconds of a step of EM of overlapping clusters, on one device and on all cores."""
    rng = np.random.default_rng(0)
    size = NUM_CLUSTERS, NUM_FEATURES
    mean = 0.8 * rng.normal(size=size)
    labels = rng.integers(NUM_CLUSTERS, size=NUM_POINTS)
    x = mean[labels] + rng.normal(size=(NUM_POINTS, NUM_FEATURES))
    links = sb.simulate_links(labels, num_links, weight=2.0)
    start = {
        "weights": np.full(NUM_CLUSTERS, 1 / NUM_CLUSTERS),
        "mean": mean + 0.3 * rng.normal(size=size),
        "covariance": np.stack([2 * np.eye(NUM_FEATURES)] * NUM_CLUSTERS),
    }
    least = row_tables._LARGE

    def seconds(num_steps: int, reading: str) -> float:
        engine = sb.EM(max_steps=num_steps, tol=0)
        given = {"num_clusters": NUM_CLUSTERS, "reading": reading, "engine": engine}
        found = sb.fit("ppc", x, links, init=start, progress=False, **given)
        assert found.objective.shape[1] >= num_steps
        return found.seconds["run"]

    for reading in ("relation", "field"):
        taken = {}
        for where, row_tables._LARGE in (("one device", np.inf), ("all cores", least)):
            seconds(5, reading)  # compiles
            taken[where] = (seconds(25, reading) - seconds(5, reading)) / 20
        shown = ", ".join(f"{value:.3f} s on {where}" for where, value in taken.items())
        print(f"a step of EM, {num_links:,} links as a {reading}: {shown}")
    row_tables._LARGE = least


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    with jax.enable_x64(True):
        if "--million" not in sys.argv[1:]:
            small_graphs()
            wide_loops()
            giant_loop()
        exact_e_step()
        approximate_e_step()
        linked_fits()
        print(f"peak memory {peak():.2f} GiB")
