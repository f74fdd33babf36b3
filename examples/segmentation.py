"""Segmentation of an image by related pixels and a minimal cut.

After Yu (2016), section 4.5.5, on a simulated image: foreground and background have two intensities
each, 500 pairs of pixels are known to be alike or not, and neighbours pay for being labelled apart.
"""

import argparse

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

import sidebayes

RESOLUTION = 1e6
"""Steps of a nat in which the integer flow counts."""


def graph_cut(unary, penalty):
    r"""Labels 0 and 1 of least energy :math:`\sum_p D_p(L_p) + \sum_{(p,q)} \lambda [L_p \ne L_q]`.

    The sum runs over 4-neighbours, each pair once (Yu 2016, eq. 4.22, corrected). Exact, by maximal
    flow.

    Parameters
    ----------
    unary : ndarray, shape (height, width, 2)
        :math:`D`, cost of each label in nats.
    penalty : float
        :math:`\lambda \ge 0`.

    Returns
    -------
    ndarray of int, shape (height, width)
    """
    height, width = unary.shape[:2]
    if not penalty >= 0:
        raise ValueError(f"penalty = {penalty}; expected a number >= 0")
    number = np.arange(height * width).reshape(height, width)
    source, sink = number.size, number.size + 1
    cost = (unary - unary.min(axis=2, keepdims=True)).reshape(-1, 2)
    ends = np.concatenate(
        [
            np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1),
            np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1),
        ]
    )
    start = np.concatenate([np.full(source, source), number.ravel(), ends[:, 0], ends[:, 1]])
    end = np.concatenate([number.ravel(), np.full(source, sink), ends[:, 1], ends[:, 0]])
    capacity = np.concatenate([cost[:, 1], cost[:, 0], np.full(2 * len(ends), penalty)])
    whole = np.rint(np.minimum(capacity, 1000.0) * RESOLUTION).astype(np.int32)
    graph = csr_array(coo_array((whole, (start, end)), shape=(source + 2, source + 2)))
    rest = graph - maximum_flow(graph, source, sink).flow
    rest = csr_array(rest * (rest > 0))
    rest.eliminate_zeros()
    reached = breadth_first_order(rest, source, return_predecessors=False)
    labels = np.ones(source + 2, int)
    labels[reached] = 0
    return labels[:source].reshape(height, width)


def simulate_image(height, width, seed):
    """Background of two halves, foreground of a disc in a dark ring; intensities and the truth."""
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:height, :width]
    radius = np.hypot(row - height / 2, column - width / 2) / min(height, width)
    mean = np.where(column < width / 2, 0.30, 0.60)
    mean = np.where(radius < 0.36, 0.45, mean)
    mean = np.where(radius < 0.26, 0.80, mean)
    return mean + 0.05 * rng.normal(size=mean.shape), (radius < 0.36).astype(int)


def overlap(truth, labels):
    """Intersection over union of the foreground, under the better numbering."""
    return max(
        np.sum((truth == 1) & side) / np.sum((truth == 1) | side)
        for side in (labels == 1, labels == 0)
    )


def draw_pairs(truth, num_pairs, seed):
    """As many disjoint must-linked as cannot-linked pairs."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(truth.size).reshape(-1, 2)
    same = truth.ravel()[pairs[:, 0]] == truth.ravel()[pairs[:, 1]]
    must, cannot = pairs[same][:num_pairs], pairs[~same][:num_pairs]
    return sidebayes.Links.must_link(must) + sidebayes.Links.cannot_link(cannot)


def segment(image, links, num_components, penalty, *, num_restarts=5):
    """Labels by the fitted mixture alone, and by the cut."""
    x = image.reshape(-1, 1)
    engine = sidebayes.EM(num_restarts=num_restarts, tol=1e-6)
    options = {"num_clusters": 2, "num_components": num_components, "engine": engine}
    fit = sidebayes.fit("pair_mixture", x, links, **options)
    prob = fit.predict_proba(x).reshape(*image.shape, 2)
    cost = -np.log(np.maximum(prob, 1e-12))
    return prob.argmax(axis=2), graph_cut(cost, penalty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penalty", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    image, truth = simulate_image(64, 96, options.seed)
    print("intersection over union of the foreground")
    for title, num_pairs in (("no links", 0), ("500 links", 250)):
        links = draw_pairs(truth, num_pairs, options.seed) if num_pairs else None
        for num_components in (1, 2):
            alone, cut = segment(image, links, num_components, options.penalty)
            print(
                f"{title:10} {num_components} Gaussians per class: mixture {overlap(truth, alone):.3f}, "
                f"minimal cut {overlap(truth, cut):.3f}"
            )


if __name__ == "__main__":
    main()
