"""IncrementalIsomap beside Isomap of scikit-learn from scratch: seconds, memory, and how close the map stays.

Run: python -m benchmarks.isomap [--only insertion|stream|growth|landmarks|paths|accuracy] [--most N]

Needs the extra isomap; "paths" compares with NetworKit if it is installed.
"""

import argparse
import resource
import time
import warnings

import numpy as np
from scipy.sparse.csgraph import shortest_path
from sidebayes.guides.transformers.isomap.graphs.adjacency import Edges
from sidebayes.guides.transformers.isomap.graphs.geodesics import Geodesics
from sidebayes.guides.transformers.isomap.graphs.neighbors import KNearest
from sidebayes.guides.transformers.isomap.graphs.rows import TableRows
from sklearn.manifold import Isomap

import sidebayes as sb
from tests.reference.swiss_roll import swiss_roll

NEIGHBORS = 6


def seconds(run):
    """Wall-clock seconds of one run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def processor_seconds(run):
    """Seconds of the processor in one run of one thread, which other programs do not lengthen."""
    began = time.process_time()
    run()
    return time.process_time() - began


def per_row(isomap, x):
    """Median seconds in which rows are added one by one; the first is left out, which loads programs."""
    return float(np.median([seconds(lambda: isomap.partial_fit(row[None])) for row in x][1:]))  # noqa: B023


def show_insertion(size=2000, repeats=3):
    """Print seconds of one insertion, and of the map from scratch that it spares; returns their ratio."""
    x = swiss_roll(size + 41, 0)
    took, peer = [], []
    for _ in range(repeats):  # in turn, since other programs may run
        isomap = sb.IncrementalIsomap(n_neighbors=NEIGHBORS).fit(x[:size])
        took.append(per_row(isomap, x[size:]))
        peer.append(seconds(lambda: Isomap(n_neighbors=NEIGHBORS).fit(x[: size + 1])))
    ours, theirs = np.median(took), np.median(peer)
    print(f"\n{size} rows: one more takes {1e3 * ours:.1f} ms, scikit-learn's Isomap from scratch")
    print(f"{1e3 * theirs:.0f} ms: {theirs / ours:.0f} times as long", flush=True)
    return {"ratio": theirs / ours}


def show_stream(size=1500, first=100):
    """Print seconds of a stream of rows one by one, in maps from scratch of all of them."""
    x = swiss_roll(size, 0)
    isomap = sb.IncrementalIsomap(n_neighbors=NEIGHBORS)

    def stream():
        isomap.fit(x[:first])
        for row in x[first:]:
            isomap.partial_fit(row[None])

    before = seconds(lambda: Isomap(n_neighbors=NEIGHBORS).fit(x))
    ours = seconds(stream)
    batch = (before + seconds(lambda: Isomap(n_neighbors=NEIGHBORS).fit(x))) / 2
    print(
        f"\n{size} rows one by one take {ours:.1f} s, scikit-learn's Isomap of all {batch:.2f} s:"
    )
    print(f"the time of {ours / batch:.1f} maps from scratch, where {size - first + 1} are made")


def show_growth(most=10_000, added=20):
    """Print seconds of an insertion for maps of several sizes."""
    print(
        "\n| rows | one more, ms | scikit-learn from scratch, s | ratio |\n| --- | --- | --- | --- |"
    )
    for size in (500, 1000, 2000, 5000, 10_000):
        if size > most:
            break
        x = swiss_roll(size + added, 0)
        isomap = sb.IncrementalIsomap(n_neighbors=NEIGHBORS).fit(x[:size])
        ours = per_row(isomap, x[size:])
        del isomap
        peer = seconds(lambda: Isomap(n_neighbors=NEIGHBORS).fit(x[: size + 1]))  # noqa: B023
        print(f"| {size:,} | {1e3 * ours:.1f} | {peer:.2f} | {peer / ours:.0f} |", flush=True)


def show_landmarks(size=100_000, num_landmarks=100, added=30):
    """Print seconds and memory of the landmark version."""
    x = swiss_roll(size + 1000 + added, 0)
    isomap = sb.IncrementalIsomap(n_neighbors=8, n_landmarks=num_landmarks)
    took = seconds(lambda: isomap.fit(x[:size]))
    many = seconds(lambda: isomap.partial_fit(x[size : size + 1000]))
    one = per_row(isomap, x[size + 1000 :])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"\n{size:,} rows, {num_landmarks} landmarks: fit {took:.1f} s, 1,000 more rows {many:.1f} s,"
    )
    print(f"one more {1e3 * one:.0f} ms, at most {peak:.2f} GiB of the process", flush=True)


def show_paths(size=1500, number=200):
    """Print processor seconds per added edge, beside NetworKit's dynamic all-pairs shortest paths."""
    x = swiss_roll(size, 0)
    graph = KNearest(NEIGHBORS).start(TableRows(x, "euclidean"))
    ours = Geodesics(graph)
    rng = np.random.default_rng(0)
    ends = np.unique(np.sort(rng.integers(0, size, (number, 2)), axis=1), axis=0)
    ends = ends[
        (ends[:, 0] < ends[:, 1]) & ~np.isfinite(ours.adjacency.lengths(Edges(ends, ends[:, 0])))
    ]
    lengths = 0.9 * ours.rows[ends[:, 0], ends[:, 1]]
    edges = [Edges(ends[one : one + 1], lengths[one : one + 1]) for one in range(len(ends))]
    start = ours.adjacency.edges()
    ours.change(Edges.none(), Edges.none())  # loads the program
    took = processor_seconds(lambda: [ours.change(Edges.none(), edge) for edge in edges])
    exact = shortest_path(ours.adjacency.matrix(), directed=False)
    print(
        f"\n{size} rows, {len(edges)} edges added one by one: {1e3 * took / len(edges):.2f} ms each"
    )
    print(f"largest difference from scipy's shortest paths {np.abs(ours.rows - exact).max():.0e}")
    try:
        import networkit
    except ImportError:
        print("NetworKit is not installed")
        return
    peer = networkit.Graph(size, weighted=True)
    for (one, other), length in zip(start.ends.tolist(), start.lengths.tolist(), strict=True):
        peer.addEdge(one, other, length)
    paths = networkit.distance.DynAPSP(peer)
    paths.run()
    kind = networkit.dynamics.GraphEventType.EDGE_ADDITION
    total = 0.0
    for (one, other), length in zip(ends.tolist(), lengths.tolist(), strict=True):
        peer.addEdge(one, other, length)
        event = networkit.dynamics.GraphEvent(kind, one, other, length)
        total += processor_seconds(lambda: paths.update(event))  # noqa: B023
    print(f"NetworKit, which removes none: {1e3 * total / len(edges):.2f} ms each")


def show_accuracy(size=1500, first=100):
    """Print how far coordinates are from those of scikit-learn, relative to their size."""
    x = swiss_roll(size, 0)
    print(
        "\n| one step per row | median | mean | largest | at the end |\n| --- | --- | --- | --- | --- |"
    )
    for converge in (False, True):
        isomap = sb.IncrementalIsomap(n_neighbors=NEIGHBORS, converge=converge).fit(x[:first])
        errors = []
        for row in range(first, size):
            isomap.partial_fit(x[row : row + 1])
            if row % 50 == 49:
                batch = Isomap(n_neighbors=NEIGHBORS).fit(x[: row + 1]).embedding_
                signs = np.sign(np.sum(batch * isomap.embedding_, axis=0))
                apart = np.linalg.norm(isomap.embedding_ * signs - batch)
                errors.append(apart / np.linalg.norm(batch))
        name = "converged" if converge else "one step"
        shown = (np.median(errors), np.mean(errors), np.max(errors), errors[-1])
        print(f"| {name} | {' | '.join(f'{one:.1e}' for one in shown)} |", flush=True)


PARTS = {
    "insertion": show_insertion,
    "stream": show_stream,
    "growth": show_growth,
    "landmarks": show_landmarks,
    "paths": show_paths,
    "accuracy": show_accuracy,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--most", type=int, default=10_000, help="rows of the largest map in growth"
    )
    chosen = parser.parse_args()
    warnings.simplefilter("error", sb.SideBayesWarning)
    for name, show in PARTS.items():
        if chosen.only in (None, name):
            show(chosen.most) if name == "growth" else show()
