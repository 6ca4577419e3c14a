"""Checks of the chart that helm-unittest cannot do. Arguments: a copy of helm/ with dependencies built, and `--bless` to
write the golden manifests again."""

import difflib
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHARTS = pathlib.Path(sys.argv[1])
# The oldest version that the chart's kubeVersion allows, and the newest that the validator knows.
VERSIONS = ["1.29.1", "1.37.0"]
# Settings that the chart itself makes.
OWN_SETTINGS = {"listen", "uds", "admin", "lame_duck", "drain_timeout", "tls_cert", "tls_key", "tls_client_ca", "auth_token_file",
                "presets", "vocabulary", "otlp_endpoint", "otlp_ca", "trace_ratio"}
# Kinds of the Prometheus operator, KEDA and cert-manager, which are not in Kubernetes' schemas.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "Certificate"}
# The chart and values of each recipe.
RECIPES = {
    "service": ("croupier", "service.yaml"),
    "service-tls": ("croupier", "service-tls.yaml"),
    "service-certificate": ("croupier", "service-certificate.yaml"),
    "service-gpu": ("croupier", "service-gpu.yaml"),
    "sidecar-gpu": ("examples/worker", "sidecar-gpu.yaml"),
    "service-hpa": ("croupier", "service-hpa.yaml"),
    "service-keda": ("croupier", "service-keda.yaml"),
    "sidecar": ("examples/worker", "sidecar.yaml"),
}


# Recipes that need a newer Kubernetes than the chart: dynamic resource allocation.
SINCE = {"sidecar-gpu": "1.34.0"}


def template(chart, *flags, release="example", namespace="inference"):
    command = ["helm", "template", release, str(CHARTS / chart), "--namespace", namespace, *flags]
    return subprocess.run(command, capture_output=True, text=True)


def manifests(recipe):
    """The manifest of a recipe, as text and as objects."""
    chart, values = RECIPES[recipe]
    done = template(chart, "--values", str(HERE / "values" / values))
    if done.returncode:
        sys.exit(f"{recipe}: {done.stderr}")
    return done.stdout, [o for o in yaml.safe_load_all(done.stdout) if o]


def invalid(recipe, objects):
    """Yields errors that Kubernetes would find."""
    for version in [SINCE[recipe], VERSIONS[-1]] if recipe in SINCE else VERSIONS:
        for o in objects:
            if o["kind"] in FOREIGN:
                continue
            try:
                kubernetes_validate.validate(o, version, strict=True)
            except kubernetes_validate.ValidationError as e:
                yield f"{recipe}: {o['kind']} {o['metadata']['name']} is not valid for Kubernetes {version}: {e.message} at {list(e.path)}"


def blind():
    """Yields an error if the check cannot fail."""
    broken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "broken"}, "spec": {"ports": [{"prot": 1}]}}
    if len(list(invalid("a broken Service", [broken]))) != len(VERSIONS):
        yield "a broken Service passed as valid"


def changed(recipe, text, bless):
    path = HERE / "golden" / f"{recipe}.yaml"
    # Rules and dashboard have their own tests.
    text = "".join(part for part in re.split(r"(?m)^(?=---$)", text) if "kind: PrometheusRule" not in part and "-dashboard\n" not in part)
    if bless:
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    diff = list(difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), recipe, lineterm=""))
    if diff:
        yield "\n".join(diff) + "\nIf this is intended: scripts/helm-check --bless"


def refusals():
    """Values that must be refused, with words from the message."""
    for case in yaml.safe_load((HERE / "refused.yaml").read_text()):
        flags = case.get("flags", []) + [flag for value in case["set"] for flag in ("--set", value)]
        done = template(case.get("chart", "croupier"), *flags, release=case.get("release", "example"))
        if done.returncode == 0:
            yield f"{flags} is not refused"
        elif case["says"] not in done.stderr:
            yield f"{flags} is refused, but for another reason: {done.stderr}"


def settings():
    """The schema has the program's settings and no others, and the program's version."""
    schema = json.loads((ROOT / "helm/croupier/values.schema.json").read_text())
    page = (ROOT / "docs/configuration.md").read_text()
    program = set(re.findall(r"^\| `--[^|]*\| `CROUPIER_\w+` \| `(\w+)` \|", page, re.M)) - OWN_SETTINGS
    chart = set(schema["properties"]["config"]["properties"])
    yield from (f"the schema has no setting {name}" for name in program - chart)
    yield from (f"the schema has a setting {name} that the program does not have" for name in chart - program)
    program = set(re.findall(r"^\| `(\w+)` \| `[^`]*` \|$", page, re.M))
    chart = set(schema["properties"]["defaults"]["properties"])
    if program != chart:
        yield f"default parameters of program and schema differ: {program ^ chart}"
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    about = yaml.safe_load((ROOT / "helm/croupier/Chart.yaml").read_text())
    if about["appVersion"] != version:
        yield f"appVersion is {about['appVersion']}, the program's version {version}"


def ranges():
    """The chart accepts the smallest and the largest values that the server accepts. Values outside are among the refusals."""
    file = yaml.safe_load((ROOT / "helm/croupier/files/ranges.yaml").read_text())
    for end in (0, -1):
        config = {name: both[end] for settings in file.values() for name, both in settings.items()}
        done = template("croupier", "--set-json", f"config={json.dumps(config)}")
        if done.returncode:
            yield f"an end of the server's ranges is refused: {done.stderr}"


def relations():
    """Of two settings the first may be as large as the second, but no larger. If a variable sets one of them, this is not checked."""
    for lower, upper in yaml.safe_load((ROOT / "helm/croupier/files/relations.yaml").read_text()):
        for more, variables in [(0, []), (1, []), (1, [lower]), (1, [upper])]:
            config = {lower: 1048575 + more, upper: 1048575}
            env = [{"name": f"CROUPIER_{name.upper()}", "value": "1"} for name in variables]
            done = template("croupier", "--set-json", f"config={json.dumps(config)}", "--set-json", f"extraEnv={json.dumps(env)}")
            if (done.returncode != 0) != (more > 0 and not variables):
                yield f"{config} with {env}: {done.stderr or 'is taken'}"


def defaults():
    """The chart calculates with the program's defaults."""
    page = (ROOT / "docs/configuration.md").read_text()
    program = dict(re.findall(r"^\| `--[^|]*\| `CROUPIER_\w+` \| `(\w+)` \| `([^`]*)` \|", page, re.M))
    chart = yaml.safe_load((ROOT / "helm/croupier/files/defaults.yaml").read_text())
    yield from (f"the default of {name} is {program.get(name)}, not {value}" for name, value in chart.items() if program.get(name) != str(value))


def texts():
    """Texts reach the server unchanged, whatever characters they have."""
    told = "".join(map(chr, range(1, 0xa1))) + r"\u2028 \x41 \\x41 \a \u005c"
    done = template("croupier", "--set-json", f"presets.x={json.dumps({'description': told})}", "--show-only=templates/configmap.yaml")
    if done.returncode:
        yield f"a text is refused: {done.stderr}"
    elif tomllib.loads(yaml.safe_load(done.stdout)["data"]["presets.toml"])["x"]["description"] != told:
        yield "a text is changed in the ConfigMap"


# Names that YAML takes for numbers or switches if they are not in quotes.
ODD = {
    "croupier": {
        "nameOverride": "no", "fullnameOverride": "on", "priorityClassName": "1e3", "runtimeClassName": "0x1",
        "serviceAccount": {"name": "1234"}, "tls": {"existingSecret": "true", "clientAuth": {"enabled": True, "existingSecret": "12", "key": "yes"}},
        "auth": {"existingSecret": "off", "key": "on"}, "watermark": {"existingSecret": "null"},
        "tracing": {"endpoint": "https://c:1", "caSecret": "1.5", "caKey": "no"}, "serviceMonitor": {"enabled": True},
        "gpu": {"mode": "claim", "claim": {"name": "5", "deviceClassName": "6", "existingTemplate": "7"}},
        "resources": {"limits": {"cpu": 1}}, "autoscaling": {"hpa": {"enabled": True}},
    },
    "examples/worker": {"croupier": {
        "fullnameOverride": "off", "sidecar": {"containerName": "yes", "socketVolume": "8"}, "watermark": {"existingSecret": "null"},
        "gpu": {"mode": "claim", "claim": {"name": "5", "deviceClassName": "6"}}, "podMonitor": {"enabled": True},
    }},
}


def odd_names():
    """Yields errors that Kubernetes would find in manifests with such names, or with a release whose name has a dot."""
    for chart, values in ODD.items():
        flags = [flag for key, value in values.items() for flag in ("--set-json", f"{key}={json.dumps(value)}")]
        done = template(chart, *flags, "--kube-version=1.37.0", release="123", namespace="456")
        if done.returncode:
            yield f"odd names are refused: {done.stderr}"
            continue
        objects = [o for o in yaml.safe_load_all(done.stdout) if o]
        yield from invalid("sidecar-gpu", objects)
        yield from (f"{o['kind']} {o['metadata']} has a name that is no text" for o in objects
                    if not all(isinstance(o["metadata"][key], str) for key in ("name", "namespace")))
    names = re.findall(r"(?m)^  name: (.*)$", template("croupier", release="a.b").stdout)
    yield from (f"the release a.b makes an object {name}" for name in names if "." in name)


def injected():
    """The manifests that `croupier inject` makes from those in tests/inject, as tests/inject/mod.rs checks them."""
    files = sorted((ROOT / "tests/inject").glob("*.injected.yaml"))
    for path in files:
        objects = [o for o in yaml.safe_load_all(path.read_text()) if o]
        yield path.name, [item for o in objects for item in (o["items"] if o["kind"] == "List" else [o])]
    if len(files) < 3:
        sys.exit("tests/inject has no injected manifests")


def open_schemas(schema, path="values"):
    """Yields objects of the schema that accept any key, although they are not objects of Kubernetes."""
    if schema.get("type") == "object" and "properties" in schema and schema.get("additionalProperties") is not False:
        yield f"{path} takes unknown keys"
    for name, inner in schema.get("properties", {}).items():
        yield from open_schemas(inner, f"{path}.{name}")


def files_differ(objects):
    """The PrometheusRule has all groups of files/rules.yaml, unchanged; the ConfigMap has the dashboard."""
    file = yaml.safe_load((ROOT / "helm/croupier/files/rules.yaml").read_text())["groups"]
    rule = next(o for o in objects if o["kind"] == "PrometheusRule")
    if rule["spec"]["groups"] != file:
        yield "the PrometheusRule differs from files/rules.yaml"
    dashboard = next(o for o in objects if o["metadata"]["name"].endswith("-dashboard"))
    if json.loads(dashboard["data"]["croupier.json"]) != json.loads((ROOT / "helm/croupier/files/dashboard.json").read_text()):
        yield "the dashboard's ConfigMap differs from files/dashboard.json"


def slow_steps():
    """`prometheusRule.slowStepSeconds` may be any edge of the histogram, and nothing else. Rules and dashboard then say so everywhere, and
    match the edge as Prometheus 2 has it, which is as the server writes it, and as Prometheus 3 does."""
    lists = re.search(r"const STEP_SECONDS: &\[f64\] = &\[([^\]]*)\]", (ROOT / "src/metrics/catalog.rs").read_text())[1]
    edges = [float(edge) for edge in re.findall(r"[\d._e-]+", lists)]
    schema = json.loads((ROOT / "helm/croupier/values.schema.json").read_text())
    taken = schema["properties"]["prometheusRule"]["properties"]["slowStepSeconds"]["enum"]
    if taken != edges:
        yield f"slowStepSeconds may be {taken}, and the histogram has the edges {edges}"
    told = {0.05: ("0.05", "0.05", "50 ms"), 1: ("1", "1.0", "1 s"), 2.5: ("2.5", "2.5", "2.5 s"), 10: ("10", "10.0", "10 s"),
            0.00015: ("0.00015", "0.00015", "0.15 ms"), 0.000075: ("0.000075", "7.5e-05", "0.075 ms")}
    for seconds, (two, three, words) in told.items():
        flags = [f"prometheusRule={{\"enabled\":true,\"slowStepSeconds\":{seconds:f}}}", 'dashboard={"enabled":true}']
        done = template("croupier", *(part for flag in flags for part in ("--set-json", flag)))
        if done.returncode:
            yield f"slowStepSeconds {seconds} is refused: {done.stderr}"
            continue
        objects = [o for o in yaml.safe_load_all(done.stdout) if o]
        rules = json.dumps(next(o for o in objects if o["kind"] == "PrometheusRule")["spec"])
        dashboard = json.loads(next(o for o in objects if o["metadata"]["name"].endswith("-dashboard"))["data"]["croupier.json"])
        for what, text, edges_asked, times_told in [("rules", rules, 6, 3), ("dashboard", json.dumps(dashboard), 2, 2)]:
            asked = re.findall(r'le=(~?)\\"([^"]*)\\"', text)
            matches = [edge for kind, of in asked for edge in (two, three) if (re.fullmatch(of, edge) if kind else of == edge)]
            others = [edge for kind, of in asked for edge in map(str, edges) if float(edge) != seconds and re.fullmatch(of, edge)]
            if len(asked) != edges_asked or len(matches) != 2 * edges_asked or others or (two == three) != (asked[0][0] == ""):
                yield f"the {what} with slowStepSeconds {seconds} ask for {asked}"
            if len(re.findall(rf"\b{re.escape(words)}\b", text)) != times_told or (seconds != 0.025 and re.search(r"\b25 ms|\b0\.025\b", text)):
                yield f"the {what} with slowStepSeconds {seconds} do not say {words} {times_told} times"
        steps = next(p for p in dashboard["panels"] if "The objective is" in p.get("description", ""))["fieldConfig"]["defaults"]["thresholds"]["steps"]
        if [step["value"] for step in steps[1:]] != [round(0.4 * seconds, 9), seconds]:
            yield f"the colours of the dashboard with slowStepSeconds {seconds}: {steps}"


def main():
    bless = "--bless" in sys.argv
    wrong = [*blind(), *settings(), *ranges(), *relations(), *defaults(), *texts(), *refusals(), *odd_names(), *slow_steps()]
    wrong += open_schemas(json.loads((ROOT / "helm/croupier/values.schema.json").read_text()))
    checked, foreign = 0, set()
    for recipe in RECIPES:
        text, objects = manifests(recipe)
        wrong += [*invalid(recipe, objects), *changed(recipe, text, bless)]
        foreign |= {o["kind"] for o in objects} & FOREIGN
        checked += sum(o["kind"] not in FOREIGN for o in objects)
        if recipe == "service":
            wrong += files_differ(objects)
    for name, objects in injected():
        wrong += invalid(name, objects)
        checked += len(objects)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{checked} objects of {len(RECIPES)} recipes and of injected manifests are valid for Kubernetes {' and '.join(VERSIONS)}")
    print(f"not checked against a schema, since none is available: {', '.join(sorted(foreign))}")


if __name__ == "__main__":
    main()
