"""What removing each edge or vertex of a graph does to its distances, by recomputing all of them."""

import numpy as np
from scipy.sparse.csgraph import csgraph_from_dense, shortest_path


def moved_by_each(graph, of_rows):
    """Sums of increases and numbers of cut distances: dict from edge or vertex to both."""
    full = np.where(graph.toarray() > 0, graph.toarray(), np.inf)
    before = _distances(full)
    first, second = np.nonzero(np.triu(np.isfinite(full)))
    which = range(len(full)) if of_rows else zip(first.tolist(), second.tolist(), strict=True)
    found = {}
    for one in which:
        less = full.copy()
        if of_rows:
            less[one, :] = less[:, one] = np.inf
        else:
            less[one] = less[one[::-1]] = np.inf
        after = _distances(less)
        counts = np.isfinite(before)
        if of_rows:
            counts[one, :] = counts[:, one] = False
        cut = counts & np.isinf(after)
        found[one] = (after - before)[counts & ~cut].sum(), int(cut.sum())
    return found


def _distances(full):
    return shortest_path(csgraph_from_dense(full, null_value=np.inf), directed=False)
