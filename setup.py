"""Build of the compiled modules.

``QCORE_DEBUG=1`` keeps bounds checks and the symbols for a debugger, and writes annotated HTML;
``QCORE_TRACE=1`` compiles line tracing for coverage. ``QCORE_SANITIZE=1`` builds with gcc's checks of
addresses and undefined behaviour, for ``make sanitize``. ``QCORE_BUILD_ONLY=qcore.structs`` builds the
modules under one prefix, so that a part can be worked on alone.
"""

from __future__ import annotations

import multiprocessing
import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# Listed by hand: with a glob, an sdist that lacks its .pyx files would build a
# pure wheel without a word.
MODULES = [
    "qcore.structs.slab",
    "qcore.structs.siphash",
    "qcore.structs.skiplist",
    "qcore.structs.delayheap",
    "qcore.structs.tokens",
    "qcore.structs.idtable",
    "qcore.wire.scan",
    "qcore.wire.writer",
    "qcore.wire.packing",
    "qcore.wire.plain",
    "qcore.wire.jsontext",
    "qcore.store.changelog",
    "qcore.store.native",
    "qcore.store.wal",
    "qcore.engine.ids",
    "qcore.engine.job",
    "qcore.engine.bucket",
    "qcore.engine.lanes",
    "qcore.engine.listing",
    "qcore.engine.meter",
    "qcore.engine.journal",
    "qcore.engine.queue",
    "qcore.engine.table",
    "qcore.engine.logs",
    "qcore.engine.keys",
    "qcore.engine.capacity",
    "qcore.engine.transitions",
    "qcore.engine.losses",
    "qcore.engine.flows",
    "qcore.engine.workers",
    "qcore.engine.schedules",
    "qcore.engine.idle",
    "qcore.engine.queries",
    "qcore.engine.engine",
    "qcore.broker.record",
    "qcore.broker.rows",
    "qcore.broker.jobview",
    "qcore.broker.events",
    "qcore.broker.core",
    "qcore.broker.session",
    "qcore.server.connection",
    "qcore.server.traffic",
    "qclient.delivery",
]

DEBUG = os.environ.get("QCORE_DEBUG") == "1"
TRACE = os.environ.get("QCORE_TRACE") == "1"
SANITIZE = os.environ.get("QCORE_SANITIZE") == "1"
ONLY = os.environ.get("QCORE_BUILD_ONLY", "")

directives: dict[str, object] = {"language_level": 3, "binding": True, "embedsignature": True}
macros: list[tuple[str, str | None]] = []
if TRACE:
    directives["linetrace"] = True
    macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]
if not (DEBUG or TRACE):
    directives.update(boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True)

# The own flags of Python hold -g: a wheel would have 14 MB, not 3, and a build take a third longer.
compile_args = [] if os.name == "nt" else ["-O2", "-g" if DEBUG else "-g0", "-fno-strict-aliasing"]
link_args: list[str] = []
if SANITIZE:
    # Fast to compile: the run is shorter than the build.
    compile_args = ["-O0", "-g1", "-fno-strict-aliasing", "-fno-omit-frame-pointer"]
    link_args = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    compile_args += link_args

extensions = [
    Extension(
        name,
        [name.replace(".", "/") + ".pyx"],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for name in MODULES
    if name.startswith(ONLY)
]

# A change of debug or trace leaves stale C files behind unless both steps are forced.
FORCE = DEBUG or TRACE or os.environ.get("QCORE_FORCE") == "1"

# Processes that are spawned would run this file again.
CYTHON_JOBS = os.cpu_count() or 1 if multiprocessing.get_start_method() == "fork" else 0

setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives=directives,
        annotate=DEBUG,
        force=FORCE,
        show_all_warnings=False,
        nthreads=CYTHON_JOBS,
    ),
    options={"build_ext": {"force": FORCE, "parallel": os.cpu_count() or 1}},
)
