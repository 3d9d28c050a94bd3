#!/usr/bin/env bash
# Within an order of sums every instruction set and number of threads gives the same bits: prefill,
# decode, compression, profile; weights in bf16 and as the file has them. RIPPLEKV_ISA forces a path.
# label: mpi long
# timeout: 900
set -euo pipefail
if [ -z "${RIPPLEKV_PYTHON:-}" ]; then echo "no Python"; exit 77; fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
"$RIPPLEKV_BUILD/make_tiny" tiny.gguf --type Q4_1
checks=0
text() { head -c "$1" "$RIPPLEKV_ROOT/demo/document.txt"; }
text 400 >short.txt
text 6000 >calibration.txt
run() { # OUT ISA COMMAND...
    local out=$1 isa=$2
    shift 2
    RIPPLEKV_ISA=$isa "$RIPPLEKV_BIN" "$@" --json >"$out" 2>err || { cat err; exit 1; }
}
# Everything that a path's bits show in, one line.
bits() { # MODEL PROMPT ISA NUMERICS WEIGHTS THREADS CONTEXT
    local common=(--model "$1" --numerics "$4" --weights "$5" --threads "$6")
    run full "$3" generate "${common[@]}" --prompt-file "$2" --max-new-tokens 5
    run kept "$3" generate "${common[@]}" --prompt-file "$2" --max-new-tokens 5 --ratio 0.5 --window 8 --chunk 48
    run profile "$3" profile "${common[@]}" --calibration calibration.txt --samples 1 --context "$7" \
        --response 4 --output s.h5
    rm -f s.h5
    "$RIPPLEKV_PYTHON" - "$3 $4 $5" <<'EOF'
import json, sys
full, kept, profile = (json.load(open(name)) for name in ("full", "kept", "profile"))
assert f"{full['path']} {full['numerics']} {full['weights']}" == sys.argv[1], full
hashes = [d["logits_hash"] for d in (full, kept, profile)]
assert all(int(h, 16) for h in hashes) and len(set(hashes)) == 3, hashes
print(*hashes, [x.hex() for x in profile["sensitivity"]])
EOF
}
isas() { # NUMERICS: the refusal of a path that does not exist lists those that do
    ! RIPPLEKV_ISA=none "$RIPPLEKV_BIN" generate --model tiny.gguf --prompt x --numerics "$1" >out 2>err
    sed -n 's/.*there are //p' err | tr -d ,
}
compare() { # MODEL PROMPT CONTEXT ISAS NUMERICS WEIGHTS
    local first='' got isa threads
    for isa in $4; do
        for threads in 1 2; do
            got=$(bits "$1" "$2" "$isa" "$5" "$6" "$threads" "$3")
            [ -n "$first" ] || first=$got
            [ "$got" = "$first" ] || { echo "$1, $5, $6: $isa with $threads threads differs"; exit 1; }
            checks=$((checks + 1))
        done
    done
    echo "$6 $5: $4: ${first%% \[*}"
    last=$first
}
for numerics in tile pair; do
    paths=$(isas $numerics)
    [ -n "$paths" ]
    for weights in bf16 native; do
        compare tiny.gguf short.txt 100 "$paths" $numerics $weights
        all="${all:-}$last;"
        [ -n "${RIPPLEKV_MODEL:-}" ] || continue
        fast=$(echo "$paths" | sed 's/scalar *//')
        [ -z "$fast" ] || compare "$RIPPLEKV_MODEL" short.txt 100 "$fast" $numerics $weights
    done
done
# The orders, and int8 activations, do make a difference.
[ "$(tr ';' '\n' <<<"$all" | sort -u | grep -c .)" = 4 ]
echo "$checks runs"
