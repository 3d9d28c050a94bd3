#!/usr/bin/env bash
# label: mpi
# timeout: 600
# Bad input of every kind, alone and on four ranks: one ERROR line on stderr that names the thing,
# nothing on stdout, the documented exit code, within ten seconds.
set -uo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
cases=0 failures=0 limit=10
! grep -q __asan_init "$RIPPLEKV_BIN" || limit=40 # sanitizers are slow to start and to end
make() { "$RIPPLEKV_BUILD/make_tiny" "$@" || { echo "no model $1"; exit 1; }; }

check() { # check WHERE CODE TEXT LAUNCHER... -- ARGS...: TEXT stands in the ERROR line
    local where=$1 code=$2 text=$3 rc errors launcher=()
    shift 3
    while [ "$1" != -- ]; do launcher+=("$1"); shift; done
    shift
    cases=$((cases + 1))
    timeout "$limit" "${launcher[@]}" "$RIPPLEKV_BIN" "$@" >out 2>err </dev/null
    rc=$?
    errors=$(grep -v ORTE_ERROR_LOG err | grep -c ERROR) # that one is mpirun's own
    if [ $rc != "$code" ] || [ "$errors" != 1 ] || [ -s out ] || ! grep ERROR err | grep -qF -- "$text"; then
        failures=$((failures + 1))
        echo "FAILED ($where): $*"
        echo "  exit $rc, wanted $code; $errors ERROR lines, wanted 1 with \"$text\"; stdout $(wc -c <out) bytes"
        grep -E 'ERROR|Sanitizer|Abort' err | head -5 | sed 's/^/  /'
    fi
}
alone() { check alone "$1" "$2" -- "${@:3}"; }
four() { check "4 ranks" "$1" "$2" "$MPIRUN" -n 4 -- "${@:3}"; }
bad() { alone "$@"; four "$@"; }

make tiny.gguf
make other.gguf --layers 5
make three.gguf --layers 3
make folder
for i in $(seq 60); do echo "line $i of a text that is long enough to be cut into samples"; done >text.txt
: >empty.txt
mkdir dir
run=(generate --model tiny.gguf --max-new-tokens 4)
prof=(profile --model tiny.gguf --context 32 --response 4 --samples 1)
for m in tiny other; do
    "$RIPPLEKV_BIN" profile --model $m.gguf --calibration text.txt --context 32 --response 4 --samples 1 \
        --output $m.h5 >/dev/null 2>err || { cat err; exit 1; }
done
line() { printf '%s\n' "$1" >"$2.jsonl"; }

# --- usage: the command and its options
bad 2 'no command'
bad 2 'unknown command "plan"' plan --context 10
bad 2 'did you mean "generate"' genarate
bad 2 'did you mean --ratio' "${run[@]}" --prompt p --rato 0.1
bad 2 'not an option of profile' "${prof[@]}" --calibration text.txt --output o.h5 --ratio 0.1
bad 2 '--ratio 0:' "${run[@]}" --prompt p --ratio 0
bad 2 '--ratio 2:' budget --sensitivity tiny.h5 --context 100 --ratio 2
bad 2 'give one' "${run[@]}" --prompt p --ratio 0.1 --budget 100
bad 2 '--threads abc' "${run[@]}" --prompt p --threads abc
bad 2 '--epsilon' "${prof[@]}" --calibration text.txt --output o.h5 --epsilon 0.1,,0.2
bad 2 'needs a value' "${run[@]}" --prompt
bad 2 'needs --output' "${prof[@]}" --calibration text.txt
bad 2 'possible: cpu ref' "${run[@]}" --prompt p --backend cuda
bad 2 'no effect' "${run[@]}" --prompt p --ratio 0.1 --r 3
bad 2 'no effect' "${run[@]}" --prompt p --ratio 0.1 --policy streaming --kernel 5
bad 2 'needs --sensitivity' "${run[@]}" --prompt p --ratio 0.1 --allocator ripple
bad 2 '--dtype f32' "${run[@]}" --prompt p --dtype f32
bad 2 '--kernel 4' "${run[@]}" --prompt p --ratio 0.1 --kernel 4
bad 2 'one replica' "${run[@]}" --prompt p --replicas 2
bad 2 '--log' "${run[@]}" --prompt p --log loud
bad 2 'given twice' version --full --full
bad 2 'does not divide' "${prof[@]}" --calibration text.txt --output o.h5 --replicas 3
bad 2 '--batch 0' bench --model tiny.gguf --batch 0
bad 2 '--prefill 1,,2' bench --model tiny.gguf --prefill 1,,2
bad 2 '--context 5,x' bench --model tiny.gguf --context 5,x
bad 2 'at most 16' bench --model tiny.gguf --batch 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
bad 2 'nothing is left' bench --model tiny.gguf --prefill 0 --decode 0
bad 2 'stands alone' bench --model tiny.gguf --prefill 0,5
bad 2 '--ratio has no effect' bench --model tiny.gguf --decode 0 --ratio 0.1
bad 2 '--response has no effect' bench --model tiny.gguf --response 8
bad 2 '--repeat 0' bench --model tiny.gguf --repeat 0
bad 2 'needs --model' bench --prefill 5
bad 2 'not an option of bench' bench --model tiny.gguf --replicas 2
bad 2 '--prefill 40000' bench --model tiny.gguf --prefill 5,40000
bad 2 '--context 32760 and --decode 9' bench --model tiny.gguf --context 5,32760 --decode 9
bad 2 '--context 32700 and --response 100' bench --model tiny.gguf --context 32700 --decode 0 --profile --response 100
bad 2 '--context 40000' profile --model tiny.gguf --calibration text.txt --output o.h5 --context 40000

# --- usage that only the model or the ranks show
alone 2 '--partition 3' "${run[@]}" --prompt p --partition 3
four 2 'must sum' "${run[@]}" --prompt p --partition 1,1,1,2
four 2 '--partition 2,2' "${run[@]}" --prompt p --partition 2,2
bad 2 '--partition x' "${run[@]}" --prompt p --partition x
four 2 '4 ranks for a model of 3 layers' generate --model three.gguf --prompt p
four 2 '--partition 2,2' "${run[@]}" --prompt p --partition 2,2 --dry-run

# --- model files
bad 4 nofile.gguf generate --model nofile.gguf --prompt p
bad 4 empty.txt generate --model empty.txt --prompt p
bad 4 config.json generate --model dir --prompt p
bad 4 text.txt generate --model text.txt --prompt p
for damage in truncated-head truncated-data magic version tensor-count offset type huge-shape shape twice unknown; do
    make $damage.gguf --damage $damage
    bad 4 $damage.gguf generate --model $damage.gguf --prompt p
done
alone 4 offset.gguf inspect offset.gguf
make missing --damage missing
bad 4 'model.layers.1.mlp.up_proj.weight' generate --model missing --prompt p
cp -r folder nojson && echo '{"hidden_size": ' >nojson/config.json
bad 4 nojson/config.json generate --model nojson --prompt p
cp -r folder notok && rm notok/tokenizer.json
bad 4 tokenizer.json generate --model notok --prompt p
cp -r folder badtok && echo '{"model": {"type": "Unigram"}}' >badtok/tokenizer.json
bad 4 tokenizer.json generate --model badtok --prompt p
cp -r folder cut && truncate -s -100 cut/model.safetensors
bad 4 model.safetensors generate --model cut --prompt p
cp -r folder arch && sed -i 's/LlamaForCausalLM/MambaForCausalLM/; s/"llama"/"mamba"/' arch/config.json
bad 4 mamba generate --model arch --prompt p
bad 4 nofile inspect nofile
bad 4 text.txt inspect text.txt

# --- prompts
bad 4 'prompt is empty' "${run[@]}" --prompt=
bad 4 'prompt is empty' "${run[@]}" --prompt-file empty.txt
bad 4 nofile.txt "${run[@]}" --prompt-file nofile.txt
bad 4 'dir' "${run[@]}" --prompt-file dir
bad 4 'do not fit in the model'"'"'s context of 32768' generate --model tiny.gguf --prompt abc --max-new-tokens 32766
bad 4 'holds no prompts' "${run[@]}" --input empty.txt
bad 4 nofile.jsonl "${run[@]}" --input nofile.jsonl
line '{"id": 1, "prompt": "x"' a
bad 4 'a.jsonl line 1' "${run[@]}" --input a.jsonl
printf '{"id": 1, "prompt": "x"}\n\n["x"]\n' >b.jsonl
bad 4 'b.jsonl line 3' "${run[@]}" --input b.jsonl
line '{"id": 1, "prompt": "x", "temperature": 1}' c
bad 4 'unknown field `temperature`' "${run[@]}" --input c.jsonl
line '{"id": 1}' d
bad 4 'd.jsonl line 1: has none' "${run[@]}" --input d.jsonl
line '{"id": 1, "prompt": "x", "token_ids": [1]}' e
bad 4 'more than one' "${run[@]}" --input e.jsonl
line '{"prompt": "x"}' f
bad 4 '`id`' "${run[@]}" --input f.jsonl
line '{"id": 1, "token_ids": [1, 288]}' g
bad 4 'token id 288' "${run[@]}" --input g.jsonl
line '{"id": 1, "token_ids": [1, -1]}' h
bad 4 'token id -1' "${run[@]}" --input h.jsonl
line '{"id": 1, "token_ids": [1.5]}' i
alone 4 '`token_ids`' "${run[@]}" --input i.jsonl
line '{"id": 1, "document": "x"}' j
alone 4 '`question`' "${run[@]}" --input j.jsonl
line '{"id": 1, "messages": [{"role": "robot", "content": "x"}]}' k
alone 4 'role "robot"' "${run[@]}" --input k.jsonl
line '{"id": 1, "messages": []}' l
alone 4 'no messages' "${run[@]}" --input l.jsonl
line '{"id": 1, "prompt": "x", "max_new_tokens": 0}' m
alone 4 '`max_new_tokens` 0' "${run[@]}" --input m.jsonl
printf '{"id": 1, "prompt": "\xff\xfe"}\n' >n.jsonl
alone 4 'n.jsonl line 1' "${run[@]}" --input n.jsonl
line '{"id": 1, "prompt": "x", "prompt": "y"}' o
alone 4 'o.jsonl line 1' "${run[@]}" --input o.jsonl

# --- sensitivity files, lists, calibration
bad 4 'text.txt' budget --sensitivity text.txt --context 100 --ratio 0.1
bad 4 'nofile.h5' budget --sensitivity nofile.h5 --context 100 --ratio 0.1
head -c 700 tiny.h5 >cut.h5
bad 4 'cut.h5' "${run[@]}" --prompt p --ratio 0.1 --sensitivity cut.h5
bad 4 'other.h5 is a profile of' "${run[@]}" --prompt p --ratio 0.1 --sensitivity other.h5
bad 4 'cut.h5' inspect cut.h5
echo '1 2 3' >short.list
bad 4 'short.list' budget --model tiny.gguf --context 100 --ratio 0.1 --allocator list:short.list
bad 4 'other.h5 is a profile of' bench --model tiny.gguf --ratio 0.1 --sensitivity other.h5
bad 4 nofile.gguf bench --model nofile.gguf
bad 4 'nofile.list' budget --model tiny.gguf --context 100 --ratio 0.1 --allocator list:nofile.list
bad 4 'empty.txt' "${prof[@]}" --calibration empty.txt --output o.h5
bad 4 'nofile.txt' "${prof[@]}" --calibration nofile.txt --output o.h5
bad 4 'no item is long enough' profile --model tiny.gguf --calibration text.txt --output o.h5 --context 30000
bad 4 'a.jsonl line 1' "${prof[@]}" --calibration a.jsonl --output o.h5

# --- order of sums, weights, instruction set
bad 2 'possible: auto tile pair' "${run[@]}" --prompt p --numerics sorted
bad 2 'possible: bf16 native' "${run[@]}" --prompt p --weights int4
bad 2 'tiny.gguf holds F32' "${run[@]}" --prompt p --weights native
bad 2 'folder holds' "${prof[@]/tiny.gguf/folder}" --calibration text.txt --output o.h5 --weights native
export RIPPLEKV_ISA=sse9
bad 2 'RIPPLEKV_ISA=sse9' "${run[@]}" --prompt p
bad 2 'RIPPLEKV_ISA=sse9' "${prof[@]}" --calibration text.txt --output o.h5
bad 2 'RIPPLEKV_ISA=sse9' bench --model tiny.gguf --prefill 8 --decode 0
unset RIPPLEKV_ISA

# --- memory: 4096 caches of 32000 tokens, 126 GiB
if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 100 ]; then
    for i in $(seq 4096); do echo "{\"id\": $i, \"token_ids\": [1]}"; done >many.jsonl
    bad 3 'stage 0 (layers' generate --model tiny.gguf --input many.jsonl --batch 4096 --max-new-tokens 32000
fi

# --- output
bad 5 'nodir' "${prof[@]}" --calibration text.txt --output nodir/o.h5
bad 5 'nodir' "${run[@]}" --prompt p --output nodir/o.jsonl
bad 5 'dir' "${run[@]}" --prompt p --output dir
bad 5 '/dev/full' "${run[@]}" --prompt p --output /dev/full
for i in $(seq 9); do line "{\"id\": $i, \"prompt\": \"x\", \"max_new_tokens\": $i}" "q$i"; done
cat q?.jsonl >q.jsonl
bad 5 '/dev/full' "${run[@]}" --input q.jsonl --batch 4 --output /dev/full
line '{"id": 1, "prompt": "x"}' p
bad 2 'overwritten' "${run[@]}" --input p.jsonl --output p.jsonl
[ -s p.jsonl ] || { echo "FAILED: p.jsonl was emptied"; failures=$((failures + 1)); }
cases=$((cases + 1))
"$RIPPLEKV_BIN" version >/dev/full 2>err
if [ $? != 5 ] || ! grep -q 'ERROR OUTPUT' err; then
    echo "FAILED: version to a full disk"
    failures=$((failures + 1))
fi

echo "$cases cases, $failures failures"
[ $failures = 0 ]
