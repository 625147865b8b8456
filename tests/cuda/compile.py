#!/usr/bin/env python3
"""Compiles every CUDA kernel for the GPUs that matter, without a GPU, and holds what each takes against a table.

NVRTC (by ctypes) makes PTX of every source, for each type of activations and each architecture, with the options of
kernels/cuda/nvrtc.options; ptxas assembles it and says what each kernel takes: registers, static shared memory, stack,
spills. Both are from pinned wheels, so the same sources give the same numbers everywhere.

It fails where a kernel spills registers or has a stack (an array that is indexed at run time went to memory), where a
kernel takes other registers or shared memory than the table says, and where the table has a kernel more or less.

Usage: compile.py [--sources FOLDER] [--table FILE] [--update]; run it with the python of a virtual environment that
has the wheels (check.sh makes one).
"""

import argparse
import concurrent.futures
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHITECTURES = ["90", "100"]
# The type of activations, and its short name in the table.
REALS = {"float": "f32", "bf16": "bf16"}
COLUMNS = ["source", "kernel", "real", "sm", "registers", "shared"]


class Failed(Exception):
    """What a user is told."""


def toolkit():
    """The folder of NVIDIA's wheels beside this python."""
    for path in map(pathlib.Path, sys.path):
        if (path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13").exists():
            return path / "nvidia" / "cu13"
    raise Failed("NVIDIA's compiler is not installed beside this python; run tests/cuda/check.sh")


class Nvrtc:
    """NVIDIA's run-time compiler: source in, PTX out."""

    def __init__(self, root):
        # It opens its builtins by name.
        os.environ["LD_LIBRARY_PATH"] = f"{root / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        for name in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]:
            library = ctypes.CDLL(str(root / "lib" / name), mode=ctypes.RTLD_GLOBAL)
        self.library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def check(self, code, log=""):
        if code != 0:
            raise Failed(f"{self.library.nvrtcGetErrorString(code).decode()}\n{log}")

    def text(self, size, get, program):
        length = ctypes.c_size_t()
        self.check(size(program, ctypes.byref(length)))
        buffer = ctypes.create_string_buffer(length.value)
        self.check(get(program, buffer))
        return buffer.value

    def compile(self, source, options):
        program, nvrtc = ctypes.c_void_p(), self.library
        self.check(
            nvrtc.nvrtcCreateProgram(
                ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
            )
        )
        try:
            array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            code = nvrtc.nvrtcCompileProgram(program, len(options), array)
            log = self.text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
            self.check(code, log)
            if "warning" in log:
                raise Failed(log)
            return self.text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def assemble(ptxas, ptx, architecture):
    """What each kernel of the PTX takes, by name."""
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(work) / "kernels.ptx"
        source.write_bytes(ptx)
        command = [ptxas, "-v", f"-arch=sm_{architecture}", "-o", str(source.with_suffix(".cubin")), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr)
    return read_report(done.stderr)


def read_report(text):
    """Reads ptxas's report: a kernel's name, then its stack and spills, then what else it takes."""
    found, kernel = {}, None
    for line in text.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found.setdefault(entry[1], {"shared": 0})
        elif frame := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel["stack"], kernel["stores"], kernel["loads"] = map(int, frame.groups())
        elif used := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(used[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                kernel["shared"] = int(shared[1])
    for name, kernel in found.items():
        if not {"stack", "registers"} <= kernel.keys():
            raise Failed(f"ptxas's report says nothing of {name}:\n{text}")
    return found


def compile_all(sources, options, workers):
    """What each kernel takes: {(source, kernel, real, sm): resources}."""
    root = toolkit()
    nvrtc = Nvrtc(root)
    print(f"NVRTC {nvrtc.version()}, {len(sources)} sources", flush=True)

    def one(job):
        source, real, architecture = job
        own = [*options, f"--gpu-architecture=compute_{architecture}", f"-I{source.parent}", f"-DREAL={real}"]
        try:
            kernels = assemble(str(root / "bin" / "ptxas"), nvrtc.compile(source, own), architecture)
        except Failed as failed:
            raise Failed(f"{source.name} for sm_{architecture}, {real}: {failed}") from None
        return {(source.name, name, REALS[real], architecture): taken for name, taken in kernels.items()}

    jobs = [(s, r, a) for s in sources for r in REALS for a in ARCHITECTURES]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for part in pool.map(one, jobs):
            found.update(part)
    return found


def declared(sources):
    """Kernels that the sources declare: each must come out of the compiler."""
    pattern = re.compile(r"^KERNEL(_JOINED)?(?:_OF)?\((\w+)", re.MULTILINE)
    found = [(s.name, *kernel) for s in sources for kernel in pattern.findall(s.read_text())]
    return {(s, name) for s, _, name in found} | {(s, f"{name}_joined") for s, joined, name in found if joined}


def lines(found):
    for key in sorted(found):
        yield "\t".join([*key, str(found[key]["registers"]), str(found[key]["shared"])])


def differences(found, table):
    """What is wrong: spills and stacks, and where the table says otherwise."""
    for key in sorted(found):
        taken, name = found[key], " ".join(key)
        if taken["stores"] or taken["loads"]:
            yield f"{name}: spills {taken['stores']} bytes, and loads {taken['loads']} of them again"
        elif taken["stack"]:
            yield f"{name}: a stack of {taken['stack']} bytes; is an array indexed at run time?"
    now, then = ({tuple(line.split("\t")[:4]): line for line in t} for t in (lines(found), table))
    for key in sorted(now.keys() | then.keys()):
        name = " ".join(key)
        if key not in then:
            yield f"{name}: not in the table"
        elif key not in now:
            yield f"{name}: in the table, not in the sources"
        elif now[key] != then[key]:
            takes, said = (" and ".join(t.split("\t")[4:]) for t in (now[key], then[key]))
            yield f"{name}: registers and shared memory are {takes}, the table says {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=pathlib.Path, default=HERE.parent.parent / "kernels" / "cuda")
    parser.add_argument("--table", type=pathlib.Path, default=HERE / "resources.tsv")
    parser.add_argument("--update", action="store_true", help="write the table anew; spills fail all the same")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    sources = sorted(options.sources.glob("*.cu"))
    if not sources:
        raise Failed(f"no sources in {options.sources}")
    found = compile_all(sources, (options.sources / "nvrtc.options").read_text().split(), options.workers)
    made = {(source, kernel) for source, kernel, *_ in found}
    if odd := made ^ declared(sources):
        raise Failed("declared by KERNEL and not compiled, or the other way: " + ", ".join(" ".join(o) for o in sorted(odd)))
    if options.update:
        options.table.write_text("\n".join(["\t".join(COLUMNS), *lines(found)]) + "\n")
    if not options.table.exists():
        raise Failed(f"{options.table} is missing; --update writes it")
    table = options.table.read_text().splitlines()[1:]
    if wrong := list(differences(found, table)):
        raise Failed("\n".join(wrong) + "\nIf that is meant, run tests/cuda/check.sh --update and look at the changes.")
    registers = max(found.values(), key=lambda taken: taken["registers"])["registers"]
    print(f"{len(made)} kernels, {len(found)} compilations: no spills, no stacks, at most {registers} registers")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"compile.py: {failed}")
