"""The packages: their contents, and that they work without the rest of the repository."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import croupier

PYTHON = pathlib.Path(__file__).resolve().parents[1]
BUILD = """
import sys
from setuptools import build_meta
at = sys.argv[1]  # The first build changes it.
print(build_meta.build_wheel(at), build_meta.build_sdist(at))
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(source, at):
    """The wheel and the sdist, built with the hooks that every standard tool calls."""
    names = run(sys.executable, "-c", BUILD, str(at), cwd=source).split()[-2:]
    return [at / name for name in names]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    pytest.importorskip("setuptools", "77", reason="there is no setuptools to build with")
    at = tmp_path_factory.mktemp("packages")
    # Build elsewhere, so that nothing is left in the source tree.
    shutil.copytree(PYTHON, at / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    return built(at / "source", at)


def modules():
    files = (PYTHON / "croupier").rglob("*")
    return {str(file.relative_to(PYTHON)) for file in files if file.suffix in (".py", ".pyi", ".binpb", ".typed") or file.name == "py.typed"}


def test_wheel_and_sdist_have_all_files(packages, tmp_path):
    wheel, sdist = packages
    assert wheel.name == f"croupier_client-{croupier.__version__}-py3-none-any.whl"
    assert sdist.name == f"croupier_client-{croupier.__version__}.tar.gz"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("croupier_client-")}
    assert names == modules() and {"croupier/sampler.binpb", "croupier/py.typed", "croupier/params.py", "croupier/_messages.pyi"} <= names
    metadata = zipfile.ZipFile(wheel).read(f"croupier_client-{croupier.__version__}.dist-info/METADATA").decode()
    for line in ("Name: croupier-client", "License-Expression: Apache-2.0", "Requires-Python: >=3.10", "# Croupier from Python",
                 *(f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13))):
        assert line in metadata
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = tmp_path.iterdir()
    assert (source / "LICENSE").read_text().lstrip().startswith("Apache License")
    again, _ = built(source, tmp_path)
    contents = [{name: zipfile.ZipFile(each).read(name) for name in names} for each in (wheel, again)]
    assert contents[0] == contents[1]


def test_the_wheel_works_by_itself(packages, tmp_path, server):
    venv.create(tmp_path, with_pip=False)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    # Install as pip would: the wheel has no scripts to run.
    zipfile.ZipFile(packages[0]).extractall(site)
    # Its dependencies are already installed here.
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    said = run(str(tmp_path / "bin" / "python"), "-c", f"""
import importlib.metadata, croupier
print(croupier.__file__)
print(importlib.metadata.version("croupier-client"))
with croupier.connect({server.uds!r}, 100) as stream:
    print(stream.sample([[0.0] * 99 + [9.0]], [stream.open(croupier.SamplingParams(temperature=0))]))
""", cwd=tmp_path, env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"})
    assert said.split() == [str(site / "croupier" / "__init__.py"), croupier.__version__, "[99]"]


@pytest.mark.parametrize("first", ["import croupier", "from croupier.v1 import sampler_pb2"])
def test_generated_stubs_can_be_imported_beside_it(tmp_path, first):
    proto = PYTHON.parent / "proto"
    run(sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}",
        "croupier/v1/sampler.proto")
    said = run(sys.executable, "-c", f"""
{first}
import croupier
from croupier.v1 import sampler_pb2, sampler_pb2_grpc
own = croupier.SamplingParams(temperature=0.5).to_pb()
print(sampler_pb2.SamplingParams.FromString(own.SerializeToString()).temperature)
""", env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PYTHON}"})
    assert said.strip() == "0.5"
