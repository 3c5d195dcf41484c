"""The Arduino sketch (`make test-deploy`): compiled for a Cortex-M0, and run here over a pipe."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from generated import STRICT
from random_programs import Builder

from xnorpp.export import export_c
from xnorpp.runtime import load
from xnorpp.runtime.format.program import INPUT, Program

SKETCH = Path(__file__).resolve().parents[2] / "examples" / "arduino" / "digits" / "digits.ino"
# What the sketch uses of a board's own header.
BOARD = """
#pragma once
#include <stdint.h>
struct Line {
    void begin(unsigned long), setTimeout(unsigned long), print(const char *), print(unsigned long);
    void println(unsigned long), println(const char *);
    int available();
    long parseInt();
};
extern Line Serial;
unsigned long micros();
void setup();
void loop();
"""
HOST = """
#include <stdio.h>
#include "Arduino.h"
Line Serial;
static int more = 1;
void Line::begin(unsigned long) {}
void Line::setTimeout(unsigned long) {}
void Line::print(const char *text) { fputs(text, stdout); }
void Line::print(unsigned long number) { printf("%lu", number); }
void Line::println(unsigned long number) { printf("%lu\\n", number); }
void Line::println(const char *text) { puts(text); }
int Line::available() { int c = getchar(); ungetc(c, stdin); return more = c != EOF; }
long Line::parseInt() { long n = 0; return scanf("%ld ", &n) == 1 ? n : 0; }
unsigned long micros() { return 0; }
int main() { for (setup(); more;) loop(); }
"""
LABELS = tuple("0123456789")


def small_network() -> Program:
    """Ten classes of an 8x8 image, which a user's own network stands for."""
    rng = np.random.default_rng(0)
    b = Builder((1, 8, 8))
    flat = b.emit("flatten", INPUT)
    tensors = {"weight": rng.standard_normal((10, 64)).astype(np.float32)}
    return b.program(b.emit("linear", flat, tensors=tensors), labels=LABELS, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize("fixed", [24, None])
def test_the_sketch_compiles_for_a_board_and_answers(fixed: int | None, tmp_path: Path) -> None:
    program = small_network()
    export_c(program, "network", fixed=fixed).write(tmp_path)
    (tmp_path / "Arduino.h").write_text(BOARD)
    (tmp_path / "host.cpp").write_text(HOST)
    strict = ["-Wall", "-Wextra", "-Werror", "-Os", f"-I{tmp_path}"]
    for prefix, chip in (("arm-none-eabi-", ["-mcpu=cortex-m0", "-mthumb", "-fno-exceptions"]), ("", [])):
        source = [f"{prefix}gcc", *STRICT, *strict, *chip, "-c", str(tmp_path / "network.c")]
        sketch = [f"{prefix}g++", "-std=c++11", *strict, *chip, "-include", "Arduino.h", "-x", "c++", "-c"]
        subprocess.run([*source, "-o", str(tmp_path / "network.o")], check=True)
        subprocess.run([*sketch, str(SKETCH), "-o", str(tmp_path / "sketch.o")], check=True)
    program_here = str(tmp_path / "sketch")
    parts = [str(tmp_path / name) for name in ("host.cpp", "sketch.o", "network.o")]
    subprocess.run(["g++", *strict, *parts, "-o", program_here], check=True)
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 1), np.uint8)
    typed = "\n".join(" ".join(map(str, image.ravel())) for image in images) + "\n"
    shown = subprocess.run([program_here], input=typed, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("memory of the network: ")
    wanted = load(program)(images).argmax(1)
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [LABELS[best] for best in wanted]
