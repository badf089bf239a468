"""When Triton compiles, what, and how often; and how to have everything compiled at once, before it is needed.

Triton compiles a kernel anew for each *variant*: each set of constants, of argument types, and of what it finds worth
knowing of an argument: that an integer is 1, or that an integer or an address is a multiple of 16. A step that needs a
variant which no step has needed before waits for the compiler, and everybody's answers with it. So `kernel` has the
arguments named that vary from step to step: nothing is found worth knowing of these, and what is left is the same
for every step of a model.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton

KERNELS: list[Any] = []
"""Every kernel that `kernel` made."""


def kernel(varies: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """`triton.jit`, for kernels that are started from Python.

    `varies` names the arguments whose size or alignment differs between the steps of one model. The others (strides,
    sizes, whole tensors) must be alike in every step, or the kernel is compiled again.
    """

    def decorate(function: Callable[..., None]) -> Any:
        made = triton.jit(function, do_not_specialize=varies)
        KERNELS.append(made)
        return made

    return decorate


class Compilations:
    """Counts the variants that this process had compiled, or loaded from Triton's cache on disk.

    One object a process, `compilations`; any thread may compile and ask.
    """

    def __init__(self) -> None:
        self.variants = 0
        """Made ready so far, by the compiler or from the cache on disk."""
        self.compiled = 0
        """Of these, those that the compiler made: each takes from a tenth of a second to some seconds."""
        self._tell: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._watching = False
        self._mark = 0

    def watch(self) -> bool:
        """Begins to count, once. False where this Triton has no such hooks, or interprets: the counts stay 0."""
        with self._lock:
            if self._watching:
                return True
            try:
                runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
                before, after, heard = runtime.jit_cache_hook, runtime.jit_post_compile_hook, compilation.listener
            except AttributeError:
                return False
            self._watching = True
        runtime.jit_cache_hook = _chained(before, self._starts)
        runtime.jit_post_compile_hook = _chained(after, self._ends)
        compilation.listener = _chained(heard, self._hears)
        return True

    def mark(self) -> None:
        """From here on, `since_mark` counts: the engine says that it is ready."""
        self._mark = self.variants

    @property
    def since_mark(self) -> int:
        """Variants made ready since the mark: steps that waited. 0 is what is wanted."""
        return self.variants - self._mark

    @contextlib.contextmanager
    def telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        """`tell` gets the name of each kernel that is about to be compiled, from whichever thread compiles it."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None

    def _starts(self, **what: Any) -> None:
        tell = self._tell
        if tell is not None:
            tell(what["fn"].name.removeprefix("_").rpartition(".")[2])

    def _ends(self, **_: Any) -> None:
        with self._lock:
            self.variants += 1

    def _hears(self, *, cache_hit: bool = False, **_: Any) -> None:
        with self._lock:
            self.compiled += not cache_hit


def _chained(before: Callable[..., Any] | None, ours: Callable[..., None]) -> Callable[..., Any]:
    """Both hooks; what somebody else's says stays what Triton hears."""

    def hook(**what: Any) -> Any:
        ours(**what)
        return before(**what) if before is not None else None

    return hook


compilations = Compilations()


def compile_together(
    run: Callable[[], None], tell: Callable[[str, int, int], None] | None = None, threads: int | None = None
) -> None:
    """Calls `run` with kernels that are compiled instead of started, several at a time; returns when all are done.

    `run` does what later steps do, on tensors of the same types, sizes and alignment; what kernels would have written
    is undefined. `tell` gets the kernel that is waited for, how many are done, and of how many. `threads`: None is one
    a core, 16 at most. Where kernels are interpreted there is nothing to compile, and `run` is not called. Raises what
    the compiler raises.
    """
    if not all(isinstance(made, triton.JITFunction) for made in KERNELS):
        return
    waiting: dict[int, tuple[str, Any]] = {}

    def instead_of(made: Any) -> Callable[..., None]:
        def compile_only(*args: Any, warmup: bool, **options: Any) -> None:
            variant = type(made).run(made, *args, warmup=True, **options)
            waiting.setdefault(id(variant), (made.__name__, variant))

        return compile_only

    with contextlib.ExitStack() as stack:
        mode = getattr(triton, "AsyncCompileMode", None)  # without it, one after the other
        if mode is not None:
            pool = stack.enter_context(ThreadPoolExecutor(threads or min(16, _processors())))
            stack.enter_context(mode(pool))
        for made in KERNELS:
            made.run = instead_of(made)
            stack.callback(delattr, made, "run")
        run()
        for done, (name, variant) in enumerate(waiting.values()):
            if tell is not None:
                tell(name, done, len(waiting))
            ready = variant.result() if hasattr(variant, "result") else variant
            if triton.runtime.driver.active.get_current_target().backend == "cuda":
                _ = ready.run  # Triton brings it to the GPU when this is first asked for


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
