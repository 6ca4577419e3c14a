"""The program takes what the chart gives it: for each recipe a server is started with the configuration and the flags of the
golden manifest, its probes are asked, and it is stopped. Argument: the croupier binary."""

import pathlib
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request

import yaml

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
PROBES = ["startupProbe", "livenessProbe", "readinessProbe"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def container(objects):
    pod = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
    return (pod.get("initContainers") or pod["containers"])[0]


def asked(probe, binary, here):
    """Whether a probe is content."""
    if "exec" in probe:
        command = [here(word) for word in probe["exec"]["command"]]
        return subprocess.run([binary, *command[1:]], capture_output=True, timeout=10).returncode == 0
    try:
        return urllib.request.urlopen(here(f"http://127.0.0.1:9464{probe['httpGet']['path']}"), timeout=5).status == 200
    except OSError:
        return False


def serve(recipe, binary, folder):
    objects = [o for o in yaml.safe_load_all((GOLDEN / f"{recipe}.yaml").read_text()) if o]
    settings = next(o["data"]["croupier.toml"] for o in objects if o["kind"] == "ConfigMap" and "croupier.toml" in o["data"])
    (folder / "croupier.toml").write_text(settings)
    moved = {"/etc/croupier": str(folder), "/run/croupier": str(folder), "50051": free_port(), "9464": free_port()}

    def here(text):
        for there, place in moved.items():
            text = text.replace(there, place)
        return text

    own = container(objects)
    server = subprocess.Popen([binary, *map(here, own["args"])], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while not asked(own["startupProbe"], binary, here) and server.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        failed = [name for name in PROBES if not asked(own[name], binary, here)]
        socket_file = folder / "croupier.sock"
        if socket_file.exists() and stat.S_IMODE(socket_file.stat().st_mode) != 0o660:
            failed.append("the socket's mode")
    finally:
        server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=40)[1]
    if failed or server.returncode:
        sys.exit(f"{recipe}: {failed} failed, exit code {server.returncode}\n{log}")


def main():
    recipes = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
    assert recipes, "there are no golden manifests"
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as folder:
            serve(recipe, sys.argv[1], pathlib.Path(folder))
    print(f"{len(recipes)} recipes: the program takes their settings and flags, probes say yes, and it stops with 0")


if __name__ == "__main__":
    main()
