#!/bin/sh
# The CPU figures of a server with AVX-512 (and perhaps AMX), all of one machine: the chains against our own AVX2 kernels and
# OpenVINO, and ResNet-18 with both blocks as the machine is, without AMX, and with everything above AVX2 hidden.
#
#     sh benchmarks/server_cpu.sh results/server.jsonl              all stages, about ten minutes
#     sh benchmarks/server_cpu.sh results/server.jsonl chains paper-no-amx
#
# Needs the `bench` extra (onnxruntime and openvino; NNCF if there) and gcc for the stages that hide instructions. A stage that
# fails reports it and the others go on; the status is the number of failed stages. PYTHON names the interpreter.
rows=${1:?usage: server_cpu.sh ROWS.jsonl [STAGE...]}
shift
[ $# -gt 0 ] || set -- chains chains-avx2 paper-no-amx default-no-amx paper-amx default-amx paper-avx2 default-avx2 startup
failed=0
bench() { "${PYTHON:-python3}" -m xnorpp bench "$@" --append "$rows"; }
network() { block=$1; shift; bench --block "$block" --threads 1,2 --against onnxruntime,openvino --rounds 12 "$@"; }
for stage in "$@"; do
    echo "== $stage"
    case $stage in
        chains) bench --layers --isa avx512,avx2 --rounds 30 ;;
        chains-avx2) bench --layers --avx2-only --rounds 30 ;;
        paper-no-amx) network paper --no-amx ;;
        default-no-amx) network default --no-amx ;;
        paper-amx) network paper ;;
        default-amx) network default ;;
        paper-avx2) network paper --avx2-only ;;
        default-avx2) network default --avx2-only ;;
        startup) bench --startup ;;
        *) echo "server_cpu.sh: no stage is called $stage" >&2; false ;;
    esac || { echo "== $stage failed" >&2; failed=$((failed + 1)); }
done
exit $failed
