"""Label engine at scale and in small: compilation, the exact E-step, the named approximation.

Fits to one draw of links after another are in `latency.py`.

Run: python benchmarks/label_engine.py
"""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

import sidebayes as sb

NUM_POINTS, NUM_CLUSTERS, NUM_FEATURES = 1_000_000, 8, 16


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


def log_densities(x, mean, precision_root):
    """Gaussian log-densities a cluster at a time, so that no (N, K, d) array exists."""

    def one(mean_and_root):
        centre, root = mean_and_root
        return -0.5 * jnp.sum(((x - centre) @ root) ** 2, axis=1) + jnp.log(jnp.diag(root)).sum()

    return jax.lax.map(one, (mean, precision_root)).T


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


def exact_e_step() -> None:
    start = time.perf_counter()
    links = random_links(300_000)
    read = time.perf_counter()
    graph = jax.device_put(LabelGraph.build(links, NUM_POINTS, NUM_CLUSTERS))
    print(
        f"host: links checked in {read - start:.2f} s, compiled in {time.perf_counter() - read:.2f} s"
    )
    print(f"  {graph}")
    free = jax.device_put(LabelGraph.build(None, NUM_POINTS))
    rng = np.random.default_rng(1)
    unary = jnp.asarray(2 * rng.normal(size=(NUM_POINTS, NUM_CLUSTERS)))
    x = jnp.asarray(rng.normal(size=(NUM_POINTS, NUM_FEATURES)))
    mean = jnp.asarray(rng.normal(size=(NUM_CLUSTERS, NUM_FEATURES)))
    root = jnp.broadcast_to(jnp.eye(NUM_FEATURES), (NUM_CLUSTERS, NUM_FEATURES, NUM_FEATURES))

    def labels_only(unary, graph):
        return jax.value_and_grad(partition.log_partition)(unary, graph)

    def whole(x, graph):
        return labels_only(log_densities(x, mean, root), graph)

    for name, function, data in (("labels", labels_only, unary), ("densities + labels", whole, x)):
        seconds = {}
        for kind, g in (("with links", graph), ("without", free)):
            compiled = jax.jit(function).lower(data, g).compile()
            seconds[kind] = median_seconds(compiled, data, g)
        print(
            f"exact E-step, {name}: {seconds['with links']:.3f} s with links, "
            f"{seconds['without']:.3f} s without, ratio "
            f"{seconds['with links'] / seconds['without']:.2f}"
        )
    print(f"peak memory {peak():.2f} GiB")


def mean_field() -> None:
    links = random_links(1_000_000, seed=2)
    start = time.perf_counter()
    graph = jax.device_put(LabelGraph.build(links, NUM_POINTS, NUM_CLUSTERS))
    print(f"a million links: compiled in {time.perf_counter() - start:.2f} s; {graph}")
    try:
        partition.check_inference(graph, NUM_CLUSTERS, "exact")
    except ValueError as error:
        print(f"  exact is refused: {error}")
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(NUM_POINTS, 2)) + 3 * rng.integers(0, 3, (NUM_POINTS, 1)))
    method = MeanField(num_sweeps=5, tol=0.0)

    def em(x, graph):
        def step(mean, _):
            unary = -0.5 * jnp.sum((x[:, None] - mean) ** 2, axis=-1)
            value, prob = jax.value_and_grad(partition.log_partition)(
                unary, graph, inference=method
            )
            return (prob.T @ x) / prob.sum(axis=0)[:, None], value

        return jax.lax.scan(step, x[:NUM_CLUSTERS], length=20)

    compiled = jax.jit(em).lower(x, graph).compile()
    start = time.perf_counter()
    jax.block_until_ready(compiled(x, graph))
    print(f"20 EM steps x 5 mean-field sweeps: {time.perf_counter() - start:.1f} s")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    with jax.enable_x64(True):
        small_graphs()
        wide_loops()
        giant_loop()
        exact_e_step()
        mean_field()
