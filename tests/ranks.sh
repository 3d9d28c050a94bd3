#!/usr/bin/env bash
# Any number of ranks, no launcher, replicas: the same logits and the same sensitivity file.
# label: mpi long
# timeout: 900
set -euo pipefail
[ -n "${RIPPLEKV_MODEL:-}" ] || { echo "no model"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
demo=$RIPPLEKV_ROOT/demo
head -c 3000 "$demo/document.txt" >doc.txt
"$RIPPLEKV_PYTHON" - doc.txt >prompts.jsonl <<'P'
import json, sys
text = open(sys.argv[1]).read()
print(json.dumps({"id": "a", "prompt": text}))
print(json.dumps({"id": "b", "document": text[:1200], "question": "What is this about?"}))
print(json.dumps({"id": "c", "messages": [{"role": "user", "content": "Name a river."}], "max_new_tokens": 3}))
print(json.dumps({"id": "d", "token_ids": [17]}))
print(json.dumps({"id": "e", "prompt": text[500:2500]}))
P
launch() { # P COMMAND...: alone for 0
    local p=$1
    shift
    if [ "$p" = 0 ]; then "$@"; else "$MPIRUN" -n "$p" "$@"; fi
}
profile() { # NAME P EXTRA...
    local name=$1 p=$2
    shift 2
    launch "$p" "$RIPPLEKV_BIN" profile --model "$RIPPLEKV_MODEL" --calibration "$demo/calibration.txt" \
        --samples 2 --context 200 --response 8 --epsilon 0.3,0.1 --threads 1 --output "$name.h5" "$@" \
        >"$name.out" 2>"$name.err" || { cat "$name.err"; exit 1; }
    [ "$p" = 0 ] || [ -z "$(find . -name "$name.h5.journal*")" ]
}
generate() { # NAME P EXTRA...
    local name=$1 p=$2
    shift 2
    launch "$p" "$RIPPLEKV_BIN" generate --model "$RIPPLEKV_MODEL" --input prompts.jsonl --threads "${threads:-1}" \
        --max-new-tokens 6 --ratio 0.2 --sensitivity p0.h5 --output "$name.jsonl" "$@" \
        >/dev/null 2>"$name.err" || { cat "$name.err"; exit 1; }
    "$RIPPLEKV_PYTHON" -c '
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    for k in ("ttft_s", "decode_s"): r.pop(k)
    print(json.dumps(r, sort_keys=True))' "$name.jsonl" >"$name.txt"
}
profile p0 0
for p in 1 2 3 5 7; do profile "p$p" "$p"; done
profile r2 2 --replicas 2
profile r3 3 --replicas 3 # more replicas than samples: layer ranges
profile c64 2 --chunk 64
"$RIPPLEKV_PYTHON" "$RIPPLEKV_ROOT/tests/same_profile.py" p0.h5 p[1-7].h5 r2.h5 r3.h5 c64.h5
"$RIPPLEKV_PYTHON" "$RIPPLEKV_ROOT/tests/h5_schema.py" p0.h5 p7.h5
sizes=$(stat -c %s ./*.h5 | sort -u | wc -l)
[ "$sizes" = 1 ] || { echo "files of different size"; exit 1; }
generate g0 0
[ "$(wc -l <g0.txt)" = 5 ]
for p in 1 2 3 5 7; do
    generate "g$p" "$p"
    cmp g0.txt "g$p.txt"
done
generate b4 2 --batch 4
cmp g0.txt b4.txt
threads=2 generate t2 0 --chunk 100 --batch 2
cmp g0.txt t2.txt
echo "same answers and files"
