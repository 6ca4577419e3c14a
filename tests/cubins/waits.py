"""Handmade code for scripts/cubin_waits.py: does it find a read that nobody waits for, and nothing else?"""

import io
import re
import sys
import unittest
from contextlib import redirect_stdout
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import cubin_waits

NONE = 7


def sass(code, target="sm_90"):
    """The output of `nvdisasm -hex`. Each line of `code` is a label or an instruction; `> 3` sets scoreboard 3, `< 3` waits for it."""
    lines, address = [f"\t.target\t{target}", '\t.section\t.text.kernel,"ax",@progbits', "kernel:", ".text.kernel:"], 0
    for line in code.strip().splitlines():
        line = line.strip()
        if line.endswith(":"):
            lines.append(line)
            continue
        text, sets, waits = re.fullmatch(r"(.*?)(?: > (\d))?(?: < (\d))?", line).groups()
        control = (int(sets) if sets else NONE) << 5 | NONE << 8 | (1 << int(waits) if waits else 0) << 11
        lines += [f"        /*{address:04x}*/   {text} ;   /* 0x{0:016x} */", f"   /* 0x{control << 41:016x} */"]
        address += 16
    return "\n".join(lines) + '\n\t.section\t.nv.info,"",@SHT_CUDA_INFO\n        /*0000*/ \t.byte\t0x04, 0x2f\n'


BRANCH = """
    LD.E R2, desc[UR4][R4.64] > 3
    @P0 BRA `(.L_x_1)
    IADD3 R2, R2, 0x1, RZ < 3
    BRA `(.L_x_2)
.L_x_1:
    {other_side}
.L_x_2:
    UCGABAR_ARV
    UCGABAR_WAIT
    EXIT
"""
# The read of one round is waited for in the next, if there is a next.
LOOP = """
.L_x_1:
    @P1 IADD3 R3, R3, R2, RZ < 3
    LD.E R2, desc[UR4][R4.64] > 3
    ISETP.NE.AND P0, PT, R6, RZ, PT
    @P0 BRA `(.L_x_1)
    {behind}
    UCGABAR_ARV
    UCGABAR_WAIT
    EXIT
"""
CALLED = """
    MOV R8, 0x20
    CALL.REL.NOINC `($kernel$read)
    IADD3 R2, R2, 0x1, RZ < 3
    MOV R8, 0x50
    CALL.REL.NOINC `($kernel$read)
    {behind}
    UCGABAR_ARV
    UCGABAR_WAIT
    EXIT
$kernel$read:
    LD.E R2, desc[UR4][R4.64] > 3
    RET.REL.NODEC R8 `(kernel)
"""
STRAIGHT = """
    {read}
    LDG.E R6, desc[UR4][R4.64] > 2
    {wait}
    UCGABAR_ARV
    UCGABAR_WAIT
    EXIT
"""
READ, USE = "LD.E R2, desc[UR4][R4.64] > 3", "IADD3 R2, R2, 0x1, RZ < 3"


class Waits(unittest.TestCase):
    def complaints(self, code, **how):
        self.printed = io.StringIO()
        with redirect_stdout(self.printed):
            return cubin_waits.check("a cubin", sass(code, **how))

    def proved(self, code, reads=1):
        self.assertEqual(self.complaints(code), [])
        self.assertIn(f"{reads} reads of other blocks in 1 kernels", self.printed.getvalue())

    def refused(self, code, *why, **how):
        complaints = self.complaints(code, **how)
        self.assertEqual(len(complaints), 1, complaints)
        for part in why:
            self.assertIn(part, complaints[0])
        self.assertEqual(self.printed.getvalue(), "")

    def test_both_sides_of_a_branch_have_to_wait(self):
        self.proved(BRANCH.format(other_side=USE))
        self.refused(BRANCH.format(other_side="NOP"), "kernel: the read at 0x0", "at 0x50, UCGABAR_ARV", "jumps from 0x10 to 0x40")

    def test_the_last_round_of_a_loop_has_to_be_waited_for(self):
        self.proved(LOOP.format(behind=USE))
        self.refused(LOOP.format(behind="NOP"), "the read at 0x10", "at 0x50, UCGABAR_ARV", "jumps from nowhere")

    def test_all_callers_of_a_function_have_to_wait(self):
        self.proved(CALLED.format(behind=USE))
        self.refused(CALLED.format(behind="NOP"), "the read at 0x90", "at 0x60, UCGABAR_ARV", "jumps from 0xa0 to 0x50")

    def test_a_wait_is_for_all_that_set_the_scoreboard_and_for_no_other(self):
        self.proved(STRAIGHT.format(read=f"{READ}\nLD.E.64 R8, desc[UR4][R4.64+0x8] > 3", wait=USE), reads=2)
        self.proved(STRAIGHT.format(read=READ, wait="DEPBAR.LE SB3, 0x0"))
        for wait in ("IADD3 R6, R6, 0x1, RZ < 2", "DEPBAR.LE SB2, 0x0", "DEPBAR.LE SB3, 0x1"):
            self.refused(STRAIGHT.format(read=READ, wait=wait), "UCGABAR_ARV", "its scoreboard, 3")

    def test_nobody_ends_with_a_read_under_way(self):
        self.refused(STRAIGHT.format(read=READ, wait="@P0 EXIT\nNOP < 3"), "at 0x20, @P0 EXIT")

    def test_what_is_not_followed_is_not_passed(self):
        for line in ("BRX R2 -0x10", "JMP 0x10", "CALL.REL.NOINC `($other)", "RET.REL.NODEC R8 `(kernel)", "BSYNC B0", "BRA `(.L_x_7)",
                     "UBLKCP.S.S [UR8], [UR6], UR4", "MOV R2, `(kernel)", "LD.E R2, desc[UR4][R4.64]"):
            self.refused(STRAIGHT.format(read=READ, wait=line), "nothing is proved", line)

    def test_threads_that_meet_go_on_behind(self):
        meeting = "BSSY B0, `(.L_x_1)\n@P0 BRA `(.L_x_2)\n{side}\n.L_x_2:\nBSYNC B0\n.L_x_1:\nNOP"
        self.proved(STRAIGHT.format(read=READ, wait=meeting.format(side="NOP") + "\n" + USE))
        self.refused(STRAIGHT.format(read=READ, wait=meeting.format(side=USE)), "UCGABAR_ARV")
        self.refused(STRAIGHT.format(read=READ, wait=meeting.format(side="BSYNC B0") + "\n" + USE), "threads that meet here go on at 0x60")

    def test_a_cubin_without_reads_or_without_clusters_proves_nothing(self):
        self.refused(STRAIGHT.format(read="NOP", wait="NOP"), "nothing was checked")
        self.refused(f"{READ}\n{USE}\nEXIT", "nothing was checked")
        self.refused(BRANCH.format(other_side=USE), "not for sm_90", target="sm_80")


if __name__ == "__main__":
    unittest.main()
