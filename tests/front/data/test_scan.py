"""Tables on disk: what is read, fits by blocks against fits in memory, predictions that are written."""

from __future__ import annotations

import pickle
import sys

import jax
import joblib
import numpy as np
import pandas as pd
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation import streamed_data
from sidebayes.guides.engines.expectation_maximisation.streamed_data import (
    StreamedData,
    look_over,
    streamed,
)
from sidebayes.models.gmm import gmm
from sklearn.mixture import GaussianMixture

import sidebayes
from sidebayes import streams
from tests.support.draws import at_one

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
X = CENTRES[RNG.integers(3, size=900)] + RNG.normal(size=(900, 2))
FRAME = pd.DataFrame({"width": X[:, 0], "name": "a", "height": X[:, 1].astype(np.float32)})
FORMATS = ("npy", "parquet", "feather")


def written(folder, kind, rows=X):
    """A table in pieces of 250 rows."""
    path = folder / f"points.{kind}"
    if kind == "npy":
        np.save(path, rows)
    elif kind == "parquet":
        pq.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), path, row_group_size=250)
    else:
        feather.write_feather(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), path, chunksize=250)
    return path


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return written(tmp_path, request.param)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("sidebayes.data.scan._FEW", 600)


def test_all_formats_hold_the_same(path, small_blocks):
    table = sidebayes.scan(path)
    assert table.shape == X.shape
    assert len(table.sizes) > 2
    assert sum(table.sizes) == len(X) == len(table)
    np.testing.assert_array_equal(table.to_numpy(), X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(table)).to_numpy(), X)
    last = sidebayes.scan(path, columns=table.names[::-1])
    np.testing.assert_array_equal(last.to_numpy(), X[:, ::-1])


def test_small_row_groups_are_read_together(path):
    assert sidebayes.scan(path).sizes == [900]


def test_several_files_are_one_table(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        written(tmp_path / str(number), "parquet", X[number::2])
    paths = [tmp_path / str(number) / "points.parquet" for number in range(2)]
    both = np.concatenate([X[::2], X[1::2]])
    np.testing.assert_array_equal(sidebayes.scan(paths).to_numpy(), both)
    FRAME.to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="same columns"):
        sidebayes.scan([paths[0], tmp_path / "other.parquet"])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int8", "float64")],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_of_other_types(dtype, expected, kind, tmp_path):
    rows = np.round(X).astype(dtype)
    table = sidebayes.scan(written(tmp_path, kind, rows))
    assert table.to_numpy().dtype == expected
    np.testing.assert_array_equal(table.to_numpy(), rows)


def test_columns_are_chosen_by_name(tmp_path):
    FRAME.set_index("name").to_parquet(tmp_path / "indexed.parquet")
    FRAME.set_index(np.arange(900) ** 2).to_parquet(tmp_path / "numbered.parquet")
    FRAME.to_parquet(tmp_path / "points.parquet")
    with pytest.raises(TypeError, match=r"\['name'\] that are not numbers; .*'width', 'height'"):
        sidebayes.scan(tmp_path / "points.parquet")
    with pytest.raises(
        ValueError, match=r"no columns \['depth'\]; it has \['width', 'height', 'name'\]"
    ):
        sidebayes.scan(tmp_path / "points.parquet", columns=["depth"])
    with pytest.raises(TypeError, match="give a list"):
        sidebayes.scan(tmp_path / "points.parquet", columns="width")
    chosen = ["height", "width"]
    table = sidebayes.scan(tmp_path / "points.parquet", columns=chosen)
    np.testing.assert_array_equal(table.to_numpy(), FRAME[chosen].to_numpy(float))
    assert sidebayes.scan(tmp_path / "numbered.parquet", columns=chosen).shape == (900, 2)


def test_what_cannot_be_opened_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "none.npy", np.zeros((0, 2)))
    with pytest.raises(ValueError, match="none of .parquet"):
        sidebayes.scan(tmp_path / "points.csv")
    with pytest.raises(ValueError, match="there is no file"):
        sidebayes.scan(tmp_path / "points.parquet")
    with pytest.raises(ValueError, match="cannot be read"):
        sidebayes.scan(tmp_path / "broken.parquet")
    with pytest.raises(ValueError, match="not a table"):
        sidebayes.scan(tmp_path / "flat.npy")
    with pytest.raises(ValueError, match="no rows"):
        sidebayes.scan(tmp_path / "none.npy")
    with pytest.raises(ValueError, match="path is empty"):
        sidebayes.scan([])
    whole = written(tmp_path, "parquet")
    monkeypatch.setattr("sidebayes.data.scan._MOST", 100)
    with pytest.raises(ValueError, match="row_group_size"):
        sidebayes.scan(whole)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"sidebayes\[tables\]"):
        sidebayes.scan(whole)


def test_one_pass_takes_moments_and_a_sample(path, small_blocks):
    table = look_over(sidebayes.scan(path), 50, seed=1, progress=False)
    np.testing.assert_allclose(table.centre, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(table.covariance, np.cov(X.T), rtol=1e-12)
    assert len(np.unique(table.rows)) == 50
    np.testing.assert_array_equal(table.sample, X[table.rows])


def test_every_row_is_in_one_batch_and_pools_are_not_mixed(path, small_blocks, monkeypatch):
    monkeypatch.setattr(streamed_data, "_POOL", 1)
    table = look_over(sidebayes.scan(path), 50, seed=1, progress=False)
    with jax.enable_x64(True):
        problem = Problem(gmm, (table.sample,), {"num_clusters": 2})
        data = StreamedData.prepare(streamed(problem, "x", table), 70)
        orders = [data.order(3, epoch) for epoch in range(3)]
        rows = []
        for number in orders[0]:
            (values,), graph = data.load(int(number))
            assert values.shape == (data.room, 2)
            rows.append(np.asarray(values)[: graph.num_real])
            assert graph.num_real / len(X) == pytest.approx(data.share(int(number)))
    np.testing.assert_array_equal(np.sort(np.concatenate(rows), axis=0), np.sort(X, axis=0))
    pool = np.array([one for one, _, _ in data.batches])
    for order in orders:
        assert np.count_nonzero(np.diff(pool[order])) == len(table.blocks.sizes) - 1
    assert any(not np.array_equal(orders[0], order) for order in orders[1:])


def test_fits_agree_with_scikit_learn(path, small_blocks):
    """At the mode of maximum likelihood, to what shrinking steps leave."""
    engine = sidebayes.StochasticEM(batch_size=100, max_epochs=60, tol=1e-9, decay=0.51)
    options = {"num_clusters": 3, "prior": "flat"}
    found = sidebayes.fit("gmm", sidebayes.scan(path), engine=engine, **options)
    peer = GaussianMixture(3, tol=1e-10, max_iter=500, n_init=3, random_state=0).fit(X)
    ours = found.params["mean"][np.lexsort(np.round(found.params["mean"]).T)]
    theirs = peer.means_[np.lexsort(np.round(peer.means_).T)]
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    lp = found.objective.ravel()[-1]
    # the constant of the flat prior of the weights is a density, that of scikit-learn has none
    assert lp == pytest.approx(peer.score(X) * len(X) + np.log(2), abs=1e-2)
    # all rows are few enough to be kept
    assert not found.run.sample_of
    np.testing.assert_array_equal(
        found.labels(), found.predict(X if path.suffix == ".npy" else named(X))
    )


def test_a_table_that_is_kept_whole_is_like_an_array(tmp_path):
    """Folds and BIC of a few rows on disk need the disk no more."""
    table = sidebayes.scan(written(tmp_path, "npy"))
    found = sidebayes.fit("gmm", table, num_clusters=3)
    assert isinstance(found.run.engine, sidebayes.StochasticEM)
    (tmp_path / "points.npy").unlink()
    assert np.isfinite(found.bic)
    assert len(found.kfold(2).elpd_i) == 900


def named(rows):
    return pd.DataFrame(rows, columns=["a", "b"])


def test_a_sample_stands_for_the_table(tmp_path, monkeypatch, small_blocks):
    monkeypatch.setattr(streams, "_SAMPLE", 200)
    monkeypatch.setattr(streams, "_ROWS", 128)
    table = sidebayes.scan(written(tmp_path, "parquet"))
    engine = sidebayes.StochasticEM(batch_size=100)
    found = sidebayes.fit("gmm", table, num_clusters=3, engine=engine)
    assert "200 of 900 points" in repr(found)
    assert found.run.feature_names == ("a", "b")
    assert len(found.labels()) == 200

    expected = {n: getattr(found, n)(named(X)) for n in ("predict", "predict_proba", "log_prob")}
    columns = {"predict": "label", "predict_proba": "cluster", "log_prob": "log_prob"}
    zarr = pytest.importorskip("zarr")
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name)(table), values, rtol=1e-12)
        for kind in ("parquet", "zarr", "zarr"):  # what is there is replaced
            path = tmp_path / f"{name}.{kind}"
            assert getattr(found, name)(table, to=path) == path
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        np.testing.assert_allclose(frame.to_numpy().reshape(values.shape), values, rtol=1e-12)
        assert frame.columns[0].startswith(columns[name])
        stored = zarr.open_group(path, mode="r")[columns[name]]
        np.testing.assert_allclose(stored[:], values, rtol=1e-12)

    rows = found.run.sample_rows
    np.testing.assert_array_equal(X[rows], found.run.data["x"])
    for group, dim in (("responsibilities", "points"), ("log_likelihood", "unit")):
        np.testing.assert_array_equal(found.tree[group][dim], rows)
    pairs = [(rows[0], rows[-1]), (rows[7], rows[3])]
    one, other = expected["predict_proba"][np.transpose(pairs)]
    np.testing.assert_allclose(found.same_cluster(pairs), (one * other).sum(axis=1), rtol=1e-9)
    lost = np.setdiff1d(np.arange(900), rows)[0]
    with pytest.raises(ValueError, match=f"name row {lost}, which is not among the 200 rows"):
        found.same_cluster([(lost, rows[0])])
    with pytest.raises(ValueError, match="out of range for 900"):
        found.same_cluster([(0, 900)])
    links = sidebayes.Links.must_link(pairs)
    np.testing.assert_array_equal(found.score_links(links).table[["i", "j"]], pairs)
    with pytest.raises(ValueError, match="curvature of all 900 rows"):
        found.covariance  # noqa: B018

    more = found.resume(2)
    assert more.objective.ravel()[-1] == pytest.approx(found.objective.ravel()[-1], abs=1.0)
    with pytest.raises(ValueError, match="BIC needs all 900 rows"):
        found.bic  # noqa: B018
    with pytest.raises(ValueError, match="kfold needs all 900 rows .*; fit.log_prob"):
        found.kfold(2)
    found.save(tmp_path / "fit.nc")
    loaded = sidebayes.load(tmp_path / "fit.nc")
    assert "200 of 900 points" in repr(loaded)
    np.testing.assert_array_equal(loaded.same_cluster(pairs), found.same_cluster(pairs))
    np.testing.assert_array_equal(loaded.predict(table), expected["predict"])
    with pytest.raises(ValueError, match="sample of the 900 rows"):
        loaded.resume(2)
    again = sidebayes.fit("gmm", table, num_clusters=3, engine=engine, init=loaded)
    assert again.objective.ravel()[-1] == pytest.approx(found.objective.ravel()[-1], abs=1.0)


def test_missing_values_are_found_by_their_row(tmp_path, small_blocks):
    rows = X.copy()
    rows[777, 1] = np.nan
    table = sidebayes.scan(written(tmp_path, "parquet", rows))
    with pytest.raises(ValueError, match="row 777"):
        sidebayes.fit("gmm", table, num_clusters=2, engine="stochastic_em")
    rows[777, 1] = -1e200
    table = sidebayes.scan(written(tmp_path, "parquet", rows))
    with pytest.raises(ValueError, match=r"-1e\+200 in row 777, one of the numbers beyond"):
        sidebayes.fit("gmm", table, num_clusters=2, engine="stochastic_em")
    rows[777, 1] = 1e20
    table = sidebayes.scan(written(tmp_path, "parquet", rows))
    with pytest.raises(ValueError, match=r"in row 777, .* overflow in float32"):
        sidebayes.fit("gmm", table, num_clusters=2, dtype="float32")
    column = pa.array([1.0, None, 2.0])
    pq.write_table(pa.table({"a": column, "b": column}), tmp_path / "null.parquet")
    null = sidebayes.scan(tmp_path / "null.parquet")
    with pytest.raises(ValueError, match="row 1"):
        sidebayes.fit("gmm", null, num_clusters=2, engine="stochastic_em")


@pytest.mark.parametrize("sampled", [False, True])
def test_an_absurd_row_is_named_whether_sampled_or_not(
    tmp_path, monkeypatch, small_blocks, sampled
):
    monkeypatch.setattr(streams, "_SAMPLE", 200)
    engine = sidebayes.StochasticEM(batch_size=100, max_epochs=3, tol=0.0)
    given = {"num_clusters": 3, "engine": engine, "progress": False}
    sample = look_over(sidebayes.scan(written(tmp_path, "npy")), 200, 0).rows

    def stop(*_, **__):
        raise KeyboardInterrupt  # all rows were looked over by now

    monkeypatch.setattr(sidebayes.StochasticEM, "run", stop)
    row = int(sample[-1] if sampled else np.setdiff1d(np.arange(900), sample)[-1])
    rows = X.copy()
    rows[row, 1] = -1e7
    table = sidebayes.scan(written(tmp_path, "npy", rows))
    with (
        pytest.warns(sidebayes.SideBayesWarning, match=rf"in row {row}; .* in column 1\."),
        pytest.raises(KeyboardInterrupt),
    ):
        sidebayes.fit("gmm", table, **given)


def test_predictions_say_where_the_block_begins_that_they_speak_of(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_ROWS", 128)
    known = {"weights": [0.5, 0.5], "mean": CENTRES[:2], "covariance": [np.eye(2)] * 2}
    found = sidebayes.fit("gmm", X, num_clusters=2, engine=at_one(known))
    rows = X.copy()
    rows[800] = 1e6
    with pytest.warns(sidebayes.SideBayesWarning, match="^with row 768 of the table.*in row 32;"):
        found.predict(sidebayes.scan(written(tmp_path, "npy", rows)))
    rows[800] = np.nan
    with pytest.raises(ValueError, match="^with row 768 of the table as row 0, x has .*rows: 32;"):
        found.predict(sidebayes.scan(written(tmp_path, "npy", rows)))


def test_numbers_of_clusters_are_not_compared_by_bic_of_samples(tmp_path, monkeypatch):
    table = sidebayes.scan(written(tmp_path, "npy"))
    monkeypatch.setattr(streams, "_SAMPLE", 200)
    monkeypatch.setattr(streams, "look_over", None)  # no fit begins
    for data, named in (((table,), {}), ((), {"x": table})):
        with pytest.raises(ValueError, match="needs all 900 rows.*criterion='evidence'"):
            sidebayes.select_components("gmm", *data, num_clusters=[1, 2], progress=False, **named)


def test_what_needs_all_rows_is_refused(tmp_path):
    table = sidebayes.scan(written(tmp_path, "npy"))
    links = sidebayes.Links.from_pairs([(0, 1)], [True])
    common = {"num_clusters": 2, "engine": "stochastic_em"}
    with pytest.raises(ValueError, match="engine='stochastic_em'"):
        sidebayes.fit("gmm", table, num_clusters=2, engine="nuts")
    with pytest.raises(ValueError, match="neither links"):
        sidebayes.fit("ppc", table, links, **common)
    with pytest.raises(ValueError, match="truth is for rows"):
        sidebayes.fit("gmm", table, truth=np.zeros(900, int), **common)
    with pytest.raises(ValueError, match="tables on disk; pass one"):
        sidebayes.fit("gmm", table, links=table, **common)
    known = {"weights": [0.5, 0.5], "mean": CENTRES[:2], "covariance": [np.eye(2)] * 2}
    found = sidebayes.fit("gmm", X, num_clusters=2, engine=at_one(known))
    with pytest.raises(ValueError, match="to is for tables"):
        found.predict(X, to=tmp_path / "labels.parquet")
    with pytest.raises(ValueError, match="ends in .parquet"):
        found.predict(table, to=tmp_path / "labels.csv")
    with pytest.raises(ValueError, match="no other data"):
        found.predict(table, links)
    other = tmp_path / "others.parquet"
    pd.DataFrame({"a": [1.0], "label": [2]}).to_parquet(other)
    (tmp_path / "text.parquet").write_text("mine")
    for name, held in (("others", "a"), ("text", "no table of Parquet")):
        with pytest.raises(
            ValueError, match=f"something else than 'label', {held}, which would be"
        ):
            found.predict(table, to=tmp_path / f"{name}.parquet")
    assert list(pd.read_parquet(other)) == ["a", "label"]


def test_a_checkpoint_goes_on_within_an_epoch(tmp_path, monkeypatch, small_blocks):
    """Interrupted after the third batch, and as without."""
    monkeypatch.setattr(streamed_data, "_POOL", 1)
    table = sidebayes.scan(written(tmp_path, "parquet"))
    engine = sidebayes.StochasticEM(batch_size=100, max_epochs=3, tol=0.0)
    given = {"num_clusters": 3, "engine": engine, "progress": False}
    expected = sidebayes.fit("gmm", table, **given)
    assert "shuffle the rows of the table if they are sorted" in str(expected.status)
    read, asked = StreamedData.load, []

    def breaks(self, number):
        asked.append(number)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return read(self, number)

    kept = given | {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    with monkeypatch.context() as patch:
        patch.setattr(streamed_data.StreamedData, "load", breaks)
        with pytest.raises(KeyboardInterrupt):
            sidebayes.fit("gmm", table, **kept)
    found = sidebayes.fit("gmm", table, **kept)
    np.testing.assert_array_equal(found.params["mean"], expected.params["mean"])


def test_workers_open_the_table_by_its_path(tmp_path):
    table = sidebayes.scan(written(tmp_path, "npy"))
    each = {f"seed {seed}": {"seed": seed} for seed in (0, 1)}
    common = {"method": "gmm", "num_clusters": 3, "engine": sidebayes.StochasticEM(batch_size=300)}
    with joblib.parallel_config("threading", n_jobs=2):
        fits = sidebayes.fit_each(each, table, folder=tmp_path / "fits", **common)
    again = sidebayes.fit_each(each, table, folder=tmp_path / "fits", **common)
    for name, one in fits.items():
        np.testing.assert_array_equal(one.params["mean"], again[name].params["mean"])


def test_a_folder_that_is_no_store_is_not_replaced(tmp_path):
    from sidebayes.streams import _check_target

    kept = tmp_path / "mine.zarr"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    table = sidebayes.scan(written(tmp_path, "npy"))
    with pytest.raises(ValueError, match="no Zarr store"):
        _check_target(kept, table)
    assert (kept / "notes.txt").read_text() == "mine"


def test_predictions_never_replace_the_table_that_is_read(tmp_path):
    from sidebayes.streams import _check_target

    store = tmp_path / "store.zarr"  # that is replaced as a whole, and the table with it
    store.mkdir()
    (store / "zarr.json").write_text("{}")
    paths = [written(tmp_path, "parquet"), written(store, "parquet")]
    (tmp_path / "link.parquet").symlink_to(paths[0])
    table = sidebayes.scan(paths)
    for to in (paths[0], tmp_path / "link.parquet", store):
        with pytest.raises(ValueError, match="holds the table that is read"):
            _check_target(to, table)
    assert _check_target(tmp_path / "other.parquet", table) == tmp_path / "other.parquet"


def test_a_file_that_changed_since_it_was_scanned_is_told(path):
    table = sidebayes.scan(path)
    written(path.parent, path.suffix[1:], X[:100])
    with pytest.raises(ValueError, match="changed since it was scanned"):
        table.read(0)
    path.unlink()
    with pytest.raises(ValueError, match="changed since it was scanned, or is gone"):
        table.to_numpy()
