"""The three commands: `pagechat` (the app), `pagechat-daemon` and `pagechat-bench`.

Only options and exit codes live here; what a command does is imported when it runs, so that `--help` answers at
once. Errors become one line on stderr here and nowhere else.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

import typer
import typer.core

from pagechat import __version__
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.commands.http_options import (
    CurveKeys,
    Drain,
    Http,
    HttpLog,
    Keys,
    MaxQueuedRequests,
    MaxQueuedTokens,
    NoHttp,
    Tcp,
    TlsCert,
    TlsKey,
    VllmMetricNames,
    http_plan,
    tcp_plan,
)
from pagechat.commands.options import (
    BlockSize,
    CpuKernels,
    Device,
    Dtype,
    KvMemory,
    MaxContext,
    MaxRunning,
    Model,
    NumBlocks,
    Policy,
    PrefixCache,
    RunDir,
    StepTokens,
    SwapMemory,
    Threads,
    WeightsDtype,
    as_arguments,
    engine_config,
)

_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pagechat {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


# -- pagechat-daemon -----------------------------------------------------------------------------


class _DefaultsToServe(typer.core.TyperGroup):
    """`pagechat-daemon --model X` is `pagechat-daemon serve --model X`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


daemon = typer.Typer(cls=_DefaultsToServe, **_PLAIN)


@daemon.callback()
def _daemon(version: Version = False) -> None:
    """Serve a language model from a paged KV cache, and talk to the daemon that does.

    Exit codes: 0 done; 1 it failed (stderr says why in one line); 2 wrong usage; 3 no daemon runs;
    130 interrupted; 141 the reader of stdout has gone.
    Options also come from PAGECHAT_* variables and from config.toml; what stands on the command line goes first.
    """


def _read_config(ctx: typer.Context, path: Path | None) -> None:
    """Eager, so that the other options find the defaults of this file."""
    if path is None:
        return
    if not path.is_file():
        raise CommandError(f"there is no file {path}", exits.USAGE)
    ctx.default_map = _default_map(daemon, _complaining("pagechat-daemon"), path)["serve"]


@daemon.command()
def serve(
    model: Model = None,
    block_size: BlockSize = None,
    num_blocks: NumBlocks = None,
    kv_memory: KvMemory = None,
    max_context: MaxContext = None,
    step_tokens: StepTokens = None,
    max_running: MaxRunning = None,
    prefix_cache: PrefixCache = None,
    policy: Policy = None,
    swap_memory: SwapMemory = None,
    dtype: Dtype = None,
    weights_dtype: WeightsDtype = None,
    cpu_kernels: CpuKernels = None,
    device: Device = None,
    threads: Threads = None,
    run_dir: RunDir = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            is_eager=True,
            callback=_read_config,
            help="Take options from this file, not from the user's config.toml.",
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="End when the pipe on stdin ends, once other clients are answered.")
    ] = False,
    hang_timeout: Annotated[
        float,
        typer.Option(
            envvar="PAGECHAT_HANG_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            help="Seconds until a silent engine is replaced.",
        ),
    ] = 120.0,
    http: Http = "127.0.0.1:8008",
    no_http: NoHttp = False,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    max_queued_requests: MaxQueuedRequests = 1024,
    max_queued_tokens: MaxQueuedTokens = 4 * 2**20,
    http_log: HttpLog = None,
    vllm_metric_names: VllmMetricNames = False,
    tcp: Tcp = "off",
    curve_keys: CurveKeys = None,
    drain: Drain = 0.0,
    engine_command: Annotated[str | None, typer.Option(envvar="PAGECHAT_ENGINE_COMMAND", hidden=True)] = None,
) -> int:
    """Run the daemon in the foreground (the default command). Ctrl-C ends it."""
    config = engine_config(
        model=model,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_memory=kv_memory,
        max_context=max_context,
        step_tokens=step_tokens,
        max_running=max_running,
        prefix_cache=prefix_cache,
        policy=policy,
        swap_memory=swap_memory,
        dtype=dtype,
        weights_dtype=weights_dtype,
        cpu_kernels=cpu_kernels,
        device=device,
        threads=threads,
    )
    from pagechat.daemon.curve import CurveError
    from pagechat.daemon.http.address import AddressError
    from pagechat.daemon.http.keys import KeysError
    from pagechat.daemon.serve import serve as run
    from pagechat.daemon.supervisor import Patience

    try:
        return run(
            config,
            run_dir=run_dir,
            ephemeral=ephemeral,
            engine_command=shlex.split(engine_command) if engine_command else None,
            patience=Patience(hang_s=hang_timeout),
            http=http_plan(
                "off" if no_http else http,
                keys=keys,
                tls_cert=tls_cert,
                tls_key=tls_key,
                max_queued_requests=max_queued_requests,
                max_queued_tokens=max_queued_tokens,
                log=http_log,
                vllm_metric_names=vllm_metric_names,
            ),
            tcp=tcp_plan(tcp, curve_keys),
            drain_s=drain,
        )
    except (AddressError, KeysError, CurveError) as error:
        raise CommandError(str(error), exits.FAILED) from None


def _on_command_line(ctx: typer.Context, name: str) -> bool:
    """The option was typed, not taken from the environment or config.toml."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@daemon.command()
def ask(
    ctx: typer.Context,
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="The question; - reads it from stdin.")],
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of the answer. [what the context holds]")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="0 to 2; 0: always the likeliest. [the model's]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Share of likelihood to choose from. [the model's]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Choose among so many tokens; 0: all. [the model's]")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="For the same answer again. [random]")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given 16 times.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="What the model should be told before.")] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of a chat that goes on with each call.")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="So many answers, 16 at most, one after the other at the end.")] = 1,
    beams: Annotated[
        int | None, typer.Option(metavar="W", help="Search for the likeliest answer with 2 to 16 beams.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of the search: above 0 long answers score better. [1]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end instead of the text.")] = False,
    model: Model = None,
    run_dir: RunDir = None,
) -> int:
    """Ask one question; the answer streams to stdout. Without a running daemon one is started and stopped again.

    The answer stands on stdout as the model wrote it; in a terminal its control characters are made visible.
    """
    from pagechat.commands.ask import Question
    from pagechat.commands.ask import ask as run
    from pagechat.commands.question import answers, beam, chat_options, read_question

    question = Question(
        text=read_question(text),
        options=chat_options(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=stop or []
        ),
        system=system,
        session=session,
        model=model if _on_command_line(ctx, "model") else None,
        as_json=as_json,
        n=answers(n),
        beam=beam(beams, length_penalty, n),
    )
    return _run(run(question, run_dir))


@daemon.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False, run_dir: RunDir = None
) -> int:
    """Show what the daemon and its engine do. Exit code 3 when none runs."""
    from pagechat.commands.status import status as run

    return _run(run(run_dir, as_json=as_json))


@daemon.command()
def watch(run_dir: RunDir = None) -> int:
    """Print telemetry as JSON lines until Ctrl-C.

    The first line is a snapshot of the block pool; the reports of the steps that follow apply to it.
    """
    from pagechat.commands.watch import watch as run

    return _run(run(run_dir))


@daemon.command()
def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; one that exists is not replaced.")],
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="End when the file is that large.")] = "256MiB",
    seconds: Annotated[float | None, typer.Option(min=0.1, metavar="S", help="End after so long. [Ctrl-C]")] = None,
    run_dir: RunDir = None,
) -> int:
    """Record what the block pool does, for `pagechat --replay FILE`. Texts are not in it."""
    from pagechat.commands.record import record as run
    from pagechat.sizes import SizeError, parse_size

    try:
        size = parse_size(max_size)
    except SizeError as error:
        raise CommandError(str(error), exits.USAGE) from None
    return _run(run(run_dir, file, max_bytes=size, seconds=seconds))


@daemon.command()
def sessions(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ACTION NAME]",
            help="list (the default), fork NAME NEW, or pin, unpin, close, save, restore and a NAME.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    run_dir: RunDir = None,
) -> int:
    """List the sessions in the cache, fork one, keep it there (pin), drop it, or save it to disk and restore it.

    NAME is the one given to `ask --session`.
    """
    from pagechat.commands.sessions import sessions as run

    return _run(run(run_dir, words or (), as_json=as_json))


@daemon.command()
def usage(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False, run_dir: RunDir = None
) -> int:
    """Show who has used what since the engine started, by session and by tenant.

    A block that several sessions share is charged to them in equal parts: block-seconds of all sessions and of nobody
    add up to all blocks times all seconds.
    """
    from pagechat.commands.sessions import usage as run

    return _run(run(run_dir, as_json=as_json))


@daemon.command()
def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="Their answers; what is there is not asked again.")
    ],
    concurrency: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Requests at a time.")] = 32,
    priority: Annotated[
        int, typer.Option(metavar="N", help="Of requests that name none; chats have 0, and lower numbers go first.")
    ] = 1,
    model: Model = None,
    run_dir: RunDir = None,
) -> int:
    """Answer a file of requests, through the running daemon or one that is started. Call it again after a kill.

    Exit code 1 when a request had no answer. $PAGECHAT_API_KEY is the key, where the daemon asks for one.
    """
    from pagechat.commands.batch import batch as run

    return _run(run(source, target, run_dir, concurrency=concurrency, priority=priority, model=model))


@daemon.command()
def keys(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[ACTION NAME]", help="list (the default), or add, remove and a NAME.")
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of a new key: answers at a time. [no limit]")
    ] = None,
    min_priority: Annotated[
        int,
        typer.Option(
            min=-(2**31),
            max=2**31 - 1,
            metavar="N",
            help="Of a new key: the lowest number, so the most urgent, that its requests may ask for.",
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
    path: Keys = None,
) -> int:
    """Make, list and remove the API keys of the HTTP door. Once there is a file of them, every request needs one.

    `keys add NAME` prints the key, once: the file holds its hash only. NAME is who pays in `usage`.
    """
    from pagechat.commands.keys import keys as run

    return run(path, words or (), max_concurrent=max_concurrent, min_priority=min_priority, as_json=as_json)


@daemon.command()
def curve(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ACTION ...]", help="list (the default), add NAME HOST:PORT, or remove NAME."),
    ] = None,
    path: CurveKeys = None,
) -> int:
    """Make, list and remove the clients that `serve --tcp` lets in from other machines.

    `curve add` prints the file that the client needs, once. Whoever has it can do all that you can do with the daemon.
    """
    from pagechat.commands.curve import curve as run

    return run(path, words or ())


@daemon.command()
def stop(run_dir: RunDir = None) -> int:
    """Stop the daemon and wait until it has gone. Answers under way end with the text they have."""
    from pagechat.commands.stop import stop as run

    return _run(run(run_dir))


def daemon_main() -> NoReturn:
    """`pagechat-daemon`."""
    _main(daemon, "pagechat-daemon")


# -- pagechat ------------------------------------------------------------------------------------


class _DefaultsToChat(typer.core.TyperGroup):
    """`pagechat --theme X` is `pagechat chat --theme X`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--version"):
            args = ["chat", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_DefaultsToChat, **_PLAIN)


@app.callback()
def _pagechat(version: Version = False) -> None:
    """Chat with a language model in the terminal, and watch its paged KV cache work."""


@app.command(name="serve")
def _serve_app(
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port on 127.0.0.1.")] = 8017,
    theme: Annotated[
        str | None, typer.Option(envvar="PAGECHAT_THEME", metavar="NAME", help="Name of a theme. [the last used]")
    ] = None,
    run_dir: RunDir = None,
) -> int:
    """The same app in a web browser, through textual-serve, for this machine alone (127.0.0.1). Ctrl-C ends it."""
    from pagechat.app.in_browser import serve as run

    return run(port, theme=theme, run_dir=run_dir)


@app.command()
def chat(
    model: Model = None,
    theme: Annotated[
        str | None, typer.Option(envvar="PAGECHAT_THEME", metavar="NAME", help="Name of a theme. [the last used]")
    ] = None,
    block_size: BlockSize = None,
    num_blocks: NumBlocks = None,
    kv_memory: KvMemory = None,
    max_context: MaxContext = None,
    step_tokens: StepTokens = None,
    max_running: MaxRunning = None,
    prefix_cache: PrefixCache = None,
    policy: Policy = None,
    swap_memory: SwapMemory = None,
    dtype: Dtype = None,
    weights_dtype: WeightsDtype = None,
    cpu_kernels: CpuKernels = None,
    device: Device = None,
    threads: Threads = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            "--connect",
            envvar="PAGECHAT_RUN_DIR",
            metavar="DIR",
            help="Run directory of the daemon to use.",
        ),
    ] = None,
    tour: Annotated[
        bool, typer.Option("--tour", help="A guided tour of paging on the real engine, with a small pool of its own.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play what `pagechat-daemon record` has recorded.")
    ] = None,
    version: Version = False,
) -> int:
    """Chat with a language model in the terminal, and watch its paged KV cache work (the default command).

    Uses the running daemon, or starts one with these options and ends it again. `pagechat serve` shows the same app
    in a web browser.
    Exit codes: 0 done; 1 it failed; 2 wrong usage, or no terminal.
    """
    in_browser = os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")  # set by `pagechat serve`
    if not in_browser and not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):  # drawn on stderr
        print("pagechat needs a terminal; in scripts use `pagechat-daemon ask`", file=sys.stderr)
        return exits.USAGE
    given = {
        "model": model,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "kv_memory": kv_memory,
        "max_context": max_context,
        "step_tokens": step_tokens,
        "max_running": max_running,
        "prefix_cache": prefix_cache,
        "policy": policy,
        "swap_memory": swap_memory,
        "dtype": dtype,
        "weights_dtype": weights_dtype,
        "cpu_kernels": cpu_kernels,
        "device": device,
        "threads": threads,
    }
    engine_config(**given)  # a mistake is told here, not in a daemon's log
    from pagechat import app as screen

    if replay is not None:
        return screen.run_replay(replay, theme=theme)
    if tour:
        return screen.run_tour(daemon_args=as_arguments(given), theme=theme)
    return screen.run(run_dir=run_dir, daemon_args=as_arguments(given), theme=theme)


def app_main() -> NoReturn:
    """`pagechat`."""
    _main(app, "pagechat")


# -- pagechat-bench ------------------------------------------------------------------------------


class _Benches(typer.core.TyperGroup):
    """Sub-commands that live in pagechat/bench, imported when one is run."""

    where: ClassVar = {
        "capacity": "How many requests fit: contiguous against paged.",
        "engine": "Tokens per second of the real engine, by policy or against transformers.",
        "context": "Time of a decode step by number of chats and context length, on the CPU.",
        "quality": "What fewer bits a weight cost: perplexity and agreement on the next token.",
        "load": "The same requests to OpenAI-compatible servers, in turn.",
        "simulate": "A request trace through the block pool and scheduler, without a model.",
        "tune": "Which block size suits a trace.",
        "pool": "What the bookkeeping of a step costs.",
        "kernels": "Each GPU kernel against the bytes it must move.",
    }
    """Each lives in pagechat/bench/NAME.py as NAME_command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.where)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.where:
            return None
        module = importlib.import_module(f"pagechat.bench.{cmd_name}")
        single = typer.Typer(**_PLAIN)
        single.command(name=cmd_name)(getattr(module, f"{cmd_name}_command"))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.where.items()))


bench = typer.Typer(cls=_Benches, no_args_is_help=True, **_PLAIN)


@bench.callback()
def _bench(version: Version = False) -> None:
    """Compute and measure what paging brings. Every figure says what it ran on."""


def bench_main() -> NoReturn:
    """`pagechat-bench`."""
    _main(bench, "pagechat-bench")


# -- running ---------------------------------------------------------------------------------------


def _run(command: Coroutine[Any, Any, int]) -> int:
    """Runs a command's coroutine; what it raises for people becomes one line and an exit code."""
    import asyncio

    from pagechat.client import ClientError, NoDaemon
    from pagechat.daemon.launch import LaunchError
    from pagechat.store import StoreError

    try:
        return asyncio.run(command)
    except NoDaemon as error:
        raise CommandError(str(error), exits.NO_DAEMON) from None
    except (ClientError, LaunchError, StoreError) as error:
        raise CommandError(str(error), exits.FAILED) from None


def _main(typer_app: typer.Typer, name: str) -> NoReturn:
    from pagechat import settings
    from pagechat.rundir import RunDirError

    complain = _complaining(name)
    try:
        default_map = _default_map(typer_app, complain)
        command = typer.main.get_command(typer_app)
        status = command.main(prog_name=name, standalone_mode=False, default_map=default_map)
    except typer.TyperException as error:
        complain(error.format_message())
        status = error.exit_code
    except settings.SettingsError as error:
        complain(str(error))
        status = exits.USAGE
    except RunDirError as error:
        complain(str(error))
        status = exits.FAILED
    except (typer.Abort, KeyboardInterrupt):
        status = exits.INTERRUPTED
    sys.exit(status if isinstance(status, int) else exits.OK)


def _complaining(name: str) -> Callable[[str], None]:
    """Says one line on stderr."""
    from pagechat.text_safety import sanitize

    return lambda message: print(f"{name}: {' '.join(sanitize(message).split())}", file=sys.stderr)


def _default_map(typer_app: typer.Typer, complain: Callable[[str], None], path: Path | None = None) -> dict[str, Any]:
    """The defaults that config.toml (None: the user's) gives. Keys of every command are known, since one file serves
    them all."""
    from pagechat import settings

    found = settings.load(path)
    if not found or typer_app is bench:
        return {}
    group: Any = typer.main.get_command(daemon)
    screen: Any = typer.main.get_command(app)
    commands = {**group.commands, "app": screen.commands["chat"], "browser": screen.commands["serve"]}
    names = {
        name: [parameter.name for parameter in command.params if parameter.param_type_name == "option"]
        for name, command in commands.items()
    }
    defaults, unknown = settings.defaults(found, names)
    for key in unknown:
        complain(f"{path or settings.default_path()}: unknown key {key!r} is ignored")
    return {"chat": defaults["app"], "serve": defaults["browser"]} if typer_app is app else defaults
