"""Compiles a kernel with NVRTC, to PTX for compute_N or machine code for sm_N:
nvrtc.py LIBRARY SOURCE ARCHITECTURE OUTPUT FLAG..."""

import ctypes
import sys
from pathlib import Path

library_path, source, architecture, output, *flags = sys.argv[1:]
nvrtc = ctypes.CDLL(library_path)


def check(code, what):
    if code != 0:
        raise SystemExit(f"NVRTC: {what} failed with {code}")


is_ptx = architecture.startswith("compute_")
if not is_ptx:
    flags += ["--ptxas-options=-warn-spills", "--ptxas-options=-warn-lmem-usage"]
options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={Path(source).parent}", *flags]
program = ctypes.c_void_p()
text = Path(source).read_bytes()
check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, Path(source).name.encode(), 0, None, None), "creating")
code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))


def taken(size_of, get):
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)), "asking for a size")
    buffer = ctypes.create_string_buffer(size.value)
    check(get(program, buffer), "getting")
    return buffer.raw


log = taken(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode().strip()
if log:
    print(log, file=sys.stderr)
check(code, "compiling")
if "warning" in log:
    raise SystemExit("NVRTC warns")
if is_ptx:
    code = taken(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0")
    version = next(line for line in code.decode().splitlines() if line.startswith(".version"))
    if version.split()[1] != "8.2":
        raise SystemExit(f"PTX {version}: drivers of R535 read no more than 8.2")
else:
    code = taken(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
Path(output).write_bytes(code)
print(f"{output}: {architecture}, {len(code)} bytes")
