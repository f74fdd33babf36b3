"""Independent tasks give the same wherever joblib has them run."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from functools import partial
from weakref import WeakValueDictionary

import cloudpickle
import jax
import jax.numpy as jnp
import joblib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from joblib.parallel import ThreadingBackend
from sidebayes.guides.engines.plumbing.identity import freeze

import sidebayes
from sidebayes import many, tasks
from sidebayes.runs.run import same, stated_options
from sidebayes.studies.group_tests.group_test import group_test
from sidebayes.tasks import Task, run_tasks

IRIS = sidebayes.load_dataset("iris")
UNIT = dist.Normal(0.0, 1.0)
LARGE = np.ones(300_000)
TASKS = [Task(f"number {n}", n) for n in range(4)]


def described(shared, number):
    """What reaches a worker, and where it works."""
    warnings.warn(f"number {number}", UserWarning, stacklevel=1)
    return {
        "number": number,
        "process": os.getpid(),
        "threads": os.environ.get("NPROC"),
        "mapped": type(shared["mapped"]),
        "device": type(shared["device"]),
        "shared": not shared["large"].flags.writeable,
        "sum": float(shared["mapped"].sum() + shared["large"].sum() + shared["device"].sum()),
        "own": shared["own"](number),
    }


def fails(shared, number):
    if number == 2:
        raise sidebayes.FitError("lost", {"mean": np.zeros(2)})
    return number


def returns(shared, number):
    return number


@pytest.fixture(scope="module", autouse=True)
def _workers_use_the_cache_of_the_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(jax.config.jax_compilation_cache_dir))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "x.npy"
    np.save(path, np.arange(12.0).reshape(6, 2))
    return {
        "mapped": np.load(path, mmap_mode="r")[1:3],
        "large": np.ones((300, 1000)),
        "device": jax.numpy.arange(3.0),
        "own": lambda n: n + 1,
    }


def run(shared, n_jobs=None, function=described):
    return list(run_tasks(function, TASKS, shared, n_jobs=n_jobs, title="tried"))


def test_workers_get_maps_and_numbers_and_their_warnings_arrive(shared):
    with pytest.warns(UserWarning, match="number"):
        here = run(shared)
    with pytest.warns(UserWarning, match="number"):
        away = run(shared, 2)
    for one, two in zip(here, away, strict=True):
        for key in ("number", "sum", "own"):
            assert one[key] == two[key]
        assert two["process"] != os.getpid() == one["process"]
        assert two["threads"] == "1"
        assert two["mapped"] is np.memmap
        assert two["device"] is np.ndarray
        assert two["shared"]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_an_error_names_the_task(n_jobs):
    with pytest.raises(sidebayes.FitError, match="lost") as caught:
        run(None, n_jobs, fails)
    assert caught.value.__notes__ == ["tried: number 2"]
    assert set(caught.value.params) == {"mean"}


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("shared", "what"),
    [
        ([lambda number: (LOCK, number), lambda number: number], "the function '<lambda>' uses"),
        ([lambda number: number, LOCK], "the arguments hold"),
    ],
)
def test_what_cannot_be_sent_is_named(shared, what):
    with pytest.raises(TypeError, match=f"{what} what cannot be sent: .*lock.*Leave n_jobs"):
        run(shared, 2, returns)


def test_results_that_cannot_be_sent_are_told_from_arguments():
    with pytest.raises(
        TypeError, match="the results hold what cannot be sent: .*lock.*Leave n_jobs"
    ):
        run(None, 2, lambda shared, number: threading.Lock())


@pytest.mark.parametrize("wrong", [0, 1.5, "all", 10**6])
def test_numbers_of_jobs_are_checked(wrong):
    with pytest.raises(ValueError, match="n_jobs"):
        run(None, wrong, fails)


def test_processes_are_not_forked():
    with joblib.parallel_config("threading", n_jobs=2):
        assert run(None, None, returns) == [0, 1, 2, 3]
    with (
        joblib.parallel_config("multiprocessing", n_jobs=2),
        pytest.raises(ValueError, match='backend "multiprocessing" forks .* cannot be used; take'),
    ):
        run(None, None, returns)


def test_backends_may_return_all_at_once():
    """As that of Ray does."""

    class AtOnce(ThreadingBackend):
        supports_return_generator = False

    joblib.register_parallel_backend("at once", AtOnce)
    with joblib.parallel_config("at once", n_jobs=2):
        assert run(None, None, returns) == [0, 1, 2, 3]


def normal(x=None, num_points=None):
    """A model of the user, which other processes cannot import."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("points", num_points if x is None else len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).expand([1]).to_event(1), obs=x)


class Made:
    """A model of the user as an object, of which there is nothing to import."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        numpyro.sample("mean", dist.Normal(0.0, self.scale))


@pytest.mark.parametrize("own", [lambda x: LARGE.sum(), Made(2.0), partial(Made(3.0), x=1)])
def test_tasks_share_the_models_of_the_user(own):
    """A program is compiled for each object, so for each task if every task made its own."""

    def unpickled(number):
        return tasks._unpacked(tasks._packed(Task(f"number {number}", {"model": own})))

    first, second = (unpickled(number).given["model"] for number in range(2))
    assert first is not own
    assert freeze(first) == freeze(second)


def test_results_of_workers_share_the_models_of_the_user(monkeypatch):
    """Predictions by each of many fits would compile programs for each of them."""
    monkeypatch.setenv("NPROC", "1")  # which a worker sets
    common = tasks._packed((lambda shared, number: shared, lambda x: LARGE.sum(), "tried"))
    first, second = (
        tasks._work(("elsewhere", 0), tasks._packed(one), *common) for one in TASKS[:2]
    )
    monkeypatch.setattr(tasks, "_made", WeakValueDictionary())  # as in the process of the user
    first, second = (pickle.loads(cloudpickle.dumps(found)) for found in (first, second))
    assert tasks._told(first)[1] is tasks._told(second)[1]


def test_changed_models_are_made_anew():
    scale = [1.0]
    first, second = (tasks._unpacked(tasks._packed(lambda: scale[0])) for scale[0] in (2.0, 3.0))
    assert (first(), second()) == (2.0, 3.0)


EACH = {f"{k} clusters": {"num_clusters": k} for k in (2, 3)}


def test_fits_do_not_depend_on_who_makes_them(tmp_path):
    """Fits and folds, in one process and in two."""
    common = {"method": "gmm", "engine": sidebayes.EM(num_restarts=2), "n_jobs": None}
    common |= {"covariance": "diagonal", "num_clusters": 2}
    each = {"first": {}, "second": {"seed": 1}}
    fits = sidebayes.fit_each(each, IRIS.x, **common)
    with joblib.parallel_config("loky", n_jobs=2):
        others = sidebayes.fit_each(each, IRIS.x, folder=tmp_path, **common)
        folds = others["second"].kfold(2)
    for name, one in fits.items():
        assert one.tree["posterior"].equals(others[name].tree["posterior"])
    expected = fits["second"].kfold(2)
    np.testing.assert_array_equal(folds.elpd_i, expected.elpd_i)

    stored = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = sidebayes.fit_each(each, IRIS.x, folder=tmp_path, **common)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stored
    assert again["first"].tree["posterior"].equals(fits["first"].tree["posterior"])
    with pytest.raises(ValueError, match="holds a fit of other data") as caught:
        sidebayes.fit_each(each, IRIS.x, folder=tmp_path, seed=1, **common)
    assert caught.value.__notes__ == ["fits: first"]

    told = sidebayes.fit_each(each, IRIS.x, folder=tmp_path, truth=IRIS.labels, **common)["first"]
    np.testing.assert_array_equal(told.run.truth, IRIS.labels)
    np.testing.assert_array_equal(told.tree["observed_data"]["truth"], IRIS.labels)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stored
    with pytest.raises(
        ValueError, match="have the names x0, x1, x2 and x3, and now they have a, b,"
    ):
        sidebayes.fit_each(each, IRIS.x, folder=tmp_path, feature_names=list("abcd"), **common)


def test_a_stored_fit_is_the_same_with_defaults_given_or_left_out(tmp_path):
    given = {
        "folder": tmp_path,
        "method": "gmm",
        "engine": sidebayes.EM(num_restarts=1, max_steps=2),
        "num_clusters": 2,
    }
    each = {"one": {"covariance": "diagonal"}}
    first = sidebayes.fit_each(each, IRIS.x, **given)["one"]
    defaults = {"seed": 0, "dtype": "float64", "init": None, "concentration": 1}
    again = sidebayes.fit_each(each, IRIS.x, **defaults, **given)["one"]
    assert again.tree["posterior"].equals(first.tree["posterior"])
    # files of earlier versions tell defaults that were given from those that were not
    path = tmp_path / "one.nc"
    asked = {"engine": given["engine"], "num_clusters": 2}
    arguments = {**defaults, **asked, **each["one"]}
    run = many._run("gmm", (IRIS.x,), arguments)
    again.tree.attrs[many._STAMP] = many._stamp("gmm", (IRIS.x,), arguments, run, as_given=True)
    again.save(path)
    with pytest.raises(ValueError, match="holds a fit of other data"):
        sidebayes.fit_each(each, IRIS.x, **given)
    sidebayes.fit_each(each, IRIS.x, **defaults, **given)
    del again.tree.attrs[many._STAMP]
    again.save(path)
    with pytest.raises(ValueError, match=r"one\.nc was not written by fit_each"):
        sidebayes.fit_each(each, IRIS.x, **given)
    for damaged in (b"", b"hello", path.read_bytes()[:-200]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"one\.nc is damaged, or no fit; remove it, and this"):
            sidebayes.fit_each(each, IRIS.x, **given)


def test_ranks_do_not_depend_on_who_ranks():
    """With a model that lies in no module that workers could import."""
    given = {"num_points": 8, "num_simulations": 10, "progress": False}
    engine = sidebayes.Laplace(num_draws=100)
    one = sidebayes.calibrate(normal, engine, **given)
    two = sidebayes.calibrate(normal, engine, n_jobs=2, **given)
    assert one.ranks.equals(two.ranks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
@pytest.mark.parametrize("choose", ["components", "dimensions"])
def test_choices_do_not_depend_on_who_fits(choose):
    if choose == "components":
        choice = partial(sidebayes.select_components, "gmm", IRIS.x, num_clusters=[1, 2, 3])
    else:
        choice = partial(sidebayes.select_dimensions, IRIS.x[50:80], num_dimensions=[1, 2])
    one, two = choice(), choice(n_jobs=2)
    pd.testing.assert_frame_equal(one.path, two.path, check_exact=True)
    assert one.fit.tree["posterior"].equals(two.fit.tree["posterior"])


def test_labelings_are_refitted_by_workers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3))

    def inferred(groups):
        means = np.stack([x[groups == g].mean(axis=0) for g in range(groups.max() + 1)])
        return 0.5 * x + 0.5 * means[groups]

    given = {"mode": "refit", "num_permutations": 9, "statistics": ["goodall"]}
    one = group_test(inferred, [0, 1] * 4, **given)
    two = group_test(inferred, [0, 1] * 4, n_jobs=2, **given)
    assert one.distribution.equals(two.distribution)


def test_a_cluster_of_dask_does_the_work(shared):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        warnings.simplefilter("ignore")
        away = run(shared)
        fits = sidebayes.fit_each(EACH, IRIS.x, method="gmm", engine=sidebayes.EM(num_restarts=2))
    assert {one["process"] for one in away}.isdisjoint({os.getpid()})
    assert {one["mapped"] for one in away} == {np.memmap}
    expected = sidebayes.fit("gmm", IRIS.x, engine=sidebayes.EM(num_restarts=2), num_clusters=2)
    assert expected.tree["posterior"].equals(fits["2 clusters"].tree["posterior"])


@pytest.mark.parametrize(
    ("each", "message"),
    [
        ([], "each = "),
        ({}, "each is empty"),
        ({"a": {"engine": "em"}}, "a has no method"),
        ({"a/b": {"method": "gmm"}}, "cannot name a file"),
        ({1: {"method": "gmm"}, "1": {"method": "gmm"}}, "1 and '1' name one fit"),
        ({"a": {"method": "gmm", "progress": True}}, r"each\['a'\] has progress, which is of all"),
    ],
)
def test_what_cannot_be_fitted_many_times_is_refused(each, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        sidebayes.fit_each(each, IRIS.x, num_clusters=2, folder=tmp_path)


def test_a_folder_of_fits_has_to_be_one(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="file is a file; name a folder in its place"):
            sidebayes.fit_each({"a": {"method": "gmm"}}, folder=folder)
    with pytest.raises(TypeError, match="folder = 3 is no path"):
        sidebayes.fit_each({"a": {"method": "gmm"}}, folder=3)


def test_what_is_not_wanted_is_given_up():
    found = run_tasks(lambda shared, number: number, TASKS, n_jobs=2, title="tried")
    assert next(found) == 0
    found.close()


@pytest.mark.parametrize("bad", [0, "2", 1.5, True])
def test_what_is_no_number_of_workers_is_refused_alike(bad):
    with pytest.raises(
        ValueError, match=rf"n_jobs = {bad!r}; give the number of workers, -1 for one"
    ):
        list(run_tasks(print, [], n_jobs=bad, title="nothing"))


def priors(x, sizes=(1.0, 2.0), flag=False, count=0, rate=1.0, prior=UNIT, more=None):
    """Only its signature matters."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"sizes": [1, 2], "flag": 0, "count": 0.0, "rate": jnp.asarray(1)}),
        ({}, {"sizes": np.array([1.0, 2.0]), "prior": dist.Normal(0, 1)}),
        ({"sizes": [2, 3]}, {"sizes": (2.0, 3.0)}),
        ({"prior": dist.Normal(0, 2)}, {"prior": dist.Normal(0.0, jnp.asarray(2.0))}),
    ],
)
def test_equal_numbers_of_other_kinds_are_the_same_option(one, other):
    assert same(stated_options(priors, one), stated_options(priors, other))


@pytest.mark.parametrize(
    "given",
    [
        {"sizes": [1, 2, 3]},
        {"flag": 2},
        {"count": np.nan},
        {"rate": np.inf},
        {"prior": dist.Normal(0.0, 2.0)},
        {"prior": dist.Cauchy(0.0, 1.0)},
        {"more": [[1], [1, 2]]},
        {"more": 0},
    ],
)
def test_other_numbers_are_other_options(given):
    assert set(stated_options(priors, given)) == set(given)
