"""Generated networks on emulated chips: compile, link, run in QEMU, read what they print."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from generated import DTYPES, STRICT, c_types

from xnorpp.export import Generated

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "bare_metal"


@dataclass(frozen=True)
class Chip:
    """An emulated machine: its compiler and what starts it."""

    compiler: str
    flags: tuple[str, ...]
    emulator: tuple[str, ...]
    flash: str = ""
    ram: str = ""

    @property
    def linking(self) -> tuple[str, ...]:
        if not self.flash:
            return ("-T", str(EXAMPLE / "riscv_virt.ld"), str(EXAMPLE / "startup_riscv.c"))
        sizes = f"-Wl,--defsym=FLASH_SIZE={self.flash},--defsym=RAM_SIZE={self.ram}"
        return (sizes, "-T", str(EXAMPLE / "cortex_m.ld"), str(EXAMPLE / "startup_cortex_m.c"))


def _arm(cpu: str, machine: str, flash: str, ram: str, *flags: str) -> Chip:
    emulator = ("qemu-system-arm", "-machine", machine, "-nographic", "-semihosting", "-kernel")
    return Chip("arm-none-eabi-gcc", (f"-mcpu={cpu}", "-mthumb", *flags), emulator, flash, ram)


def _riscv(arch: str, abi: str) -> Chip:
    flags = (f"-march={arch}", f"-mabi={abi}", "-mcmodel=medany", "--specs=picolibc.specs")
    emulator = ("qemu-system-riscv32", "-machine", "virt", "-bios", "none", "-nographic", "-kernel")
    return Chip("riscv64-unknown-elf-gcc", flags, emulator)


CHIPS = {
    "cortex-m4": _arm("cortex-m4", "mps2-an386", "4M", "4M", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    "cortex-m3": _arm("cortex-m3", "mps2-an385", "4M", "4M"),
    "cortex-m0": _arm("cortex-m0", "microbit", "256K", "16K"),
    "rv32imac": _riscv("rv32imac", "ilp32"),
    "rv32imafc": _riscv("rv32imafc", "ilp32f"),
}


@dataclass(frozen=True)
class Measured:
    """What a run on a chip gave: outputs `(n, count)`; bytes of flash, static memory and stack."""

    outputs: npt.NDArray[Any]
    flash: int
    static: int
    stack: int


def sizes(made: Generated, chip: Chip, folder: Path, level: str = "-Os") -> tuple[int, int]:
    """Flash and static memory of the network alone, without a program around it."""
    source, _ = made.write(folder)
    target = folder / "network.o"
    _checked([chip.compiler, *chip.flags, *STRICT, level, "-c", str(source), "-o", str(target)])
    text = _checked([chip.compiler.replace("gcc", "size"), str(target)])
    code, data, bss = (int(number) for number in text.splitlines()[1].split()[:3])
    return code + data, data + bss


def run_on(made: Generated, chip: Chip, inputs: npt.NDArray[Any], count: int, folder: Path) -> Measured:
    """Run a network with one output of `count` numbers on a batch."""
    flash, static = sizes(made, chip, folder)
    (ctype, _), (output, _) = c_types(made)
    rows = np.ascontiguousarray(inputs.astype(DTYPES[ctype])).reshape(len(inputs), -1)
    body = ",\n".join("{" + ",".join(repr(value) for value in row.tolist()) + "}" for row in rows)
    (folder / "inputs.h").write_text(
        f'#include "{made.name}.h"\n#define INPUTS {len(rows)}\n#define OUTPUTS {count}\n'
        f"#define RUN {made.name}_run\ntypedef {output} output_type;\n"
        f"static const {ctype} inputs[{len(rows)}][{rows.shape[1]}] = {{\n{body}\n}};\n"
    )
    target = folder / "firmware.elf"
    files = (str(folder / f"{made.name}.c"), str(HERE / "firmware.c"))
    options = (
        "-std=c99",
        "-Os",
        "-ffunction-sections",
        "-fdata-sections",
        "-nostartfiles",
        "-Wl,--gc-sections",
    )
    paths = ("-I", str(folder), "-I", str(EXAMPLE))
    _checked([chip.compiler, *chip.flags, *options, *paths, *files, *chip.linking, "-o", str(target)])
    lines = _checked([*chip.emulator, str(target)]).split()
    at = lines.index("stack")
    words = np.array([int(word, 16) for word in lines[:at]], np.uint32)
    outputs = words.view(DTYPES[output]).reshape(len(rows), count)
    return Measured(outputs, flash, static, int(lines[at + 1], 16))


def _checked(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr  # semihosting writes to stderr
