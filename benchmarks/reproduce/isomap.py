"""Reproduce Law (2006), chapter 3: maps that grow row by row, landmarks, contraction, and rotated digits.

How far a map of n rows is from one from scratch is E_n (eq. 3.7): the norm of the difference of their
coordinates over the norm of those from scratch, the sign of each coordinate being the one that is
closer. The page of the definition is lost in the scan of the thesis; it is restored after Law and Jain
(2006). Digits "2" are the 1,032 of the MNIST test set, where the thesis has 5,958 of the training set;
ten neighbours and six coordinates of them are our choice.

Run: SIDEBAYES_DATA=folder python benchmarks/reproduce/isomap.py [--parts basic,landmarks]

Needs the extra isomap.
"""

import argparse
import time
import warnings

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.ndimage import rotate
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist
from sidebayes.guides.transformers.isomap.scaling import from_landmarks
from sklearn.datasets import make_s_curve, make_swiss_roll
from sklearn.decomposition import PCA
from sklearn.manifold import Isomap
from sklearn.neighbors import kneighbors_graph

import sidebayes as sb

NUM_LANDMARKS = 40
THESIS_LANDMARKS = {"Swiss roll": 0.000010, "S-curve": 0.000003, 'MNIST "2"': 0.001685}
"""Mean E_n with landmarks (Fig. 3.11). Those of the basic version are lost in the scan."""
THESIS_CONTRACTION = {1000: ".14 to .16", 10_000: ".03"}
"""Root mean square error by rows seen, read off a figure."""


def twos():
    """Images of the digit 2, shape (1032, 784)."""
    data = sb.load_dataset("mnist_t10k")
    return data.x[data.labels == 2]


CLOUDS = {
    "Swiss roll": (lambda number: make_swiss_roll(number, random_state=0)[0], 6, 2),
    "S-curve": (lambda number: make_s_curve(number, random_state=0)[0], 6, 2),
    'MNIST "2"': (lambda number: twos()[:number], 10, 6),
}
"""Rows, of at most a number; neighbours; coordinates."""


def header(*names):
    """Print the head of a table."""
    print(f"\n| {' | '.join(names)} |\n|{' --- |' * len(names)}", flush=True)


def line(*cells):
    """Print a row of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def seconds(run):
    """Processor seconds of one run, which other programs do not lengthen."""
    began = time.process_time()
    run()
    return time.process_time() - began


def error(found, batch):
    """E_n of eq. 3.7."""
    signs = np.sign(np.sum(found * batch, axis=0))
    return np.linalg.norm(found * signs - batch) / np.linalg.norm(batch)


def grow(isomap, x, first, every):
    """Add rows one by one after the first; yield rows so far, and the seconds that it took."""
    isomap.fit(x[:first])
    took = 0.0
    for row in range(first, len(x)):
        took += seconds(lambda: isomap.partial_fit(x[row : row + 1]))  # noqa: B023
        if (row + 1) % every == 0 or row + 1 == len(x):
            yield row + 1, took


def basic(most=1500, first=100, every=50):
    """Section 3.3.1: distances between all rows."""
    header("data", "n", "median", "mean", "max", "thesis", "insertions, s", "one batch fit, s")
    for name, (draw, num_neighbors, number) in CLOUDS.items():
        x, errors = draw(most), []
        isomap = sb.IncrementalIsomap(number, n_neighbors=num_neighbors)
        batch = Isomap(n_components=number, n_neighbors=num_neighbors)
        for size, took in grow(isomap, x, first, every):  # noqa: B007
            batch_took = seconds(lambda: batch.fit(x[:size]))  # noqa: B023
            errors.append(error(isomap.embedding_, batch.embedding_))
        shown = [f"{one:.1e}" for one in (np.median(errors), np.mean(errors), np.max(errors))]
        line(name, size, *shown, "lost", f"{took:.1f}", f"{batch_took:.2f}")


def batch_landmarks(x, num_neighbors, number, landmarks):
    """Distances from the landmarks and coordinates, from scratch, by the graph of scikit-learn."""
    graph = kneighbors_graph(x, num_neighbors, mode="distance")
    rows = dijkstra(graph, directed=False, indices=landmarks)
    return rows, from_landmarks(rows, landmarks, number).points


def landmarks(most=5000, first=200, every=100):
    """Section 3.3.2: distances from 40 of the first 200 rows, beside a map from scratch with these landmarks.

    "Own landmarks" is beside one that chooses its landmarks among all rows, after a rotation.
    """
    names = ("data", "n", "median", "mean", "max", "thesis, mean", "distances apart")
    header(*names, "own landmarks, mean", "insertions, s")
    for name, (draw, num_neighbors, number) in CLOUDS.items():
        x, errors, apart, others = draw(most), [], 0.0, []
        options = {"n_neighbors": num_neighbors, "n_landmarks": NUM_LANDMARKS}
        isomap = sb.IncrementalIsomap(number, **options)
        for size, took in grow(isomap, x, first, every):  # noqa: B007
            found = isomap.embedding_
            rows, batch = batch_landmarks(x[:size], num_neighbors, number, isomap.landmarks_)
            errors.append(error(found, batch))
            apart = max(apart, np.abs(isomap.dist_matrix_ - rows).max())
            own = sb.IncrementalIsomap(number, **options).fit(x[:size]).embedding_
            others.append(error(found @ orthogonal_procrustes(found, own)[0], own))
        shown = [f"{one:.1e}" for one in (np.median(errors), np.mean(errors), np.max(errors))]
        thesis = f"{THESIS_LANDMARKS[name]:.1e}"
        line(name, size, *shown, thesis, f"{apart:.0e}", f"{np.mean(others):.1e}", f"{took:.1f}")


def bounded(isomap, x, memory, stops, newest=False):
    """Keep so many rows of a stream and contract the others; yield rows seen, and the numbers of those kept.

    The row that goes is the new one, or the most crowded: of all rows but landmarks the one whose nearest
    row is nearest.
    """
    isomap.fit(x[:memory])
    slots = [*range(memory)]  # of the rows of the map
    owner = np.arange(memory + 1)  # of the slots, among rows of the stream
    apart = np.full((memory + 1, memory + 1), np.inf)
    apart[:-1, :-1] = cdist(x[:memory], x[:memory])
    np.fill_diagonal(apart, np.inf)
    free = memory
    for row in range(memory, max(stops) + 1):
        if row in stops:
            yield row, owner[slots]
        if row == max(stops):
            return
        isomap.partial_fit(x[row : row + 1])
        distances = cdist(x[row : row + 1], x[owner[slots]])[0]
        apart[free, slots] = apart[slots, free] = distances
        owner[free] = row
        slots.append(free)
        nearest = apart.min(axis=1)[slots]
        nearest[isomap.landmarks_] = np.inf
        gone = memory if newest else int(nearest.argmin())
        isomap.contract([gone])
        free = slots.pop(gone)


def sphere(number, dims, seed):
    """Rows on the upper half of the sphere of so many dimensions, in a random frame of ten."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, dims + 1))
    x[:, -1] = np.abs(x[:, -1])
    frame = np.linalg.qr(rng.normal(size=(10, dims + 1)))[0]
    return x / np.linalg.norm(x, axis=1, keepdims=True) @ frame.T


def error_of_arcs(isomap, x):
    """Root mean square difference of distances from landmarks and arcs of the sphere."""
    arcs = np.arccos(np.clip(x[isomap.landmarks_] @ x.T, -1, 1))
    return np.sqrt(np.mean(np.square(isomap.dist_matrix_ - arcs)))


STREAMS = {2: (1000, 2000, 4000, 7000, 10_000), 3: (1000, 2000, 4000)}
"""Rows seen, by dimensions of the sphere. In three, rows get so many edges that more would take long."""


def contraction(memory=1000, seed=0):
    """Section 3.3.3: 1,000 rows are kept of a stream on a hemisphere, where distances are known."""
    header("sphere", "rows seen", "most crowded goes", "newest goes", "all stored", "thesis")
    for dims, stops in STREAMS.items():
        x = sphere(max(stops), dims, seed)

        def start(dims=dims):
            return sb.IncrementalIsomap(dims, n_neighbors=6, n_landmarks=NUM_LANDMARKS)

        columns = []
        for newest in (False, True):
            isomap = start()
            kept = bounded(isomap, x, memory, stops, newest)
            columns.append([error_of_arcs(isomap, x[rows]) for _, rows in kept])
        isomap, stored = start().fit(x[:memory]), []
        for before, size in zip((memory, *stops), stops, strict=False):
            if size > before:
                isomap.partial_fit(x[before:size])
            stored.append(error_of_arcs(isomap, x[:size]))
        for size, *errors in zip(stops, *columns, stored, strict=True):
            shown = (f"{one:.3f}" for one in errors)
            line(f"S{dims}", f"{size:,}", *shown, THESIS_CONTRACTION.get(size, ""))


def turned(image, angle):
    """An image, turned by some degrees."""
    return rotate(image.reshape(28, 28), angle, reshape=False, order=1).ravel()


def residual(points, angles, number):
    """Degrees by which angles are off that a linear function of turned images less upright ones gives."""
    moved = (points - points[:, angles == 0])[..., :number].reshape(-1, number)
    wanted = np.tile(angles, len(points))
    solution = np.linalg.lstsq(moved, wanted)[0]
    return np.sqrt(np.mean(np.square(moved @ solution - wanted)))


def rotation(memory=1000, multiples=(1, 2, 3, 4, 5), numbers=(2, 5, 10, 20), seed=0):
    """Section 3.3.4: angles of digits, by coordinates that have seen turned digits."""
    stops = [memory * one for one in multiples]
    rng, images = np.random.default_rng(seed), twos()
    drawn = rng.integers(0, 500, stops[-1]), rng.uniform(-30, 30, stops[-1])
    x = np.stack([turned(images[one], angle) for one, angle in zip(*drawn, strict=True)])
    angles = 30 * np.arange(-7, 8) / 7
    test = np.stack([turned(image, angle) for image in images[500:] for angle in angles])
    options = {"n_neighbors": 10, "n_landmarks": NUM_LANDMARKS}
    header("coordinates", "rows seen", *(f"{one} of them" for one in numbers))

    def show(name, size, method):
        points = method.transform(test).reshape(-1, len(angles), max(numbers))
        line(name, f"{size:,}", *(f"{residual(points, angles, one):.2f}" for one in numbers))

    line("none", "", *[f"{np.sqrt(np.mean(np.square(angles))):.2f}"] * len(numbers))
    for size in stops[:: len(stops) - 1]:
        show("PCA", size, PCA(max(numbers), random_state=0).fit(x[:size]))
    for size in stops[1:]:
        isomap = sb.IncrementalIsomap(max(numbers), **options)
        show("Isomap, all kept", size, isomap.fit(x[:size]))
    for newest, goes in ((False, "most crowded"), (True, "newest")):
        isomap = sb.IncrementalIsomap(max(numbers), **options)
        for size, _ in bounded(isomap, x, memory, stops, newest):
            show(f"Isomap, {memory:,} kept, {goes} goes", size, isomap)


PARTS = {one.__name__: one for one in (basic, landmarks, contraction, rotation)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    warnings.simplefilter("error", sb.SideBayesWarning)
    for part in parser.parse_args().parts.split(","):
        PARTS[part]()
