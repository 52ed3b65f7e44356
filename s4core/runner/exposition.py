"""The text of ``/metrics``: Prometheus exposition format 0.0.4, a fixed list of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METRICS", "exposition"]

PREFIX = "s4_"


@dataclass(frozen=True)
class Metric:
    """One line of the list: its Prometheus type and what it says."""

    kind: str
    help: str


METRICS: Mapping[str, Metric] = {
    "ready": Metric("gauge", "1 when every gate has passed."),
    "entitled": Metric("gauge", "1 while the entitlement stands."),
    "entitlement_renewal_failures_total": Metric("counter", "Hourly renewals that failed."),
    "gpu_self_test_passed": Metric("gauge", "1 when the GPU gave back every bit."),
    "gpu_self_test_seconds": Metric("gauge", "What the self-test took."),
    "store_check_seconds": Metric("gauge", "What writing, reading and deleting a probe took."),
    "start_seconds": Metric("gauge", "From the start of the runner to ready."),
    "saves_total": Metric("counter", "Checkpoints committed."),
    "save_errors_total": Metric("counter", "Saves that failed."),
    "raw_bytes_total": Metric("counter", "Bytes of the states that were saved."),
    "stored_bytes_total": Metric("counter", "Bytes put into the store for them."),
    "last_ratio": Metric("gauge", "Raw by stored bytes of the last save."),
    "pause_seconds_total": Metric("counter", "How long the training waited for saves."),
    "last_pause_seconds": Metric("gauge", "How long it waited for the last one."),
    "upload_seconds_total": Metric("counter", "From first put to commit, all saves."),
    "last_upload_seconds": Metric("gauge", "From first put to commit, the last save."),
    "last_step": Metric("gauge", "Step of the last save."),
    "reports_rejected_total": Metric("counter", "Reports that were not of the agreed form."),
    "training_running": Metric("gauge", "1 while the training's process runs."),
    "training_restarts_total": Metric("counter", "Times it was started again."),
    "checkpoint_requests_total": Metric("counter", "Times it was asked for a checkpoint."),
    "interruption_notice": Metric("gauge", "1 after the notice of a spot interruption."),
    "rebalance_notice": Metric("gauge", "1 after a rebalance recommendation."),
}


def exposition(numbers: Mapping[str, float]) -> str:
    """The metrics whose numbers are known; totals that are not are 0."""
    raw, stored = numbers.get("last_raw_bytes", 0.0), numbers.get("last_stored_bytes", 0.0)
    known = {name: 0.0 for name, metric in METRICS.items() if metric.kind == "counter"}
    known.update({name: value for name, value in numbers.items() if name in METRICS})
    if stored:
        known["last_ratio"] = raw / stored
    return "".join(
        f"# HELP {PREFIX}{name} {metric.help}\n"
        f"# TYPE {PREFIX}{name} {metric.kind}\n"
        f"{PREFIX}{name} {known[name]:.12g}\n"
        for name, metric in METRICS.items()
        if name in known
    )
