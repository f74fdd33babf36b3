"""Files of maps: NumPy arrays and one text, without pickled objects."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from sidebayes.common.files import MAP, as_path, check_writable, write_whole
from sidebayes.common.magnitudes import shown

from .embedding import Embedding
from .graphs.geodesics import Geodesics
from .graphs.manifold import Manifold
from .graphs.neighbors import KNearest, Neighbors, Radius
from .graphs.rows import DistanceRows, GraphRows, Rows, TableRows

__all__ = ["read_state", "write_state"]

_KIND = "sidebayes.IncrementalIsomap/1"
_EMBEDDING = ("coordinates", "sources", "parts", "eigenvalues")


def write_state(
    path: Any, header: Mapping[str, Any], manifold: Manifold, embedding: Embedding
) -> None:
    """Write a map; `header` holds parameters and names that JSON can represent."""
    check_writable(path, MAP)
    geodesics = manifold.geodesics
    graph = geodesics.adjacency.matrix()
    numbers = {
        "number": embedding.number,
        "converge": embedding.converge,
        "residual": float(embedding.residual),
        "shift": float(embedding.shift),
        "shift_size": embedding.shift_size,
        "is_complete": geodesics.is_complete,
        "num_wanted": geodesics.num_wanted,
        "rows": type(manifold.rows).__name__,
    }
    text = json.dumps({"kind": _KIND, **header, "numbers": numbers}, default=lambda one: one.item())
    arrays = {
        "header": np.array(text),
        "graph_lengths": graph.data,
        "graph_to": graph.indices,
        "graph_bounds": graph.indptr,
        "landmarks": geodesics.sources,
        "geodesics": geodesics.rows,
        **manifold.rows.state(),
        **manifold.neighbors.state(),
        **{name: getattr(embedding, name) for name in _EMBEDDING},
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_whole(path, file.getbuffer())


def read_state(path: Any) -> tuple[dict[str, Any], Manifold, Embedding]:
    """Read a map that `write_state` wrote.

    Raises
    ------
    ValueError
        If there is no such file, or it holds no map.
    """
    given = as_path(path)
    if not given.is_file():
        raise ValueError(f"there is no file {given}; give the path of a map that save wrote")
    try:
        with np.load(given, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays["header"]))
        if header.get("kind") != _KIND:
            raise ValueError(f"it is {shown(header.get('kind'))}, not {_KIND!r}")
        return header, _manifold(header, arrays), _embedding(header["numbers"], arrays)
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{given} holds no whole map: {error}; save it again") from error


def _manifold(header: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> Manifold:
    bounds = arrays["graph_bounds"]
    size = len(bounds) - 1
    graph = scipy.sparse.csr_array(
        (arrays["graph_lengths"], arrays["graph_to"], bounds), shape=(size, size)
    )
    graph.check_format(full_check=True)
    sources = arrays["landmarks"]
    if arrays["geodesics"].shape != (len(sources), size) or not np.isin(sources, range(size)).all():
        raise ValueError("its distances are not those of its graph")
    rows: Rows
    if header["numbers"]["rows"] == "TableRows":
        rows = TableRows(arrays["x"], str(arrays["metric"]))
    elif header["numbers"]["rows"] == "DistanceRows":
        rows = DistanceRows(arrays["distances"])
    else:
        rows = GraphRows(size)
    neighbors: Neighbors = (
        KNearest(arrays["index"].shape[1]) if "index" in arrays else Radius(np.inf)
    )
    neighbors.resume(arrays)
    landmarks = None if header["numbers"]["is_complete"] else arrays["landmarks"]
    wanted = header["numbers"]["num_wanted"]
    return Manifold(rows, neighbors, Geodesics(graph, landmarks, arrays["geodesics"], wanted))


def _embedding(numbers: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> Embedding:
    found = Embedding(numbers["number"], numbers["converge"])
    for name in _EMBEDDING:
        setattr(found, name, arrays[name])
    found.residual, found.shift = numbers["residual"], numbers["shift"]
    found.shift_size = numbers["shift_size"]
    return found
