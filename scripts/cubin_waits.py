"""Proves that in compiled kernels no block reads shared memory of another block that may have exited or may be overwriting it:
cubin_waits.py SASS...

SASS is the output of `nvdisasm -hex` for a cubin for sm_90 or later. There a block reads the shared memory of other blocks with
generic loads, and a cluster barrier does not wait for loads in flight. A load sets one of six scoreboards, and an instruction that
uses the loaded value first waits for that scoreboard. So this script follows all paths from each generic load: an instruction
that waits for its scoreboard must come before the block arrives at a cluster barrier, and before it exits.

A path takes every branch, whatever its condition. Code that cannot be followed is an error too. Stores into another block's
memory are not checked, since the kernels have none.
"""

import re
import sys
from collections import deque
from pathlib import Path
from typing import NamedTuple

# Each instruction takes two lines, with one word of its encoding in each.
FIRST = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*/\* 0x[0-9a-f]{16} \*/$")
SECOND = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/$")
PARTS = re.compile(r"(?:@(!?U?P(?:\d+|T))\s+)?([A-Z][A-Z0-9_.]*)\s*(.*)")
LABEL = re.compile(r"([.$\w]+):$")
NAMED = re.compile(r"`\(([^)]*)\)")
SIZE = 16
NO_SCOREBOARD = 7
# Loads and atomics through generic addresses. These may reach another block's memory, or the compiler cannot exclude it.
READS = {"LD", "ATOM"}
# These also reach another block's memory, but signal their completion in ways that this script does not follow.
UNFOLLOWED_ACCESS = {"UBLKCP", "UBLKRED", "STAS", "REDAS"}
# The control flow that this script follows. No other instruction may name a label, and none of `UNFOLLOWED` may occur: these jump
# or may jump elsewhere.
FOLLOWED = {"BRA", "BRX", "BRXU", "CALL", "RET", "EXIT", "BSSY", "WARPSYNC"}
UNFOLLOWED = {"JMP", "JMX", "JMXU", "RTT", "RPCMOV", "LEPC", "PEXIT", "BMOV", "KILL", "BPT", "PREEXIT"}
WHAT_TO_DO = """A cluster barrier does not wait for loads. Once the block has arrived, the block that it reads from may exit, and a read
from a block that has exited ends the CUDA context; or it may overwrite what is being read. Use what is read from another block
before the next barrier, on every path, even one that does not need the value: `run` in kernels/sample.cu shows how."""


class Unfollowed(Exception):
    """The code does something that this script does not know, so nothing is proved."""


class Instruction(NamedTuple):
    address: int
    guard: str  # None if there is none
    name: str
    operands: str
    sets: int  # the scoreboard that signals when its result is available
    waits: int  # a bit for each scoreboard that it waits for before it starts

    @property
    def kind(self):
        return self.name.split(".")[0]

    def __str__(self):
        text = f"{self.name} {self.operands}".strip()
        return f"@{self.guard} {text}" if self.guard else text

    def is_wait_for(self, scoreboard):
        return bool(self.waits >> scoreboard & 1) or (self.name == "DEPBAR.LE" and self.operands == f"SB{scoreboard}, 0x0")

    def is_arrival(self):
        """True for every cluster barrier instruction that is not known to be something other than an arrival."""
        return "CGABAR" in self.name and self.name != "UCGABAR_WAIT"


def instruction(address, text, second_word):
    parts = PARTS.fullmatch(text)
    if not parts:
        raise Unfollowed(f"{address:#x}: {text!r} is not an instruction")
    # Fields of the upper word from bit 41 on, with their widths in bits: stall 4, yield 1, scoreboard set when the result is written
    # 3, scoreboard set when operands are read 3, scoreboards waited for 6.
    control = int(second_word, 16) >> 41
    return Instruction(address, *parts.groups(), control >> 5 & 7, control >> 11 & 63)


class Section:
    """The code of a kernel, with the functions that it calls."""

    def __init__(self, kernel):
        self.kernel, self.code, self.places, self.functions = kernel, [], {}, []

    def add_label(self, label):
        at = len(self.code)
        self.places[label] = at
        if not label.startswith(".L"):
            self.functions.append((at, label.removeprefix(".text.")))

    def function_of(self, at):
        return [function for start, function in self.functions if start <= at][-1]

    def finish(self):
        """Computes and checks what needs the whole code."""
        self.owners = [self.function_of(at) for at in range(len(self.code))]
        self.returns = {}
        for at, one in enumerate(self.code):
            if one.address != at * SIZE:
                raise self.unfollowed(at, f"it should be at {at * SIZE:#x}")
            if one.kind == "CALL":
                self.returns.setdefault(self.owners[self.callee(at)], []).append(at + 1)
        met = set().union(*[self.meetings(at) for at, one in enumerate(self.code) if one.kind == "BSSY"])
        for at, one in enumerate(self.code):
            if one.kind == "BSYNC" and at not in met:
                raise self.unfollowed(at, "cannot tell which threads meet here")

    def unfollowed(self, at, why):
        return Unfollowed(f"{self.kernel}, {self.code[at].address:#x}: {self.code[at]}: {why}")

    def place(self, at, label):
        if label not in self.places:
            raise self.unfollowed(at, f"{label} is not in this kernel")
        return self.places[label]

    def named(self, at):
        """The index of the only label that an instruction names."""
        names = NAMED.findall(self.code[at].operands)
        if len(names) != 1:
            raise self.unfollowed(at, "it does not name one place")
        return self.place(at, names[0])

    def callee(self, at):
        """The index of the called function, once it is known that it returns to the next instruction: that address was moved into
        a register before."""
        back, to = f", {self.code[at].address + SIZE:#x}", self.named(at)
        before = self.code[max(at - 64, 0) : at]
        if self.code[at].name != "CALL.REL.NOINC" or not any("MOV" in one.name and one.operands.endswith(back) for one in before):
            raise self.unfollowed(at, "cannot tell where this call returns to")
        if all(start != to for start, _ in self.functions):
            raise self.unfollowed(at, "what it calls is not a function")
        return to

    def within(self, at, to):
        """Checks that a branch stays in its function, since a return goes to the callers of the function that contains it."""
        if to >= len(self.code) or self.owners[to] != self.owners[at]:
            raise self.unfollowed(at, "it continues in another function")
        return to

    def next_of(self, at, calls):
        """All pairs (place, calls) that may follow. `calls` are the return addresses, as far as they are known."""
        one = self.code[at]
        if one.kind in UNFOLLOWED or (one.kind not in FOLLOWED and "`(" in one.operands):
            raise self.unfollowed(at, "cannot tell where this continues")
        after, is_always = [], one.guard is None
        if one.kind == "BRA":
            after = [(self.within(at, self.named(at)), calls)]
            # A branch with a condition other than the guard may also fall through.
            is_always = is_always and one.name == "BRA" and NAMED.fullmatch(one.operands)
        elif one.kind in ("BRX", "BRXU"):
            after = [(self.within(at, to), calls) for to in self.branch_targets(at)]
        elif one.kind == "CALL":
            after = [(self.callee(at), (*calls, self.within(at, at + 1)))]
        elif one.kind == "RET":
            after = self.returns_of(at, calls)
        elif one.kind != "EXIT":
            is_always = False
            if one.kind == "WARPSYNC" and "`(" in one.operands:
                after = [(self.within(at, self.named(at)), calls)]
        return after if is_always else [*after, (self.within(at, at + 1), calls)]

    def branch_targets(self, at):
        listed = re.search(r'"BRANCH_TARGETS ([^"]+)"', self.code[at].operands)
        if not listed:
            raise self.unfollowed(at, "the disassembler does not say where this branch goes")
        return [self.place(at, label) for label in listed[1].split(",")]

    def returns_of(self, at, calls):
        if calls:
            return [(calls[-1], calls[:-1])]
        if self.owners[at] not in self.returns:
            raise self.unfollowed(at, "nothing calls this function")
        return [(to, ()) for to in self.returns[self.owners[at]]]

    def meetings(self, start):
        """The BSYNCs where threads reconverge after a BSSY. They continue at the label that the BSSY names. That must be the
        instruction after the BSYNC, because a BSYNC is followed to the next instruction."""
        barrier, to = self.code[start].operands.split(",")[0], self.named(start)
        seen, met, queue = set(), set(), deque([start + 1])
        while queue:
            at = queue.popleft()
            if at in seen:
                continue
            seen.add(at)
            one = self.code[at]
            if one.kind == "BSYNC" and one.operands == barrier:
                if at + 1 != to:
                    raise self.unfollowed(at, f"threads that meet here go on at {to * SIZE:#x}")
                met.add(at)
            elif one.kind == "CALL":
                # The function's own barriers are checked separately.
                queue.append(at + 1)
            elif one.kind != "RET" and not (one.kind == "BSSY" and one.operands.split(",")[0] == barrier):
                queue += [after for after, _ in self.next_of(at, ())]
        return met

    def reads(self):
        for at, one in enumerate(self.code):
            if one.kind in UNFOLLOWED_ACCESS:
                raise self.unfollowed(at, "it may access another block's memory, and it is not known when it has finished")
            if one.kind in READS:
                if one.sets == NO_SCOREBOARD:
                    raise self.unfollowed(at, "it sets no scoreboard when its value arrives")
                yield at

    def unawaited(self, read):
        """A path without a wait from a read to a barrier, or else to an exit, as a list of places; None if there is none."""
        first, scoreboard, exit_path = (read, ()), self.code[read].sets, None
        came_from, queue = {first: None}, deque([first])
        while queue:
            state = queue.popleft()
            for after in self.next_of(*state):
                one = self.code[after[0]]
                if after in came_from or one.is_wait_for(scoreboard):
                    continue
                if len(after[1]) > 16:
                    raise self.unfollowed(after[0], "calls are nested deeper than can be followed")
                came_from[after] = state
                if one.is_arrival():
                    return path_to(after, came_from)
                if one.kind == "EXIT":
                    exit_path = exit_path or path_to(after, came_from)
                queue.append(after)
        return exit_path


def path_to(state, came_from):
    path = []
    while state is not None:
        path.append(state[0])
        state = came_from[state]
    return path[::-1]


def sections_of(text):
    """The code sections, in file order."""
    sections, section, waiting = [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        if waiting:
            second = SECOND.match(line)
            if not second:
                raise Unfollowed(f"line {number}: the second word of an instruction is missing; is this the output of nvdisasm -hex?")
            section.code.append(instruction(*waiting, second[1]))
            waiting = None
        elif line.split()[:1] == [".section"]:
            name = line.split()[1].split(",")[0]
            section = Section(name.removeprefix(".text.")) if name.startswith(".text.") else None
            sections += [section] if section else []
        elif section and LABEL.fullmatch(line):
            section.add_label(line[:-1])
        elif section and line.lstrip().startswith("/*"):
            first = FIRST.match(line)
            if not first:
                raise Unfollowed(f"line {number}: no instruction with its code; is this the output of nvdisasm -hex?")
            waiting = int(first[1], 16), first[2]
    for section in sections:
        section.finish()
    return sections


def architecture_of(text):
    found = re.search(r"^\s*\.target\s+sm_(\d+)", text, re.M) or re.search(r"^\s*\.headerflags.*\bEF_CUDA_SM(\d+)\b", text, re.M)
    # The architectures with clusters whose instruction encoding is known.
    if not found or not 90 <= int(found[1]) < 130:
        raise Unfollowed("it is not for sm_90 to sm_129")
    return int(found[1])


def complaint(section, path):
    read, end = section.code[path[0]], section.code[path[-1]]
    jumps = [f"{section.code[a].address:#x} to {section.code[b].address:#x}" for a, b in zip(path, path[1:]) if b != a + 1]
    return (f"{section.kernel}: the read at {read.address:#x}, {read}, may still be under way at {end.address:#x}, {end}: nothing on the path"
            f" between waits for its scoreboard, {read.sets}. The path jumps from {', then '.join(jumps) or 'nowhere'}.")


def check(name, text):
    """Prints what was proved of a cubin, and returns a list of complaints."""
    try:
        architecture, sections = architecture_of(text), sections_of(text)
        reads = {section.kernel: list(section.reads()) for section in sections}
        paths = [(section, section.unawaited(read)) for section in sections for read in reads[section.kernel]]
    except Unfollowed as why:
        return [f"{name}: cannot be followed, so nothing is proved: {why}"]
    kernels = [kernel for kernel, found in reads.items() if found]
    arrivals = sum(one.is_arrival() for section in sections for one in section.code)
    if not kernels or not arrivals:
        return [f"{name}: there are {len(paths)} reads of other blocks and {arrivals} barriers of a cluster: nothing was checked"]
    failed = [complaint(section, path) for section, path in paths if path]
    if not failed:
        print(f"{name}: sm_{architecture}, {len(paths)} reads of other blocks in {len(kernels)} kernels, each waited for before any of"
              f" {arrivals} arrivals at a barrier")
    return [f"{name}: {one}" for one in failed]


def main(files):
    if not files:
        raise SystemExit(__doc__)
    complaints = [one for file in files for one in check(file, Path(file).read_text())]
    if complaints:
        is_read = any("may still be under way" in one for one in complaints)
        raise SystemExit("\n".join([*complaints, *([WHAT_TO_DO] if is_read else [])]))


if __name__ == "__main__":
    main(sys.argv[1:])
