"""Everything that rules, dashboard and autoscaling query exists: metrics, labels, label values, buckets. Every alert is
explained in docs/operations.md or docs/operations-drafts.md, and has a unit test in which it fires and one in which it is silent."""

import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "croupier"
DASHBOARD = CHART / "files" / "dashboard.json"
# The pages with a section for each alert. The first one has the table of all.
RUNBOOKS = ["operations.md", "operations-drafts.md"]
# Metrics that Prometheus itself has, and labels that it adds when it scrapes.
BUILT_IN = {"up", "ALERTS"}
SCRAPE_LABELS = {"namespace", "job", "instance", "pod", "container", "service", "alertstate", "alertname"}


def documented():
    """Labels by metric, from the table of docs/metrics.md. The parts of histograms have separate names."""
    metrics = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        row = re.match(r"\| `(\w+)` \| (\w+) \| ([^|]*) \|", line)
        if not row:
            continue
        name, kind, labels = row[1], row[2], set(re.findall(r"`(\w+)`", row[3]))
        if kind == "histogram":
            metrics[f"{name}_bucket"] = labels | {"le"}
            metrics |= {f"{name}_sum": labels, f"{name}_count": labels}
        else:
            metrics[name] = labels
    return metrics


def known_values():
    page = (ROOT / "docs" / "metrics.md").read_text()
    sets = (ROOT / "src" / "metrics" / "labels.rs").read_text()
    return set(re.findall(r"`([\w+]+)`", page)) | set(re.findall(r'"(\w+)"', sets))


def buckets():
    text = (ROOT / "src" / "metrics" / "catalog.rs").read_text()
    lists = re.findall(r"&\[f64\] = &\[([^\]]*)\]", text)
    return {float(number.replace("_", "")) for numbers in lists for number in re.findall(r"[\d._e-]+", numbers)}


def complaints(query, metrics, recorded):
    """Yields what is wrong with a query."""
    for name, _, matchers in re.findall(r"((?:croupier|process)[_:][\w:]+)(\{([^}]*)\})?", re.sub(r'"[^"]*"', clean, query)):
        if ":" in name:
            if name not in recorded:
                yield f"{name} is recorded by no rule"
            continue
        if name not in metrics:
            yield f"{name} is not in docs/metrics.md"
            continue
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label in SCRAPE_LABELS:
                continue
            if label not in metrics[name]:
                yield f"{name} has no label {label}"
            elif label == "le":
                if float(value) not in buckets():
                    yield f"{name} has no bucket {value}"
            elif not value.startswith("$"):
                yield from (f"{label} is never {v}" for v in value.split("|") if v not in known_values())


def clean(match):
    """Makes strings harmless that could be taken for a bracket. Those of matchers have none, and stay as they are."""
    return match[0].replace("{", "").replace("}", "")


def queries():
    """Yields the place and text of every query."""
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"rule {rule.get('record') or rule['alert']}", rule["expr"]
    yield from panels(json.loads(DASHBOARD.read_text())["panels"])
    for o in yaml.safe_load_all((ROOT / "tests/helm/golden/service-keda.yaml").read_text()):
        if o and o["kind"] == "ScaledObject":
            yield from (("KEDA", trigger["metadata"]["query"]) for trigger in o["spec"]["triggers"])
    yield from adapter()


def adapter_rules():
    """The queries of prometheus-adapter in docs/scaling.md, as they are there."""
    return re.findall(r"metricsQuery: '(.+)'", (ROOT / "docs/scaling.md").read_text())


def adapter():
    """Yields these queries, filled in."""
    for query in adapter_rules():
        yield "prometheus-adapter", query.replace("<<.GroupBy>>", "instance").replace("<<.LabelMatchers>>", 'job="croupier"')


def untested_scaling():
    """Yields queries of autoscalers on CPU that scaling_test.yaml does not have."""
    text = (ROOT / "tests/rules/scaling_test.yaml").read_text()
    pods = "example-croupier-7d9f-abcde|example-croupier-7d9f-fghij"
    labels = f'namespace="inference",pod=~"{pods}"'
    asked = [query for place, query in queries() if place == "KEDA"]
    asked += [query.replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", labels) for query in adapter_rules()]
    asked = [query for query in asked if "process_cpu_seconds_total" in query]
    yield from (f"no unit test asks {query}" for query in asked if f"- expr: {query}\n" not in text)
    if len(asked) != 2:
        yield f"{len(asked)} autoscalers ask for CPU"


def as_rules():
    """All queries as a file of rules, with Grafana's variables filled in, so that promtool reads them."""
    rules = [{"record": "checked", "labels": {"place": str(i)}, "expr": filled(query)} for i, (_, query) in enumerate(queries())]
    return yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})


def filled(query):
    return re.sub(r"\$(namespace|job|instance|model)\b", ".*", query.replace("$__rate_interval", "5m"))


def panels(of):
    for panel in of:
        yield from panels(panel.get("panels", []))
        yield from ((f"panel {panel['title']}", target["expr"]) for target in panel.get("targets", []))


def undescribed(of):
    for panel in of:
        yield from undescribed(panel.get("panels", []))
        if panel["type"] != "row" and len(panel.get("description", "")) < 20:
            yield f"panel {panel['title']} has no description"


def told_apart(query, recorded):
    """Labels in which the lines of a query differ. Without aggregation there is a line for each instance, with its own labels."""
    if aggregated := re.match(r"(?:histogram_quantile\([\d.]+, )?(?:sum|min|max|count)(?: by \(([^)]*)\))?", query):
        return set(re.findall(r"\w+", aggregated[1] or "")) - {"le"}
    name = re.search(r"(?:croupier|process)[_:][\w:]+", query)[0]
    return recorded.get(name, {"instance"})


def recorded_labels(rules):
    """Labels in which the lines of a recording differ, from its own aggregation."""
    by = {}
    for rule in rules:
        if "record" in rule:
            grouped = re.search(r" by \(([^)]*)\)", rule["expr"])
            by[rule["record"]] = set(re.findall(r"\w+", grouped[1])) - {"le"} if grouped else {"instance"}
    # Recordings that are differences of others.
    for name in by:
        if "repeated_siblings_minus_expected" in name:
            by[name] = by["croupier:spec_decode_repeated_siblings:increase30m"] - ({"instance"} if "_of_job" in name else set())
        if "shifted_minus_own" in name:
            by[name] = by["croupier:spec_decode_shift_measured:increase30m"]
        if "expected_minus_observed" in name or "drawn_minus_claimed" in name:
            by[name] = by["croupier:spec_decode_measured_tokens:increase30m"] - ({"instance"} if "_of_job" in name else set())
    return by


def mixed_up(of, recorded):
    """Yields legends that two lines of a panel may share."""
    for panel in of:
        targets = panel.get("targets", [])
        for target in targets:
            fixed = set(re.findall(r'(\w+)="[^$"]*"', target["expr"]))
            missing = told_apart(target["expr"], recorded) - fixed - set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            yield from (f"panel {panel['title']}: lines of two {label}s have the same name" for label in missing)
        if len({target["legendFormat"] for target in targets}) < len(targets):
            yield f"panel {panel['title']}: two queries have the same legend"


def unseen(metrics, asked):
    """Yields metrics that are in no rule and no panel, without a reason."""
    # Decode calls last as long as their worker, and the other calls are counted in croupier_requests_total. Invalid trace contexts concern
    # their callers. Kubernetes monitors processes by its own means.
    elsewhere = {"croupier_call_duration_seconds", "croupier_trace_contexts_invalid_total", "process_threads", "process_virtual_memory_bytes"}
    for name in sorted({re.sub("_(bucket|sum|count)$", "", name) for name in metrics} - elsewhere):
        if not any(re.search(rf"\b{name}(_bucket|_sum|_count)?\b", query) for _, query in asked):
            yield f"{name} is in no rule and no panel"


def untested(alerts):
    """Yields alerts without a unit test in which they fire, or one in which they are silent."""
    firing, silent = set(), set()
    for path in (ROOT / "tests" / "rules").glob("*_test.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                (firing if case["exp_alerts"] else silent).add(case["alertname"])
            for case in test.get("promql_expr_test", []):
                firing |= set(re.findall(r'alertname="(\w+)",alertstate="firing"', case["expr"]))
    yield from (f"no test sees {alert} fire" for alert in alerts - firing)
    yield from (f"no test sees {alert} silent" for alert in alerts - silent)


def misplaced(rules, pages):
    """Yields alerts that do not point to their section, sections that belong to no alert, and alerts that the first page does not list."""
    places = {name: page for page, text in pages.items() for name in re.findall(r"^### (Croupier\w+)$", text, re.M)}
    alerts = {rule["alert"]: rule["annotations"].get("runbook", "") for rule in rules if "alert" in rule}
    yield from (f"docs/{page} describes {name}, which is not an alert" for name, page in places.items() if name not in alerts)
    for name, runbook in alerts.items():
        page = places.get(name)
        if page is None:
            yield f"no page has a section {name}"
            continue
        if f"docs/{page}#{name.lower()}." not in runbook:
            yield f"{name} does not point to its section in docs/{page}"
        first = next(iter(pages))
        # A link to this anchor of the first page, as earlier versions had it, leads to the heading or to the row of the table.
        if page != first and f'<a id="{name.lower()}"></a>[{name}]({page}#{name.lower()})' not in pages[first]:
            yield f"the table of docs/{first} does not lead to {name}"
        if page == first and f"[{name}](#{name.lower()})" not in pages[first]:
            yield f"the table of docs/{first} does not list {name}"


def main():
    metrics = documented()
    assert len(metrics) > 30, "the table of docs/metrics.md was not found"
    # The check can fail.
    for wrong in ["croupier_nothing", 'croupier_queue_depth{a="b"}', 'croupier_rows_total{kind="guess"}', "croupier:nothing",
                  'croupier_step_duration_seconds_bucket{le="0.026"}']:
        assert list(complaints(wrong, metrics, set())), wrong
    for expr, legend in [("sum by (a, b) (x)", "{{a}}"), ("croupier_ready", "ready")]:
        assert list(mixed_up([{"title": "", "targets": [{"expr": expr, "legendFormat": legend}]}], {})), expr
    assert list(unseen({"croupier_ready": set()}, []))
    assert list(misplaced([{"alert": "CroupierA", "annotations": {}}], {"a.md": "### CroupierB"}))
    rules = [rule for group in yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    asked = list(queries())
    wrong = [f"{place}: {what}" for place, query in asked for what in complaints(query, metrics, recorded)]
    wrong += untested(alerts)
    wrong += untested_scaling()
    wrong += misplaced(rules, {page: (ROOT / "docs" / page).read_text() for page in RUNBOOKS})
    dashboard = json.loads(DASHBOARD.read_text())["panels"]
    wrong += [*undescribed(dashboard), *mixed_up(dashboard, recorded_labels(rules)), *unseen(metrics, asked)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(asked)} queries ask only for what exists; {len(alerts)} alerts are tested and documented")


if __name__ == "__main__":
    print(as_rules()) if "--as-rules" in sys.argv else main()
