"""Draws the dashboard as docs/dashboard.svg: every panel in its place, with the answers of a real Prometheus to its queries while a
live server is under the load of live.py. Grafana does not draw it, but queries, units, legends and thresholds are the dashboard's.

Arguments: the croupier binary, the prometheus binary, a folder with server.pem and server.key (trustme), the file to write."""

import html
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from live import CHART, ROOT, Prometheus, free_port, get, until
from load import TEXTS, Structured, Worker, stubs

SECONDS, STEP = 120, 2
# Pixels per column and row of Grafana's grid.
COLUMN, ROW = 50, 24
COLORS = ["#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#cca300"]
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "text": "#d8d9da"}
MOST_SERIES = 8


def shown(value, unit):
    """A number, nearly as Grafana writes it."""
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "s":
        steps = [(86400, 86400, "days"), (3600, 3600, "h"), (60, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms"), (0, 1e-6, "us")]
        _, factor, name = next(step for step in steps if abs(value) >= step[0])
        return f"{value / factor:.3g} {name}"
    names = {"bytes": ["B", "KiB", "MiB", "GiB"], "Bps": ["B/s", "kB/s", "MB/s", "GB/s"]}.get(unit, ["", "K", "Mil", "Bil"])
    base = 1024 if unit == "bytes" else 1000
    power = min(int(math.log(abs(value), base)), 3) if abs(value) >= base else 0
    return f"{value / base**power:.3g} {names[power]}".strip()


def queries(panel):
    for target in panel["targets"]:
        query = re.sub(r"\$(namespace|job|instance|model)\b", ".*", target["expr"].replace("$__rate_interval", "10s"))
        yield query, target["legendFormat"]


def series(prometheus, panel, begin, end):
    """Yields the names and points of a panel's lines."""
    for query, legend in queries(panel):
        asked = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": STEP})
        for line in json.loads(get(f"{prometheus.url}/api/v1/query_range?{asked}"))["data"]["result"]:
            name = re.sub(r"{{(\w+)}}", lambda m: line["metric"].get(m[1], ""), legend)
            name = re.sub(r"127\.0\.0\.1:\d+", "croupier-0", name)
            points = [(t, float(v)) for t, v in line["values"] if math.isfinite(float(v))]
            if points:
                yield name, points


def text(x, y, words, size=11, color="#d8d9da", anchor="start", bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>{html.escape(words)}</text>'


def stat(panel, lines, x, y, w, h):
    defaults = panel["fieldConfig"]["defaults"]
    value = lines[0][1][-1][1]
    steps = defaults.get("thresholds", {}).get("steps", [{"color": "green", "value": None}])
    color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
    words = shown(value, defaults["unit"])
    for mapping in defaults.get("mappings", []):
        if found := mapping["options"].get(f"{value:g}"):
            words, color = found["text"], found["color"]
    yield text(x + w / 2, y + h / 2 + 16, words, 26, NAMED[color], "middle", True)


def graph(panel, lines, x, y, w, h, begin, end):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    values = [v for _, points in lines for _, v in points]
    low, high = min(values + [panel["fieldConfig"]["defaults"].get("min", min(values))]), max(values)
    high = high if high > low else low + 1
    left, top, width, height = x + 52, y + 26, w - 62, h - 48
    for part in (0, 0.5, 1):
        at = top + height * (1 - part)
        yield f'<path d="M{left:.0f} {at:.0f}h{width:.0f}" stroke="#2c2e33"/>'
        yield text(left - 4, at + 3, shown(low + (high - low) * part, unit), 9, "#8e8e8e", "end")
    legend = left - 44
    for color, (name, points) in zip(COLORS, lines):
        places = [(left + width * (t - begin) / (end - begin), top + height * (1 - (v - low) / (high - low))) for t, v in points]
        path = " ".join(f"{px:.0f},{py:.0f}" for px, py in places)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.3"/>'
        name = name if len(name) <= 30 else f"{name[:29]}…"
        if legend + 14 + 5.4 * len(name) < x + w:
            yield f'<path d="M{legend:.0f} {y + h - 10}h8" stroke="{color}" stroke-width="2"/>' + text(legend + 11, y + h - 7, name, 9)
        legend += 20 + 5.4 * len(name)


def drawn(prometheus, panels, begin, end):
    for panel in panels:
        grid = panel["gridPos"]
        x, y, w, h = grid["x"] * COLUMN, grid["y"] * ROW, grid["w"] * COLUMN, grid["h"] * ROW
        if panel["type"] == "row":
            yield text(x + 6, y + 17, f"⌄ {panel['title']}", 13, bold=True)
            continue
        yield f'<rect x="{x + 2}" y="{y + 2}" width="{w - 4}" height="{h - 4}" rx="2" fill="#181b1f" stroke="#2c2e33"/>'
        yield text(x + 10, y + 18, panel["title"], bold=True)
        lines = list(series(prometheus, panel, begin, end))[:MOST_SERIES]
        if not lines:
            yield text(x + w / 2, y + h / 2, "No data", 11, "#8e8e8e", "middle")
        else:
            yield from stat(panel, lines, x, y, w, h) if panel["type"] == "stat" else graph(panel, lines, x, y, w, h, begin, end)


def picture(prometheus, begin, end):
    panels = json.loads((CHART / "dashboard.json").read_text())["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) * ROW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * COLUMN} {height}" font-family="Inter, Helvetica, Arial, sans-serif">',
             f'<rect width="{24 * COLUMN}" height="{height}" fill="#111217"/>', *drawn(prometheus, panels, begin, end), "</svg>\n"]
    return "\n".join(parts)


def main():
    croupier, binary, secrets, out = sys.argv[1:]
    port, admin = free_port(), f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        stubs(ROOT / "proto", folder)
        (folder / "texts.json").write_text(json.dumps(TEXTS))
        # The load comes over the socket; TLS is on for its certificate. No collector listens, so spans pile up.
        flags = ["--listen", f"127.0.0.1:{port}", "--uds", f"{folder}/s", "--admin", admin, "--log-level", "error",
                 "--tls-cert", f"{secrets}/server.pem", "--tls-key", f"{secrets}/server.key",
                 "--otlp-endpoint", f"http://127.0.0.1:{free_port()}", "--trace-ratio", "0.01",
                 "--grammars", "true", "--vocabulary", f"{folder}/texts.json"]
        processes = [subprocess.Popen([croupier, "serve", *flags])]
        try:
            until("the server", lambda: get(f"http://{admin}/readyz"))
            prometheus = Prometheus(binary, folder, admin)
            processes.append(prometheus.process)
            until("the first scrape", lambda: prometheus.query("croupier_ready"))
            begin = time.time()
            workers = [Worker(f"unix:{folder}/s", model, honest) for model, honest in [("sound", True), ("broken", False)]]
            workers.append(Structured(f"unix:{folder}/s", "structured", True))
            threads = [threading.Thread(target=worker.run, args=(SECONDS,)) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pathlib.Path(out).write_text(picture(prometheus, begin + 10, time.time()))
        finally:
            for process in processes:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
