"""A real Prometheus scrapes a live server under load, with the chart's rules. Then every query of the dashboard has an answer,
every rule evaluates, and the numbers of Prometheus agree with the load's own.

Arguments: the croupier binary, the prometheus binary."""

import json
import math
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from load import Siblings, Worker, stubs

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "croupier" / "files"
LOAD_SECONDS = 40
SCRAPE_SECONDS = 1
# Prometheus and this script compute a quantile of the same buckets, so they differ only by rounding.
QUANTILE_ERROR = 1e-6
P99 = 'croupier:step_duration_seconds:p99_rate5m{stage="total"}'
# Series that could be queried in its place by mistake.
NOT_P99 = ['croupier:step_duration_seconds:p50_rate5m{stage="total"}', 'croupier:step_duration_seconds:p90_rate5m{stage="total"}',
           *(f'croupier:step_duration_seconds:p99_rate5m{{stage="{stage}"}}' for stage in ("queue", "backend", "reply"))]
# A ratio of rates leaves out what came before the first scrape: one second of 40. It differs from the rest only by chance.
RATIO_ERROR = 0.01


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def until(what, ready, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit(f"{what} was not ready after {seconds} s")
        time.sleep(0.2)


class Prometheus:
    def __init__(self, binary, folder, target):
        rules = re.sub(r"(?m)^    interval: \w+$", f"    interval: {SCRAPE_SECONDS}s", (CHART / "rules.yaml").read_text())
        (folder / "rules.yaml").write_text(rules)
        (folder / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "croupier", "static_configs": [{"targets": [target], "labels": {"namespace": "n"}}]}],
        }))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [binary, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.url[7:]}", "--log.level=warn"])
        until("Prometheus", lambda: get(f"{self.url}/-/ready"))

    def query(self, query):
        answer = json.loads(get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]

    def value(self, query):
        samples = self.query(query)
        assert len(samples) == 1, f"{query} has {len(samples)} answers"
        return samples[0][1]

    def rules(self):
        groups = json.loads(get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


def dashboard_queries():
    for panel in json.loads((CHART / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            query = re.sub(r"\$(namespace|job|instance|model)\b", ".*", target["expr"].replace("$__rate_interval", "5m"))
            yield panel["title"], query


def steps(admin):
    """Upper bounds and cumulative counts of the buckets of whole steps, from the server itself."""
    line = r'^croupier_step_duration_seconds_bucket{stage="total",le="([^"]+)"} (\d+)$'
    return [(float(edge), int(count)) for edge, count in re.findall(line, get(f"http://{admin}/metrics"), re.M)]


def quantile(q, buckets):
    """Like histogram_quantile, which assumes an even spread within the bucket. Also returns the bucket's bounds."""
    rank, low, below = q * buckets[-1][1], 0.0, 0
    for edge, count in buckets:
        if count >= rank:
            return (low if math.isinf(edge) else low + (edge - low) * (rank - below) / (count - below)), low, edge
        low, below = edge, count


def scaling_queries():
    """The queries of autoscalers: KEDA's from the chart, prometheus-adapter's from docs/scaling.md. Pods have other names here."""
    keda = re.search(r"(?m)^ *query: (.+)$", (ROOT / "tests/helm/golden/service-keda.yaml").read_text())[1]
    yield "KEDA", re.sub(r'namespace="[^"]*",pod=~"[^"]*"', 'job="croupier"', keda)
    for query in re.findall(r"metricsQuery: '(.+)'", (ROOT / "docs/scaling.md").read_text()):
        yield "prometheus-adapter", query.replace("<<.GroupBy>>", "instance").replace("<<.LabelMatchers>>", 'job="croupier"')


def p99_is_wrong(asked, buckets):
    known = quantile(0.99, buckets)[0]
    if not abs(asked - known) <= QUANTILE_ERROR * known:
        return f"99th percentile: Prometheus has {asked} s, the server's buckets {known} s, more than {QUANTILE_ERROR} of it apart"
    return None


def latency(prometheus, buckets, seconds):
    """The 99th percentile that Prometheus computed is that of the server's buckets. These count the load's steps, none of which
    took longer inside the server than seen from outside."""
    asked = prometheus.value(P99)
    known, low, high = quantile(0.99, buckets)
    outside = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
    lines = [f"{'step, 99th percentile: of the buckets themselves':52} {asked:12.5g} {known:12.5g}",
             f"{'... between edges of its bucket; seen from outside':52} {f'{low:g}-{high:g}':>12} {outside:12.5g}"]
    wrong = [p99_is_wrong(asked, buckets)]
    if buckets[-1][1] != len(seconds):
        wrong.append(f"the server counts {buckets[-1][1]} steps, the load {len(seconds)}")
    wrong += [f"{count} steps took up to {edge} s inside, and more, {slower}, seen from outside" for edge, count in buckets
              if (slower := sum(s <= edge for s in seconds)) > count]
    # The check can fail.
    wrong += [f"{query} would pass for the 99th percentile" for query in NOT_P99 if not p99_is_wrong(prometheus.value(query), buckets)]
    return lines, [what for what in wrong if what]


def compare(prometheus, workers, siblings, buckets):
    """Returns lines to print, and what is wrong."""
    lines, wrong = [], []

    def same(what, asked, known, error):
        lines.append(f"{what:52} {asked:12.5g} {known:12.5g}")
        if not abs(asked - known) <= error:
            wrong.append(f"{what}: Prometheus has {asked}, the load {known}, more than {error} apart")

    for w in workers:
        m = f'{{model="{w.model}"}}'
        same(f"tokens of {w.model}", prometheus.value(f"sum(croupier_tokens_total{m})"), w.tokens, 0)
        same(f"rows with NaN of {w.model}", prometheus.value(f'croupier_rows_invalid_total{{model="{w.model}",reason="nan_logits"}}'), w.nans, 0)
        same(f"sequences not opened of {w.model}", prometheus.value(f'croupier_openings_failed_total{{model="{w.model}",reason="invalid_argument"}}'), w.unopened, 0)
        same(f"acceptance rate of {w.model}", prometheus.value(f"croupier:spec_decode_acceptance:ratio_rate5m{m}"), w.accepted / w.drafted, RATIO_ERROR)
        same(f"tokens a verification of {w.model}", prometheus.value(f"croupier:spec_decode_emitted_tokens_per_draft:ratio_rate5m{m}"), w.emitted / w.drafts, 3 * RATIO_ERROR)
        same(f"expected - observed acceptance of {w.model}", prometheus.value(f"croupier:spec_decode_expected_minus_observed:ratio30m{m}"),
             (w.expected - w.observed) / w.measured, RATIO_ERROR)
        same(f"drawn - claimed draft probability of {w.model}", prometheus.value(f"croupier:spec_decode_drawn_minus_claimed:ratio30m{m}"),
             (w.drawn - w.claimed) / w.measured, RATIO_ERROR)
        for pair in ["expected_minus_observed", "drawn_minus_claimed"]:
            errors = prometheus.value(f"croupier:spec_decode_{pair}:stderrs30m{m}")
            lines.append(f"{f'{pair} of {w.model}, in standard errors':52} {errors:12.5g}")
            if w.honest != (abs(errors) < 5):
                wrong.append(f"{w.model}: {pair} {errors} standard errors")
    m = f'{{model="{siblings.model}"}}'
    same("siblings that came again", prometheus.value(f"croupier_spec_decode_num_repeated_siblings_total{m}"), 0, 0)
    same("siblings expected to come again", prometheus.value(f"croupier_spec_decode_expected_repeated_siblings_sum{m}"), siblings.expected,
         RATIO_ERROR * siblings.expected)
    more, faults = latency(prometheus, buckets, [s for w in [*workers, siblings] for s in w.seconds])
    return lines + more, wrong + faults


def check(prometheus, workers, siblings, buckets):
    lines, wrong = compare(prometheus, workers, siblings, buckets)
    asked = [*dashboard_queries(), *scaling_queries()]
    wrong += [f"{title}: no answer to {query}" for title, query in asked if not prometheus.query(query)]
    rules = prometheus.rules()
    wrong += [f"rule {rule['name']}: {rule.get('lastError', rule['health'])}" for rule in rules if rule["health"] != "ok"]
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    wrong += [f"{name} recorded nothing" for name in recorded if not prometheus.query(name)]
    waiting = {rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"}
    expected = {"CroupierAcceptanceNotAsExpected", "CroupierDraftsNotAsClaimed", "CroupierSiblingsNotAsClaimed",
                "CroupierBadLogits", "CroupierSomeBadLogits"}
    if not expected <= waiting:
        wrong.append(f"alerts waiting or firing are {waiting}, not {expected}")
    print(f"{'':52} {'Prometheus':>12} {'load':>12}", *lines, sep="\n")
    print(f"{len(asked)} queries of dashboard and autoscalers answered, {len(rules)} rules evaluated; alerts: {', '.join(sorted(waiting))}")
    return wrong


def main():
    croupier, binary = sys.argv[1:]
    grpc_port, admin = free_port(), f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        stubs(ROOT / "proto", folder)
        server = subprocess.Popen([croupier, "serve", "--listen", f"127.0.0.1:{grpc_port}", "--admin", admin, "--log-level", "error"])
        processes = [server]
        try:
            until("the server", lambda: get(f"http://{admin}/readyz"))
            prometheus = Prometheus(binary, folder, admin)
            processes.append(prometheus.process)
            until("the first scrape", lambda: prometheus.query("croupier_ready"))
            assert steps(admin)[-1] == (math.inf, 0), "there were steps before the load"
            workers = [Worker(f"127.0.0.1:{grpc_port}", model, honest) for model, honest in [("sound", True), ("broken", False)]]
            siblings = Siblings(f"127.0.0.1:{grpc_port}", "alone", False)
            threads = [threading.Thread(target=worker.run, args=(LOAD_SECONDS,)) for worker in [*workers, siblings]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            workers[0].mistake()
            buckets = steps(admin)
            until("the last step", lambda: prometheus.value('croupier_step_duration_seconds_count{stage="total"}') == buckets[-1][1])
            time.sleep(3 * SCRAPE_SECONDS)
            wrong = check(prometheus, workers, siblings, buckets)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
