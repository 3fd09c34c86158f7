#!/usr/bin/env bash
# The main job on bundled models: a dry run from a plan, one parameter explained, pictures.
#
#     docs/examples/demo.sh [FOLDER WITH hpx] [FOLDER TO WRITE TO]
set -euo pipefail

bin=${1:+$(realpath "$1")/}
out=${2:-build/demo}
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")"

show() {
    printf '\n$ %s\n' "${*//$out\//}"
    local program=$1
    shift
    "$bin$program" "$@"
}

show hpx run hpx.bundled:moe_671b --mesh dp=32,tp=8,ep=64 --plan moe-671b/plan.yaml \
    -o "$out/moe-671b.run.json"
show hpx explain "$out/moe-671b.run.json" model.layers.3.mlp.experts.gate_proj
show hpx passes
show hpx-viz "$out/moe-671b.run.json" -o "$out/moe-671b.svg"
show hpx-viz "$out/moe-671b.run.json" -o "$out/moe-671b.png"
show hpx run hpx.bundled:tiny_llama --mesh dp=2,tp=4 --plan tiny-llama/plan.yaml \
    -o "$out/tiny-llama.run.json"
show hpx-viz "$out/tiny-llama.run.json" -o "$out/tiny-llama.svg"

printf '\nThe runs and pictures lie in %s:\n' "$out"
ls "$out"
