"""A real Prometheus scrapes a live server under load, with the chart's rules. Then every query of the dashboard has an answer,
every rule evaluates, and what Prometheus computed is what the load knows of itself.

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

from load import Worker, stubs

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "croupier" / "files"
LOAD_SECONDS = 40
SCRAPE_SECONDS = 1
# A ratio of rates leaves out what was before the first scrape, one second of 40; it differs from the rest by chance only.
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
            sys.exit(f"{what} is not there after {seconds} s")
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
            query = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$job", ".*")
            yield panel["title"], query


def compare(prometheus, workers):
    """Lines to print, and what is wrong."""
    lines, wrong = [], []

    def same(what, asked, known, error):
        lines.append(f"{what:52} {asked:12.5g} {known:12.5g}")
        if not abs(asked - known) <= error:
            wrong.append(f"{what}: Prometheus has {asked}, the load {known}, more than {error} apart")

    for w in workers:
        m = f'{{model="{w.model}"}}'
        same(f"tokens of {w.model}", prometheus.value(f"sum(croupier_tokens_total{m})"), w.tokens, 0)
        same(f"rows with NaN of {w.model}", prometheus.value(f'croupier_rows_invalid_total{{model="{w.model}",reason="nan_logits"}}'), w.nans, 0)
        same(f"acceptance rate of {w.model}", prometheus.value(f"croupier:spec_decode_acceptance:ratio_rate5m{m}"), w.accepted / w.drafted, RATIO_ERROR)
        same(f"tokens a verification of {w.model}", prometheus.value(f"croupier:spec_decode_emitted_tokens_per_draft:ratio_rate5m{m}"), w.emitted / w.drafts, 3 * RATIO_ERROR)
        same(f"expected - observed acceptance of {w.model}", prometheus.value(f"croupier:spec_decode_expected_minus_observed:ratio30m{m}"),
             (w.expected - w.observed) / w.measured, RATIO_ERROR)
        errors = prometheus.value(f"croupier:spec_decode_expected_minus_observed:stderrs30m{m}")
        lines.append(f"{'... in standard errors':52} {errors:12.5g}")
        if w.honest != (abs(errors) < 5):
            wrong.append(f"{w.model}: {errors} standard errors")
    slowest = sorted(s for w in workers for s in w.seconds)
    known = slowest[math.ceil(0.99 * len(slowest)) - 1]
    asked = prometheus.value('croupier:step_duration_seconds:p99_rate5m{stage="total"}')
    lines.append(f"{'step, 99th percentile: inside, and seen from outside':52} {asked:12.5g} {known:12.5g}")
    # Inside is less than outside, but a histogram knows no more than the bucket, which may be 2.5 times as wide.
    if not 0 < asked <= known * 2.5:
        wrong.append(f"99th percentile: {asked} s inside, {known} s outside")
    return lines, wrong


def check(prometheus, workers):
    lines, wrong = compare(prometheus, workers)
    asked = list(dashboard_queries())
    wrong += [f"panel {title}: no answer to {query}" for title, query in asked if not prometheus.query(query)]
    rules = prometheus.rules()
    wrong += [f"rule {rule['name']}: {rule.get('lastError', rule['health'])}" for rule in rules if rule["health"] != "ok"]
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    wrong += [f"{name} recorded nothing" for name in recorded if not prometheus.query(name)]
    waiting = {rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"}
    expected = {"CroupierAcceptanceNotAsExpected", "CroupierBadLogits"}
    if not expected <= waiting:
        wrong.append(f"alerts waiting or firing are {waiting}, not {expected}")
    print(f"{'':52} {'Prometheus':>12} {'load':>12}", *lines, sep="\n")
    print(f"{len(asked)} queries of the dashboard answered, {len(rules)} rules evaluated; alerts: {', '.join(sorted(waiting))}")
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
            workers = [Worker(f"127.0.0.1:{grpc_port}", model, honest) for model, honest in [("sound", True), ("broken", False)]]
            threads = [threading.Thread(target=worker.run, args=(LOAD_SECONDS,)) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            workers[0].mistake()
            time.sleep(3 * SCRAPE_SECONDS)
            wrong = check(prometheus, workers)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
