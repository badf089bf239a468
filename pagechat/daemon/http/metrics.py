"""What /metrics tells, under vLLM's names and with its meaning (vllm/v1/metrics/loggers.py), so that dashboards made
for it work: as `pagechat:...`, or as `vllm:...` where asked. Names whose figure is not known here are left out.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.protocol import FinishReason, PoolEvent, StepReport
from pagechat.daemon.http.admission import Admission
from pagechat.daemon.observer import Observer
from pagechat.daemon.requests import Answer, Request
from pagechat.protocol import Status

PREFIX = "pagechat:"
VLLM_PREFIX = "vllm:"

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))
_BLOCK = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)

disable_created_metrics()


class Metrics(Observer):
    """Counts from the start of the daemon. Its registry is its own: nothing of the process is in it."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._registry = CollectorRegistry()
        self._prefix = prefix
        self._gauges = _Gauges(self)
        self._blocks = _BlockTimes(self)
        self._preemptions = 0
        self._computed = self.counter("prompt_tokens", "Prompt tokens that were computed or found in the cache.")
        self._cached = self.counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._queries = self.counter("prefix_cache_queries", "Prompt tokens looked for in the prefix cache.")
        self._hits = self.counter("prefix_cache_hits", "Prompt tokens found there.")
        self._generated = self.counter("generation_tokens", "Generated tokens.")
        self._compilations = 0
        self._compiled = self.counter(
            "engine_compilations", "Kernels compiled and CUDA graphs captured after the engine was ready."
        )
        self._preempted = self.counter("num_preemptions", "Sequences that gave their blocks up for older ones.")
        self._ended = self.counter("request_success", "Answers that ended, by why.", "finished_reason")
        self._rejections = self.counter("admission_rejections", "HTTP requests refused, by reason.", "reason")
        self._step_tokens = self.histogram("iteration_tokens_total", "Tokens computed in a step.", _TOKENS)
        self._prompt = self.histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._answer = self.histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._n = self.histogram("request_params_n", "Answers asked for.", (1, 2, 5, 10, 20))
        self._max_tokens = self.histogram("request_params_max_tokens", "max_tokens, where it was given.", _TOKENS)
        self._first = self.histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN)
        self._between = self.histogram("inter_token_latency_seconds", "Between two tokens of an answer.", _BETWEEN)
        self._per_token = self.histogram(
            "request_time_per_output_token_seconds", "Mean of an answer between its tokens.", _BETWEEN
        )
        self._whole = self.histogram("e2e_request_latency_seconds", "From arrival to the end of an answer.", _REQUEST)
        self._queue = self.histogram(
            "request_queue_time_seconds", "From arrival until the engine begins with the prompt.", _REQUEST
        )
        self._prefill = self.histogram("request_prefill_time_seconds", "From there to the first token.", _REQUEST)
        self._inference = self.histogram(
            "request_inference_time_seconds", "Prefill of a request and decode of an answer.", _REQUEST
        )
        self._decode = self.histogram(
            "request_decode_time_seconds", "From the first token of a request to the end of an answer.", _REQUEST
        )

    # -- as told -----------------------------------------------------------------------------------

    def tokens(self, request: Request, answer: Answer, since_last_s: float | None) -> None:
        if since_last_s is not None:
            self._between.observe(since_last_s)
        elif request.first_token is None:
            self._first.observe(time.monotonic() - request.received)

    def ended(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        self._ended.labels(reason).inc()
        if reason == "error":
            return
        now = time.monotonic()
        self._answer.observe(answer.tokens)
        self._whole.observe(now - request.received)
        if request.first_token is not None:
            self._decode.observe(now - request.first_token)
            if request.prefill_s is not None:
                self._inference.observe(request.prefill_s + now - request.first_token)
            if answer.tokens > 1 and answer.last_token is not None:
                self._per_token.observe((answer.last_token - request.first_token) / (answer.tokens - 1))
        if answer.index == 0:  # of the request, not of each of its answers
            self._prompt.observe(len(request.prompt))
            self._n.observe(request.wants.n)
            if request.first_token is not None and request.prefill_s is not None:
                self._queue.observe(max(0.0, request.first_token - request.received - request.prefill_s))
                self._prefill.observe(request.prefill_s)
            if request.wants.options.max_tokens is not None:
                self._max_tokens.observe(request.wants.options.max_tokens)

    def step(self, report: StepReport) -> None:
        prompt = report.prompt_tokens + report.cached_tokens
        self._computed.inc(prompt)
        self._queries.inc(prompt)
        self._cached.inc(report.cached_tokens)
        self._hits.inc(report.cached_tokens)
        self._generated.inc(report.generated_tokens)
        if report.prompt_tokens or report.generated_tokens:
            self._step_tokens.observe(report.prompt_tokens + report.generated_tokens)
        # the report counts from the engine's start, this from the daemon's: a new engine begins at 0 again
        self._compiled.inc(max(0, report.compilations - self._compilations))
        self._compilations = report.compilations
        self._preempted.inc(max(0, report.preemptions - self._preemptions))
        self._preemptions = report.preemptions
        for event in report.events:
            self._blocks.follow(event, report.time)

    def refused(self, reason: str) -> None:
        """An HTTP request was not let in."""
        self._rejections.labels(reason).inc()

    def text(self, status: Status, admission: Admission) -> bytes:
        """In Prometheus' text format. What is a state, and not a count, is taken from these."""
        self._gauges.set(status, admission)
        return generate_latest(self._registry)

    # -- making them -------------------------------------------------------------------------------

    def counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(self._prefix + name, words, labels, registry=self._registry)

    def gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(self._prefix + name, words, labels, registry=self._registry)

    def histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        found = Histogram(self._prefix + name, words, buckets)
        self._registry.register(found)
        return found


class Histogram(Collector):
    """prometheus_client's, for one thread: a lock for each count would cost more than all else that a token costs."""

    def __init__(self, name: str, words: str, buckets: tuple[float, ...]) -> None:
        self._name, self._words, self._bounds = name, words, buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._words, buckets=buckets, sum_value=self._sum)


class _Gauges:
    """What is true at the moment of a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._running = metrics.gauge("num_requests_running", "Sequences in the engine's steps.", "model_name")
        self._waiting = metrics.gauge(
            "num_requests_waiting", "Sequences that wait for memory or a place.", "model_name"
        )
        self._usage = metrics.gauge("kv_cache_usage_perc", "Share of the blocks that have an owner, 0 to 1.")
        self._config = metrics.gauge("cache_config_info", "1; the labels say how.", "block_size", "num_gpu_blocks")
        self._up = metrics.gauge("engine_up", "1 while a model answers.")
        self._queued = metrics.gauge("http_requests_queued", "Answers that were let in over HTTP and have not begun.")

    def set(self, status: Status, admission: Admission) -> None:
        self._up.set(status.state == "ready")
        self._queued.set(admission.waiting)
        if status.model is not None:
            scheduler = status.scheduler
            self._running.labels(status.model.name).set(scheduler.running if scheduler else 0)
            self._waiting.labels(status.model.name).set(scheduler.waiting if scheduler else 0)
        if pool := status.pool:
            self._usage.set((pool.active + pool.shared) / pool.num_blocks)
            self._config.labels(pool.block_size, pool.num_blocks).set(1)


class _BlockTimes:
    """How long blocks live: every block, where vLLM samples one in a hundred."""

    def __init__(self, metrics: Metrics) -> None:
        self._lifetime = metrics.histogram(
            "kv_block_lifetime_seconds", "From a block's allocation to the loss of its content.", _BLOCK
        )
        self._idle = metrics.histogram(
            "kv_block_idle_before_evict_seconds", "From a block's last use to the loss of its content.", _BLOCK
        )
        self._gap = metrics.histogram(
            "kv_block_reuse_gap_seconds", "From a cached block's last use to the next one that found it.", _BLOCK
        )
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}

    def follow(self, event: PoolEvent, now: float) -> None:
        block, last = event.block, self._used.get(event.block)
        match event.kind:
            case "allocate" | "copy":
                self._born[block] = self._used[block] = now
            case "share" | "release":
                self._used[block] = now
            case "hit":
                if last is not None:
                    self._gap.observe(now - last)
                self._used[block] = now
            case "evict":
                if last is not None:
                    self._idle.observe(now - last)
                    self._lifetime.observe(now - self._born[block])
