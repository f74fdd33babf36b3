"""Fits of a table on disk beside the same of an array in memory: time per row, and peak memory.

Run: python -m benchmarks.out_of_core [--rows 2000000] [--features 16] [--clusters 10]
         [--batch 100000] [--epochs 4] [--kinds npy,feather,parquet,memory] [--folder FOLDER]
         [--engine stochastic_em|cavi|svi]
Every kind has a process of its own, of which `peak` is the largest resident memory and `base` that after the
imports. Seconds are of the processor. `us a row` is of an epoch, or of a step of coordinate ascent: a fit of
one is taken from one of `--epochs` more; SVI has none, as its steps read some rows. `fit` is the longer of
these fits as a whole; `predict` writes Parquet, and returns labels of an array. Files are uncompressed but
for Parquet, which is as pyarrow writes it, with row groups of 2^20 rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = ("rows", "kind", "base GiB", "peak GiB", "us a row", "fit s", "predict s")
STEP = 2**20


def write(path, rows, features, clusters):
    """A mixture of normals, written in pieces."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(clusters, features))

    def pieces():
        for begin in range(0, rows, STEP):
            size = min(STEP, rows - begin)
            yield centres[rng.integers(clusters, size=size)] + rng.normal(size=(size, features))

    if path.suffix == ".npy":
        table = np.lib.format.open_memmap(path, "w+", shape=(rows, features))
        begin = 0
        for piece in pieces():
            table[begin : begin + len(piece)] = piece
            begin += len(piece)
        table.flush()
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"x{number}" for number in range(features)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    is_arrow = path.suffix == ".feather"
    open_writer = pa.ipc.new_file if is_arrow else pq.ParquetWriter
    with open_writer(str(path), schema) as writer:
        for piece in pieces():
            arrays = [pa.array(np.ascontiguousarray(column)) for column in piece.T]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def peak():
    """Largest resident memory of this process so far, in GiB; on Linux."""
    told = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in told if line.startswith("VmHWM")) / 2**20


def measured(path, kind, clusters, batch, epochs, name):
    """One fit and its prediction, in this process."""
    import jax.numpy as jnp

    import sidebayes

    jnp.zeros(1).block_until_ready()
    base = peak()
    x = np.load(path) if kind == "memory" else sidebayes.scan(path)

    def fitted(number):
        engine = sidebayes.StochasticEM(batch_size=batch, max_epochs=number, tol=0.0)
        if name == "cavi":
            engine = sidebayes.CoordinateAscent(max_steps=number, tol=0.0)
        elif name == "svi":
            engine = sidebayes.SVI(batch_sets=4096)
        began = time.process_time()
        found = sidebayes.fit("gmm", x, num_clusters=clusters, engine=engine, progress=False)
        return found, time.process_time() - began - found.seconds["compile"]

    found, long = fitted(1)
    each = float("nan")
    if name != "svi":
        first, short = fitted(1)  # what is traced and compiled is there
        found, long = fitted(1 + epochs)
        # fewer where nothing is left to gain
        passes = found.objective.shape[1] - first.objective.shape[1]
        each = (long - short) / passes / len(x)
    began = time.process_time()
    found.predict(x, **({} if kind == "memory" else {"to": path.with_name("labels.parquet")}))
    return {
        "base GiB": round(base, 2),
        "peak GiB": round(peak(), 2),
        "us a row": round(1e6 * each, 3),
        "fit s": round(long + found.seconds["compile"], 1),
        "predict s": round(time.process_time() - began, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="2000000")
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kinds", default="npy,feather,parquet,memory")
    parser.add_argument("--folder", type=Path)
    parser.add_argument(
        "--engine", choices=("stochastic_em", "cavi", "svi"), default="stochastic_em"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        path, kind = given.one
        print(
            json.dumps(
                measured(Path(path), kind, given.clusters, given.batch, given.epochs, given.engine)
            )
        )
        return
    print(*(f"{name:>10}" for name in COLUMNS))
    for rows in map(int, given.rows.split(",")):
        for kind in given.kinds.split(","):
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                path = Path(folder) / f"points.{'npy' if kind == 'memory' else kind}"
                write(path, rows, given.features, given.clusters)
                same = [
                    f"--{n}={getattr(given, n)}" for n in ("clusters", "batch", "epochs", "engine")
                ]
                command = [sys.executable, "-m", "benchmarks.out_of_core", *same]
                done = subprocess.run(
                    [*command, "--one", str(path), kind], check=True, capture_output=True, text=True
                )
            row = {"rows": rows, "kind": kind} | json.loads(done.stdout.splitlines()[-1])
            print(*(f"{row[name]:>10}" for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
