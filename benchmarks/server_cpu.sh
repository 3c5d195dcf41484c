#!/bin/sh
# The CPU figures of a server with AVX-512 (and perhaps AMX), all of one machine: ResNet-18 with both blocks, chains of binary
# layers, real-valued layers, MobileNetV1, DenseNet-121 and the memory of the first answer; with everything above AVX2 hidden,
# without AMX, and as the machine is. The stages default-int8 and paper-int8 are those without AMX again, with our real-valued
# layers in int8.
#
#     sh benchmarks/server_cpu.sh results/server.jsonl              all stages, the most wanted first, about fifteen minutes
#     sh benchmarks/server_cpu.sh results/server.jsonl chains paper-no-amx
#     taskset -c 2,3 sh benchmarks/server_cpu.sh ...                as on a machine of two cores
#
# Needs the `bench` extra (onnxruntime and openvino; NNCF if there) and gcc for the stages that hide instructions. A stage that
# fails reports it and the others go on; the status is the number of failed stages. PYTHON names the interpreter, ROUNDS the
# rounds of each stage. Where the processor cannot hide instructions from all engines, these stages use the switches that
# there are: our kernels and OpenVINO's convolutions then end at AVX2 (or before AMX), and onnxruntime, which has no switch, is
# left out.
rows=${1:?usage: server_cpu.sh ROWS.jsonl [STAGE...]}
shift
[ $# -gt 0 ] || set -- default-avx2 paper-avx2 default-no-amx paper-no-amx chains-avx2 chains real-avx2 real mobilenet-avx2 \
    default-amx paper-amx default-int8 paper-int8 startup densenet-avx2 mobilenet densenet
failed=0
python=${PYTHON:-python3}
engines=onnxruntime,openvino
masks=yes
if ! "$python" -c 'from xnorpp.bench.avx2 import mask_environment; mask_environment(); mask_environment("amx")' 2>/dev/null; then
    echo "instructions cannot be hidden from all engines here: by switches instead, against OpenVINO alone"
    masks=
fi
bench() { "$python" -m xnorpp bench "$@" --append "$rows"; }
other() { "$python" benchmarks/other_networks.py "$@" --rounds "${ROUNDS:-10}" --record "$rows"; }
# Run a command as on an AVX2 machine, or as on one without AMX. Arguments: the command, its own arguments.
as_avx2() {
    if [ "$masks" ]; then "$@" --avx2-only; return; fi
    (engines=openvino; export XNORPP_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2; "$@")
}
no_amx() {
    if [ "$masks" ]; then "$@" --no-amx; return; fi
    (engines=openvino; export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16; "$@")
}
network() { block=$1; shift; bench --block "$block" --threads 1,2 --against "$engines" --rounds "${ROUNDS:-12}" "$@"; }
layers() { bench "$@" --rounds "${ROUNDS:-30}"; }
mobilenet() { other mobilenet --against "$engines" "$@"; }
startup() { for block in paper default; do bench --startup --block "$block" "$@" || return; done; }
for stage in "$@"; do
    echo "== $stage"
    begin=$(date +%s)
    case $stage in
        default-avx2 | paper-avx2) as_avx2 network "${stage%-avx2}" ;;
        default-no-amx | paper-no-amx) no_amx network "${stage%-no-amx}" ;;
        default-amx | paper-amx) network "${stage%-amx}" ;;
        default-int8 | paper-int8) no_amx network "${stage%-int8}" --real int8 ;;
        chains-avx2) as_avx2 layers --layers ;;
        chains) layers --layers --isa avx512,avx2 ;;
        real-avx2) as_avx2 layers --real-layers ;;
        real) layers --real-layers ;;
        mobilenet-avx2) as_avx2 mobilenet ;;
        mobilenet) mobilenet ;;
        densenet-avx2) as_avx2 other densenet --against eager ;;
        densenet) other densenet --against eager ;;
        startup) startup && startup --isa avx2 ;;
        *) echo "server_cpu.sh: no stage is called $stage" >&2; false ;;
    esac || { echo "== $stage failed" >&2; failed=$((failed + 1)); }
    echo "== $stage took $(($(date +%s) - begin)) s"
done
exit $failed
