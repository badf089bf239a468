"""/metrics: vLLM's names, and figures that are those of the requests."""

from __future__ import annotations

import re
import time

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.protocol import PoolEvent, StepReport
from pagechat.daemon.http import metrics
from pagechat.daemon.http.metrics import VLLM_PREFIX, Metrics
from tests.daemons import ROOT, wait_until

NAMES_OF_VLLM = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "request_success_total",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "iteration_tokens_total_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "kv_block_lifetime_seconds_bucket",
    "kv_block_idle_before_evict_seconds_bucket",
    "kv_block_reuse_gap_seconds_bucket",
}
"""reference/serving.md, from vllm/v1/metrics/loggers.py of 0.33.0."""


def scrape(http: httpx2.Client) -> dict[str, float]:
    """The sum of each name's samples."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_the_names_are_vllms(http: httpx2.Client) -> None:
    http.post("/v1/completions", json={"prompt": "counted", "max_tokens": 2})
    assert {f"pagechat:{name}" for name in NAMES_OF_VLLM} <= set(scrape(http))


def test_dashboards_made_for_vllm_may_have_its_prefix() -> None:
    metrics = Metrics(VLLM_PREFIX)
    metrics.refused("queue_requests")
    assert "vllm:admission_rejections" in "".join(family.name for family in metrics._registry.collect())


def test_figures_are_those_of_the_requests(http: httpx2.Client) -> None:
    # vLLM pull 56923: with n=2 the usage counted the prompt once and the counter twice
    before = scrape(http)
    usage = http.post("/v1/completions", json={"prompt": "a prompt of some length", "n": 2}).json()["usage"]
    wait_until(lambda: scrape(http)["pagechat:num_requests_running"] == 0, "end")
    after = scrape(http)

    def grown(name: str) -> float:
        return after[f"pagechat:{name}"] - before.get(f"pagechat:{name}", 0)

    assert grown("prompt_tokens_total") == usage["prompt_tokens"] == grown("request_prompt_tokens_sum")
    assert grown("generation_tokens_total") == usage["completion_tokens"] == grown("request_generation_tokens_sum")
    assert grown("request_success_total") == 2
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == usage["completion_tokens"] - 2
    assert after["pagechat:kv_cache_usage_perc"] == 0


def test_the_parts_of_a_requests_time_are_its_whole(http: httpx2.Client) -> None:
    before = scrape(http)
    http.post("/v1/completions", json={"prompt": "a prompt of some length"})
    after = scrape(http)
    sums, counts = (
        {
            part: after[f"pagechat:{part}_seconds_{what}"] - before[f"pagechat:{part}_seconds_{what}"]
            for part in ("request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time")
            for what in [field]
        }
        for field in ("sum", "count")
    )
    whole = after["pagechat:e2e_request_latency_seconds_sum"] - before["pagechat:e2e_request_latency_seconds_sum"]
    assert set(counts.values()) == {1}
    assert min(sums.values()) > 0
    assert sums["request_queue_time"] + sums["request_inference_time"] == pytest.approx(whole, abs=0.001)
    assert sums["request_inference_time"] == pytest.approx(sums["request_prefill_time"] + sums["request_decode_time"])


def report(*events: PoolEvent, at: float) -> StepReport:
    return StepReport(
        step=0,
        time=at,
        duration_s=0,
        running=0,
        waiting=0,
        preemptions=0,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        first_event=0,
        events=list(events),
        lengths=[],
    )


def test_blocks_tell_how_long_they_lived_idled_and_were_waited_for() -> None:
    metrics = Metrics()
    now = time.time()
    metrics.step(report(PoolEvent("allocate", 7), at=now))
    metrics.step(report(PoolEvent("cache", 7), PoolEvent("release", 7), at=now + 2))
    metrics.step(report(PoolEvent("hit", 7), at=now + 5))
    metrics.step(report(PoolEvent("release", 7), at=now + 6))
    metrics.step(report(PoolEvent("evict", 7), at=now + 10))
    sums = {
        sample.name.removeprefix("pagechat:kv_block_"): sample.value
        for family in metrics._registry.collect()
        for sample in family.samples
        if sample.name.endswith("_sum") and "kv_block" in sample.name
    }
    assert sums == {
        "lifetime_seconds_sum": pytest.approx(10),
        "idle_before_evict_seconds_sum": pytest.approx(4),
        "reuse_gap_seconds_sum": pytest.approx(3),
    }


def test_the_dashboard_asks_for_names_that_there_are(http: httpx2.Client) -> None:
    http.post("/v1/completions", json={"prompt": "counted", "max_tokens": 2})
    found = set(scrape(http)) | {"pagechat:admission_rejections_total"}  # there from the first refusal on
    asked = set(re.findall(r"pagechat:[a-z0-9_]+", (ROOT / "docs" / "grafana.json").read_text()))
    assert len(asked) > 10
    assert asked <= found
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "http.md").read_text().partition("/metrics` has")[2]))
    told = {name.removeprefix("pagechat:") for name in found}
    for name in documented:
        assert {name, f"{name}_total", f"{name}_bucket"} & told, name


@given(
    st.lists(st.floats(0, 2000) | st.sampled_from([0.001, 0.0025, 1, 7.5, 10]), max_size=30),
    st.sampled_from([(1, 2, 5), (0.001, 0.0025, 1, 7.5, 10), (1.5e-7, 1e21)]),
)
def test_a_histogram_is_written_as_prometheus_own(values: list[float], buckets: tuple[float, ...]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = metrics.Histogram("x:seconds", 'Of "x"\nand y.', buckets)
    ours.register(histogram)
    reference = Histogram("x:seconds", 'Of "x"\nand y.', buckets=buckets, registry=theirs)
    for value in values:
        histogram.observe(value)
        reference.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)
