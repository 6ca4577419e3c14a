"""The program accepts what the chart gives it: for each recipe a server is started with the configuration and the flags of the
golden manifest, its probes are run, and it is stopped. Arguments: the croupier binary, and a folder with server.pem,
server.key and client.pem from trustme."""

import pathlib
import shutil
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
#: Longer than a server takes to start on a busy machine, in seconds.
NEVER = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def container(objects):
    pod = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
    return (pod.get("initContainers") or pod["containers"])[0]


def asked(probe, binary, here):
    """Whether a probe succeeds."""
    if "exec" in probe:
        command = [here(word) for word in probe["exec"]["command"]]
        try:
            return subprocess.run([binary, *command[1:]], capture_output=True, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False
    try:
        return urllib.request.urlopen(here(f"http://127.0.0.1:9464{probe['httpGet']['path']}"), timeout=5).status == 200
    except OSError:
        return False


def is_content(probe, binary, here):
    """The same, but a failed probe is repeated, as the kubelet does before it counts as failed."""
    return any(asked(probe, binary, here) or time.sleep(0.2) for _ in range(3))


def stopped(server):
    """Stops the server, and returns what it wrote."""
    server.send_signal(signal.SIGTERM)
    try:
        return server.communicate(timeout=NEVER)[1]
    except subprocess.TimeoutExpired:
        server.kill()
        return server.communicate()[1] + "\nkilled, since it did not stop"


def mount(secrets, folder):
    """Writes the secrets of the recipes as the kubelet mounts them. Returns the folder for each path."""
    mounts = {"/etc/croupier-tls": "tls", "/etc/croupier-clients": "clients", "/etc/croupier-tokens": "tokens", "/etc/croupier-collector": "collector"}
    for name in mounts.values():
        (folder / name).mkdir()
    for file, to in [("server.pem", "tls/tls.crt"), ("server.key", "tls/tls.key"), ("client.pem", "clients/ca.crt"),
                     ("client.pem", "collector/ca.crt")]:
        shutil.copy(secrets / file, folder / to)
    (folder / "tokens/tokens").write_text("a-token-of-this-test\n")
    return {there: str(folder / name) for there, name in mounts.items()}


def serve(recipe, binary, secrets, folder):
    objects = [o for o in yaml.safe_load_all((GOLDEN / f"{recipe}.yaml").read_text()) if o]
    settings = next(o["data"]["croupier.toml"] for o in objects if o["kind"] == "ConfigMap" and "croupier.toml" in o["data"])
    (folder / "croupier.toml").write_text(settings)
    # Longer paths come first, because the last one is a part of them.
    moved = {**mount(secrets, folder), "/etc/croupier": str(folder), "/run/croupier": str(folder), "50051": free_port(), "9464": free_port()}
    # There may be no GPU here. The program at least has to know the flag.
    moved["--backend=cuda"] = "--backend=auto"

    def here(text):
        for there, place in moved.items():
            text = text.replace(there, place)
        return text

    own = container(objects)
    server = subprocess.Popen([binary, *map(here, own["args"])], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + NEVER
        while not asked(own["startupProbe"], binary, here) and server.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        failed = [name for name in PROBES if not is_content(own[name], binary, here)]
        socket_file = folder / "croupier.sock"
        if socket_file.exists() and stat.S_IMODE(socket_file.stat().st_mode) != 0o660:
            failed.append("the socket's mode")
    finally:
        log = stopped(server)
    if failed or server.returncode:
        sys.exit(f"{recipe}: {failed} failed, exit code {server.returncode}\n{log}")


def main():
    recipes = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
    assert recipes, "there are no golden manifests"
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as folder:
            serve(recipe, sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(folder))
    print(f"{len(recipes)} recipes: the program accepts their settings and flags, the probes succeed, and it exits with 0")


if __name__ == "__main__":
    main()
