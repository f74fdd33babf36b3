"""Fits in threads at the same time, and in processes that were forked."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.primitives import _PYRO_STACK

import sidebayes as sb
from tests.support.draws import at_one

IRIS = sb.load_dataset("iris")


def slow(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    time.sleep(0.02)  # all threads meet between two sites
    numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def job(number):
    x = IRIS.x[number // 4 :]
    if number % 2:
        engine = sb.EM(num_restarts=2, max_steps=10)
        fit = sb.fit("gmm", x, num_clusters=2, seed=number, engine=engine, progress=False)
        return fit.params["mean"], fit.predict_proba(x), fit.log_prob(x)
    assert sb.debug(slow, x).ok
    fit = sb.fit(slow, x, engine=sb.MAP(num_restarts=1), seed=number, progress=False)
    return fit.params["mean"], fit.log_prob(x)


def test_eight_threads_find_what_one_finds():
    together = threading.Barrier(8)

    def at_once(number):
        together.wait()
        return job(number)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(at_once, range(8)))
    assert not _PYRO_STACK
    for number, results in enumerate(found):
        for one, alone in zip(results, job(number), strict=True):
            np.testing.assert_array_equal(one, alone)


def ask(queue, what, fit):
    try:
        what(fit)
        queue.put("nothing was refused")
    except sb.FitError as error:
        queue.put(str(error))


FORKED = {
    "fit": lambda fit: sb.fit("gmm", IRIS.x[:50], num_clusters=2, progress=False),
    "predict": lambda fit: fit.predict_proba(IRIS.x[:7]),
    "debug": lambda fit: sb.debug(slow, IRIS.x),
}


@pytest.mark.filterwarnings("ignore:.*fork.*")  # Python's and JAX's own, which do not stop anybody
@pytest.mark.parametrize("what", FORKED)
def test_a_forked_process_is_refused_in_place_of_waiting_for_ever(what):
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    known = {"weights": [0.5, 0.5], "mean": IRIS.x[[0, 99]], "covariance": [np.eye(4)] * 2}
    fit = sb.fit("gmm", IRIS.x, num_clusters=2, engine=at_one(known), progress=False)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=ask, args=(queue, FORKED[what], fit))
    child.start()
    try:
        assert "get_context('spawn')" in queue.get(timeout=60)
    finally:
        child.kill()
        child.join()
