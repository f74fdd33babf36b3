"""Programs on disk: found in another process, never mistaken, never in the way."""

import subprocess
import sys

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines import programs, store

import sidebayes

X = np.random.default_rng(0).normal(size=(20, 2)) + 4 * np.repeat([[0.0], [1.0]], 10, axis=0)
LINKS = sidebayes.Links.must_link([(0, 1)]) + sidebayes.Links.cannot_link([(2, 15), (3, 16)])
ENGINE = sidebayes.EM(num_restarts=2, max_steps=30)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_folder", tmp_path)
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    return tmp_path


def fitted():
    options = {"reading": "relation", "flip_rate": dist.Beta(1.0, 4.0)}
    return sidebayes.fit("ppc", X, LINKS.with_strength(2), num_clusters=2, engine=ENGINE, **options)


def forget():
    programs._programs.clear()


def test_what_is_kept_gives_the_same_answer_without_tracing(folder, monkeypatch):
    first = fitted()
    assert list(folder.glob("*.program"))
    forget()
    monkeypatch.setattr(store, "compile_and_keep", lambda *_: pytest.fail("compiled again"))
    np.testing.assert_array_equal(first.params["mean"], fitted().params["mean"])


def test_programs_pass_from_process_to_process(folder):
    code = (
        "import sys; from pathlib import Path; from sidebayes.guides.engines import store;"
        "store.use_program_store(Path(sys.argv[1]));"
        "from tests.guides.test_store import fitted; print(fitted().params['mean'].tolist())"
    )

    def elsewhere():
        command = [sys.executable, "-c", code, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = elsewhere()
    kept = {path: path.read_bytes() for path in folder.glob("*.program")}
    assert kept
    assert elsewhere() == first
    assert {path: path.read_bytes() for path in folder.glob("*.program")} == kept


def test_a_damaged_file_is_compiled_anew(folder):
    first = fitted()
    for path in folder.glob("*.program"):
        path.write_bytes(path.read_bytes()[:1000])
    forget()
    np.testing.assert_array_equal(first.params["mean"], fitted().params["mean"])
    assert all(path.stat().st_size > 1000 for path in folder.glob("*.program"))


def test_what_jax_had_cached_is_compiled_so_that_it_can_be_kept(folder, monkeypatch):
    cached = jax.config.jax_enable_compilation_cache
    monkeypatch.setattr(store, "_folder", None)
    first = fitted()  # JAX's own cache has it now
    forget()
    monkeypatch.setattr(store, "_folder", folder)
    fitted()
    forget()
    np.testing.assert_array_equal(first.params["mean"], fitted().params["mean"])
    assert jax.config.jax_enable_compilation_cache == cached


def test_code_of_users_is_never_kept(folder):
    def own(x):
        mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2, 2]).to_event(2))
        component = dist.Normal(mean, 1.0).to_event(1)
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=np.full(2, 0.5)), component)
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", mixture, obs=x)

    sidebayes.fit(own, X, engine=ENGINE)
    assert not list(folder.glob("*.program"))


def test_the_oldest_make_room(folder, monkeypatch):
    monkeypatch.setattr(store, "_MOST_FILES", 1)
    fitted()
    assert len(list(folder.glob("*.program"))) == 1
