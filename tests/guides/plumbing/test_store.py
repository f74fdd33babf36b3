"""Programs on disk: found in another process, never mistaken, never in the way."""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import SideBayesWarning
from sidebayes.guides.engines.plumbing import programs, store
from sidebayes.guides.engines.plumbing.programs import counted_compilations

import sidebayes
from sidebayes.common import folders
from tests.support.programs import entries, forget, run, twice

X = np.random.default_rng(0).normal(size=(20, 2)) + 4 * np.repeat([[0.0], [1.0]], 10, axis=0)
ENGINE = sidebayes.EM(num_restarts=2, max_steps=30)
HEADER = len(b"sidebayes program 2\n")


def fit_all():
    """Fit a card and a model of the user's own; used in other processes, too."""

    def own(x):
        mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2, 2]).to_event(2))
        component = dist.Normal(mean, 1.0).to_event(1)
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=np.full(2, 0.5)), component)
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", mixture, obs=x)

    settings = dict(jax.config.values)
    with counted_compilations() as names:
        fits = [
            sidebayes.fit("gmm", X, num_clusters=2, engine=ENGINE, covariance="spherical"),
            sidebayes.fit(own, X, engine=ENGINE),
        ]
    assert dict(jax.config.values) == settings
    return {"names": names, "means": [fit.params["mean"].tolist() for fit in fits]}


def elsewhere(code, **variables):
    """Start a process with a clean environment; returns what it prints, as JSON."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("SIDEBAYES_", "JAX_", "XDG_"))}
    quick = "JAX_DISABLE_MOST_OPTIMIZATIONS"  # the same here and there, so that programs are found
    kept[quick] = str(int(jax.config.read("jax_disable_most_optimizations")))
    code = (
        f"import json; from tests.guides.plumbing import test_store as t; print(json.dumps({code}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept | variables,
        cwd=Path(__file__).resolve().parents[3],
    )


def answer(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


def test_a_second_process_compiles_nothing_without_being_asked(unopened, tmp_path):
    first = fit_all()
    assert first["names"].count("em") == 2
    second = answer(elsewhere("t.fit_all()", XDG_CACHE_HOME=str(tmp_path)))
    assert second == {"names": [], "means": first["means"]}
    for path, mode in [
        (unopened, 0o700),
        (unopened / "programs", 0o700),
        (unopened / "programs/secret", 0o600),
    ]:
        assert stat.S_IMODE(path.stat().st_mode) == mode


def run_many(folder):
    store.use_program_store(Path(folder))
    return [run(functools.partial(jnp.multiply, np.float32(n)), 3.0) for n in range(12)]


def test_two_processes_at_once(tmp_path):
    code = f"t.run_many({str(tmp_path / 'programs')!r})"
    both = [elsewhere(code), elsewhere(code)]
    for process in both:
        assert [value for value, _ in answer(process)] == [3.0 * n for n in range(12)]
    assert sorted(path.suffix for path in (tmp_path / "programs").iterdir()) == [
        "",
        *[".program"] * 12,
    ]
    forget()
    assert run_many(tmp_path / "programs") == [(3.0 * n, False) for n in range(12)]
    store.use_program_store(None)


def test_threads_share_the_store(folder, monkeypatch):
    """More programs than memory holds, so that threads also throw them out for each other."""

    class Slow(OrderedDict):
        def __contains__(self, key):
            found = super().__contains__(key)
            time.sleep(0.001)  # others may run
            return found

    monkeypatch.setattr(programs, "_programs", Slow())
    monkeypatch.setattr(programs, "_MOST_PROGRAMS", 1)
    found = {}

    def work(start):
        numbers = [(start + n // 3) % 8 for n in range(24)]
        found[start] = [run(functools.partial(jnp.add, np.float32(n)), 1.0)[0] - n for n in numbers]

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {start: [1.0] * 24 for start in range(4)}


def test_threads_leave_the_checks_of_distributions_on(folder):
    began = threading.Event()

    def slow(seconds, a):
        began.set()
        time.sleep(seconds)
        return a

    first, second = (
        threading.Thread(target=run, args=(functools.partial(slow, seconds), 1.0))
        for seconds in (0.05, 0.2)
    )
    first.start()
    began.wait()
    second.start()
    first.join()
    second.join()
    with pytest.raises(ValueError, match="invalid"):
        dist.Normal(0.0, -1.0)


def product(a):
    return jnp.linalg.cholesky(jnp.eye(3) + a) @ jnp.full((3, 3), a)


@pytest.mark.parametrize("from_disk", [True, False])
def test_what_jax_had_cached_is_not_kept(folder, jax_cache, from_disk):
    """It would be written without its machine code, and fail when it runs."""
    store.use_program_store(None)
    expected, _ = run(product, 1.0)
    assert list(jax_cache.iterdir())
    store.use_program_store(folder)
    for _ in range(2):
        programs._programs.clear()
        if from_disk:
            jax.clear_caches()
        assert run(product, 1.0) == (expected, True)
    assert not entries(folder)


def test_what_jax_caches_as_it_is_compiled_is_kept(folder, jax_cache):
    expected, _ = run(product, 2.0)
    assert list(jax_cache.iterdir())
    forget()
    assert run(product, 2.0) == (expected, False)


def test_no_flipped_byte_is_ever_opened(folder, monkeypatch):
    expected, _ = run(twice, 1.0)
    (path,) = entries(folder)
    content = path.read_bytes()
    reader = store.current_store()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_load", lambda *_: pytest.fail("opened"))
        regions = [*range(HEADER + 40), *range(HEADER + 40, len(content), 97), len(content) - 1]
        for place in regions:
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            assert reader.fetch(path.stem) is None
    forget()
    assert run(twice, 1.0) == (expected, True)
    forget()
    assert run(twice, 1.0) == (expected, False)


@pytest.mark.parametrize("keep", [0, 1, HEADER, HEADER + 20, HEADER + 32, 1000, -1])
def test_what_is_cut_off_is_compiled_anew(folder, keep):
    expected, _ = run(twice, 1.0)
    (path,) = entries(folder)
    path.write_bytes(path.read_bytes()[:keep])
    forget()
    assert run(twice, 1.0) == (expected, True)
    forget()
    assert run(twice, 1.0) == (expected, False)


def test_an_entry_under_the_name_of_another_is_not_opened(folder):
    expected = [run(twice, 1.0)[0], run(jnp.cos, 1.0)[0]]
    one, other = entries(folder)
    content = one.read_bytes()
    other.replace(one)
    other.write_bytes(content)
    forget()
    assert [run(twice, 1.0), run(jnp.cos, 1.0)] == [(value, True) for value in expected]


def test_entries_under_another_secret_are_compiled_anew(folder):
    expected, _ = run(twice, 1.0)
    for secret in (bytes(32), b"short", b""):
        (folder / "secret").write_bytes(secret)
        store.use_program_store(folder)
        forget()
        assert run(twice, 1.0) == (expected, True)
        store.use_program_store(folder)
        forget()
        assert run(twice, 1.0) == (expected, False)
    assert len((folder / "secret").read_bytes()) == 32
    assert (folder / "secret").read_bytes() != bytes(32)


@pytest.mark.parametrize("place", [".", "programs"])
def test_a_folder_that_others_can_write_is_left_alone(unopened, place):
    expected, _ = run(twice, 1.0)
    before = entries(unopened / "programs")
    (unopened / place).chmod(0o770)
    forget()
    store._is_open = False
    store._store = None
    with pytest.warns(SideBayesWarning, match=f"mode 770.*chmod 700 {unopened / place}'"):
        assert run(twice, 1.0) == (expected, True)
    assert run(jnp.sin, 1.0)[1]  # one warning is enough: a second would be an error here
    assert entries(unopened / "programs") == before
    assert stat.S_IMODE((unopened / place).stat().st_mode) == 0o770


def test_a_folder_of_another_user_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(SideBayesWarning, match="belongs to another user.*SIDEBAYES_CACHE"):
        store.use_program_store(tmp_path)
    assert store.current_store() is None
    assert not list(tmp_path.iterdir())


def test_off_writes_nothing(unopened, monkeypatch):
    monkeypatch.setenv("SIDEBAYES_CACHE", "off")
    assert run(twice, 1.0)[1]
    assert sidebayes.cache.use_compilation_cache() is None
    assert not unopened.exists()


def test_where_the_cache_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SIDEBAYES_CACHE", str(tmp_path / "own"))
    assert folders.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SIDEBAYES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folders.cache_folder() == tmp_path / "sidebayes"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the standard
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folders.cache_folder() == tmp_path / "home" / ".cache" / "sidebayes"


def test_without_a_home_nothing_is_kept(unopened, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert run(twice, 1.0)[1]
    assert store.current_store() is None


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "place", [(store.os, "replace"), (store.tempfile, "mkstemp"), (store.os, "fdopen")]
)
def test_a_full_disk_is_no_error(folder, monkeypatch, place):
    monkeypatch.setattr(*place, full)
    assert run(twice, 1.0)[1]
    assert [path.name for path in folder.iterdir()] == ["secret"]


@pytest.mark.parametrize("place", [(store.tempfile, "mkstemp"), (Path, "mkdir")])
def test_a_folder_that_cannot_be_written_is_no_error(unopened, monkeypatch, place):
    monkeypatch.setattr(*place, full)
    assert run(twice, 1.0)[1]
    assert store.current_store() is None


def test_a_file_in_place_of_the_folder_is_no_error(unopened):
    unopened.write_text("mine")
    assert run(twice, 1.0)[1]
    assert unopened.read_text() == "mine"


@pytest.mark.parametrize("bound", ["files", "bytes"])
def test_those_longest_out_of_use_make_room(folder, monkeypatch, bound):
    models = [functools.partial(jnp.multiply, np.float32(n)) for n in range(3)]
    for age, model in enumerate(models[:2]):
        known = entries(folder)
        run(model, 1.0)
        (path,) = set(entries(folder)) - set(known)
        os.utime(path, (1e9 + age, 1e9 + age))
    first, second = sorted(entries(folder), key=lambda path: path.stat().st_mtime)
    forget()
    assert not run(models[0], 1.0)[1]  # in use again
    size = first.stat().st_size
    monkeypatch.setattr(
        store, *{"files": ("_MOST_FILES", 2), "bytes": ("_MOST_BYTES", 2.5 * size)}[bound]
    )
    run(models[2], 1.0)
    assert first.exists()
    assert not second.exists()
    assert len(entries(folder)) == 2


def test_files_of_others_stay(folder, monkeypatch):
    foreign = [folder / "notes.program", folder / f"{'a' * 64}.program", folder / "notes.partial"]
    fresh, stale = folder / "sidebayes-1.partial", folder / "sidebayes-2.partial"
    for path in (*foreign, fresh, stale):
        path.write_text("mine")
    for path in (*foreign, stale):
        os.utime(path, (time.time() - 4000,) * 2)
    os.utime(foreign[0], (time.time() + 4000,) * 2)
    monkeypatch.setattr(store, "_MOST_FILES", 1)
    run(twice, 1.0)
    assert {*foreign, fresh} < set(folder.iterdir())
    assert len(entries(folder)) == 3  # what is not ours does not count
    assert not stale.exists()
