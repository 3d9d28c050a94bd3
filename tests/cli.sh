#!/usr/bin/env bash
# label: mpi
# timeout: 300
# Every command from outside: what it prints, which files it leaves, that results alone are on
# stdout, and that answers are the same for several ways to ask.
set -uo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
rk=$RIPPLEKV_BIN py=${RIPPLEKV_PYTHON:-python3} failures=0 checks=0
command -v "$py" >/dev/null || { echo "no Python"; exit 77; }

is() { # is WHAT COMMAND...: the command must succeed
    checks=$((checks + 1))
    if ! "${@:2}"; then
        failures=$((failures + 1))
        echo "FAILED: $1"
    fi
}
same() { is "$1" [ "$2" = "$3" ] || true; [ "$2" = "$3" ] || printf '  %.200s\n' "$2" "$3"; }
# Run quietly; exit code in $rc, output in out and err.
go() { "$@" >out 2>err </dev/null; rc=$?; [ $rc = 0 ] || { echo "exit $rc of $*"; tail -3 err; }; }
# js FILE EXPRESSION: d is the object (or the list of a file's lines)
js() { "$py" - "$1" "$2" <<'P'
import json, sys
text = open(sys.argv[1]).read()
try:
    d = json.loads(text)
except ValueError:
    d = [json.loads(line) for line in text.splitlines()]
v = eval(sys.argv[2])
print(v if isinstance(v, str) else json.dumps(v, sort_keys=True))
P
}
holds() { same "$1" "$(js "$2" "$3")" true; }
# The lines of a JSONL file without its times.
timeless() { js "$1" '[{k: r[k] for k in r if not k.endswith("_s")} for r in (d if isinstance(d, list) else [d])]'; }

tiny=${RIPPLEKV_TINY:-}
if [ -z "$tiny" ]; then
    tiny=tiny.gguf
    "$RIPPLEKV_BUILD/make_tiny" $tiny || exit 1
fi
"$RIPPLEKV_BUILD/make_tiny" folder && "$RIPPLEKV_BUILD/make_tiny" cousin.gguf --seed 2 || exit 1
for i in $(seq 80); do echo "line $i of a text that is long enough to be cut into samples"; done >text.txt
layers=$("$rk" inspect "$tiny" --json 2>/dev/null >i.json && js i.json 'd["config"]["layers"]')

# --- help and version
go "$rk" help
same "commands of help" "$(awk '/^  [a-z]/ { printf "%s ", $1 }' out)" "profile budget generate eval bench inspect version help "
for c in profile budget generate eval bench inspect version help; do
    go "$rk" $c --help
    is "$c --help on stdout" test -s out
    is "$c --help says nothing on stderr" test ! -s err
    is "$c --help has what is not there yet" eval "! grep -qE -- '--(trace|groups|rerotate|dump|micro-batches)|cuda' out"
done
go "$rk" help --markdown
is "README table" grep -qF '| `--ratio R` | budget, generate, eval, bench |' out
readme=$RIPPLEKV_ROOT/README.md
is "README has the table as it is" eval '! grep -q "^| .--" "$readme" || cmp -s <(grep "^| .--" out) <(grep "^| .--" "$readme")'
go "$rk" version
is "version" grep -qE '^ripplekv [0-9]' out
go "$rk" version --full --json
holds "version --full --json" out 'all(k in d for k in ("version", "git", "compiler", "libraries", "cpu_paths")) and "scalar" in d["cpu_paths"]'
go "$MPIRUN" -n 3 "$rk" version
same "three ranks, one version" "$(wc -l <out)" 1

# --- inspect
for m in "$tiny" folder; do
    go "$rk" inspect "$m" --json
    holds "inspect $m" out 'd["kind"] == "model" and d["n_tensors"] == len(d["tensors"]) and d["unsupported"] == [] and d["bytes"] == sum(t["bytes"] for t in d["tensors"])'
    js out 'd["config"]["model_shape_hash"]' >>shapes
done
same "one shape hash of both forms" "$(sort -u shapes | wc -l)" 1
go "$rk" inspect "$tiny"
is "inspect lists tensors" grep -q 'blk.0.attn_q.weight  *F32  *128 x 64 ' out
sed -i 's/<|im_start|>/<|other|>/g' folder/tokenizer_config.json
go "$rk" inspect folder
is "inspect says what is not supported and why" grep -q '^not supported: chat template: .*not known' out

# --- profile
prof=(profile --model "$tiny" --calibration text.txt --samples 3 --context 100 --response 8 --threads 1)
go "$rk" "${prof[@]}" --output a.h5 --json
holds "profile --json" out "len(d['sensitivity']) == $layers and all(v > 0 for v in d['sensitivity']) and d['noise_floor'] >= 0 and len(d['logits_hash']) == 16 and d['prefills'] > 1 and d['profile_s'] > d['prefill_s'] > 0 and len(d['stages']) == 1"
cp out profile.json
is "stderr is tagged" eval '! grep -qv "^\[rk" err'
is "settings are logged" grep -q 'INFO settings: profile .*context=100 .*epsilon=0.3' err
go "$MPIRUN" -n 2 "$rk" "${prof[@]}" --output b.h5
same "a row for each layer" "$(grep -cE '^ +[0-9]+ +[0-9.]+e' out)" "$layers"
is "the file's name is told" grep -q 'written to b.h5' out
is "noise floor is told" grep -q 'noise floor' out
go "$rk" inspect b.h5 --json
same "two ranks, same sensitivity" "$(js out 'd["sensitivity"]')" "$(js profile.json 'd["sensitivity"]')"
holds "attributes" out 'd["ranks"] == 2 and d["context"] == 100 and d["epsilon"] == [0.3] and "--samples 3" in d["command"]'
go "$rk" "${prof[@]}" --output c.h5 --dry-run --json
holds "dry run of profile" out 'd["dry_run"] and d["samples"] == 3 and d["stages"][0]["weight_bytes"] > 0'
is "a dry run leaves nothing" test ! -e c.h5

# --- budget
go "$rk" budget --sensitivity a.h5 --context 1000 --ratio 0.2 --json
holds "budget --json" out "len(d['budgets']) == $layers and sum(d['budgets']) == d['total'] == round(0.2 * 1000 * $layers) and min(d['budgets']) >= 32"
is "budgets follow sensitivity" eval '[ "$(js out "sorted(range(len(d[\"budgets\"])), key=lambda l: -d[\"sensitivity\"][l])[0] == d[\"budgets\"].index(max(d[\"budgets\"]))")" = true ]'
go "$rk" budget --sensitivity a.h5 --context 1000 --ratio 0.2
same "a row for each layer of budget" "$(grep -cE '^ +[0-9]+ +[0-9.]+e.* #+$' out)" "$layers"
go "$rk" budget --model "$tiny" --context 1000 --budget 50 --json
same "uniform budgets" "$(js out 'sorted(set(d["budgets"]))')" "[50]"
seq "$layers" >shares.txt
go "$rk" budget --model "$tiny" --context 1000 --budget 100 --allocator list:shares.txt --json
holds "listed budgets ascend" out 'd["budgets"] == sorted(d["budgets"]) and d["budgets"][0] < d["budgets"][-1]'
go "$rk" budget --model "$tiny" --context 1000 --ratio 0.2 --allocator pyramid --json
holds "pyramid budgets descend" out 'd["budgets"] == sorted(d["budgets"], reverse=True)'

# --- generate: one prompt
gen=(generate --model "$tiny" --threads 1)
go "$rk" "${gen[@]}" --prompt 'Once upon a time' --max-new-tokens 12
cp out stream
is "a summary on stderr" grep -qE 'INFO generate: .*logits hash [0-9a-f]{16}' err
go "$rk" "${gen[@]}" --prompt 'Once upon a time' --max-new-tokens 12 --json
same "keys of the object" "$(js out 'sorted(d)')" '["backend", "decode_s", "finish_reason", "id", "kv_bytes", "kv_tokens", "logits_hash", "new_tokens", "numerics", "path", "prompt_tokens", "stages", "text", "token_ids", "ttft_s", "weights"]'
is "the stream is the text and a newline" cmp -s stream <("$py" -c 'import json, sys; sys.stdout.buffer.write((json.load(open("out"))["text"] + "\n").encode())')
holds "lengths" out "d['new_tokens'] == len(d['token_ids']) <= 12 and d['kv_tokens'] == [d['prompt_tokens']] * $layers and d['finish_reason'] in ('stop', 'length')"
cp out one.json
printf 'Once upon a time' >p.txt
go "$rk" "${gen[@]}" --prompt-file p.txt --max-new-tokens 12 --json
same "a prompt from a file" "$(timeless out | sed 's/, "stages.*//')" "$(timeless one.json | sed 's/, "stages.*//')"
"$py" - >stop.txt <<'P'
import json
print(json.load(open("one.json"))["text"][2:4])
P
if [ "$(wc -c <stop.txt)" -gt 2 ] && ! grep -q '^-' stop.txt; then
    go "$rk" "${gen[@]}" --prompt 'Once upon a time' --max-new-tokens 12 --json --stop="$(cat stop.txt)"
    same "a stop text ends the answer" "$(js out 'd["finish_reason"]')" stop
    is "and is cut off" eval '! js out "d[\"text\"]" | grep -qF -- "$(cat stop.txt)"'
    go "$rk" "${gen[@]}" --prompt 'Once upon a time' --max-new-tokens 12 --stop="$(cat stop.txt)"
    cp out cut
    go "$rk" "${gen[@]}" --prompt 'Once upon a time' --max-new-tokens 12 --json --stop="$(cat stop.txt)"
    is "the stream stops there too" cmp -s cut <("$py" -c 'import json, sys; sys.stdout.buffer.write((json.load(open("out"))["text"] + "\n").encode())')
fi

# --- generate: many prompts
"$py" - >in.jsonl <<'P'
import json
text = open("text.txt").read()
row = lambda **k: print(json.dumps(k))
row(id="a", prompt=text[:900])
row(id=2, document=text[:300], question="What is it?")
row(id="three", messages=[{"role": "user", "content": text[:300] + "\n\nWhat is it?"}], max_new_tokens=3)
print()
row(id="ids", token_ids=[3, 1, 4, 1, 5])
row(id="forged", messages=[{"role": "user", "content": "<|im_end|>"}])
row(id="raw", prompt="<|im_end|>")
P
many=("${gen[@]}" --input in.jsonl --max-new-tokens 6)
go "$rk" "${many[@]}" --ratio 0.25 --sensitivity a.h5
cp out full.jsonl
same "ids in input order" "$(js out '[r["id"] for r in d]')" '["a", 2, "three", "ids", "forged", "raw"]'
same "keys of a line" "$(js out 'sorted(d[0])')" '["decode_s", "finish_reason", "id", "kv_bytes", "kv_tokens", "logits_hash", "new_tokens", "prompt_tokens", "text", "token_ids", "ttft_s"]'
holds "document + question is one message" out 'd[1]["prompt_tokens"] == d[2]["prompt_tokens"] and d[1]["token_ids"][:3] == d[2]["token_ids"] and d[2]["new_tokens"] == 3'
holds "contents parse no special tokens, raw prompts do" out 'd[5]["prompt_tokens"] == 1 and d[4]["prompt_tokens"] > 10'
for i in 0 1 3; do
    n=$(js full.jsonl "d[$i]['prompt_tokens']")
    go "$rk" budget --sensitivity a.h5 --context "$n" --ratio 0.25 --json
    same "kv_tokens of prompt $i are its budgets" "$(js full.jsonl "d[$i]['kv_tokens']")" "$(js out 'd["budgets"]')"
done
go "$MPIRUN" -n 3 "$rk" "${many[@]}" --ratio 0.25 --sensitivity a.h5 --output o.jsonl
same "nothing on stdout with --output" "$(wc -c <out)" 0
same "three ranks, same lines" "$(timeless o.jsonl)" "$(timeless full.jsonl)"
go "$rk" "${many[@]}" --ratio 0.25 --sensitivity a.h5 --batch 1 --chunk 64 --json
same "one at a time, same answers" "$(js out '[{k: r[k] for k in r if not k.endswith("_s")} for r in d["results"]]')" "$(timeless full.jsonl)"
holds "stages of all" out 'd["prompts"] == 6 and len(d["stages"]) == 1 and d["stages"][0]["compute_s"] > 0'
printf 'old text that is longer than what comes: %2000s' x >o.jsonl
go "$rk" "${many[@]}" --output o.jsonl --json
same "an old file is replaced" "$(js o.jsonl 'len(d)')" 6
holds "a summary object beside the file" out '"results" not in d and d["new_tokens"] > 0'
head -1 in.jsonl >first.jsonl
for extra in '--first-token compressed' '--policy streaming' '--allocator pyramid' '--pool avg --kernel 3 --pool-first --group-reduce max' '--backend ref --dtype f32'; do
    # shellcheck disable=SC2086
    go "$rk" "${gen[@]}" --input first.jsonl --max-new-tokens 3 --budget 60 $extra
    holds "$extra" out "isinstance(d, dict) and d['new_tokens'] > 0 and sum(d['kv_tokens']) <= 61 * $layers"
done
for i in 1 2; do
    go "$rk" "${gen[@]}" --prompt Hello --temperature 1.5 --top-p 0.9 --seed 5 --max-new-tokens 8 --json
    js out 'd["token_ids"]' >>seeds
done
same "one seed, one answer" "$(sort -u seeds | wc -l)" 1
go "$rk" "${gen[@]}" --prompt Hello --temperature 1.5 --top-p 0.9 --seed 6 --max-new-tokens 8 --json
js out 'd["token_ids"]' >>seeds
same "another seed, another answer" "$(sort -u seeds | wc -l)" 2
go "$rk" "${gen[@]}" --chat --prompt 'What is it?' --max-new-tokens 4 --json
cp out chat.json
echo '{"id": "prompt", "messages": [{"role": "user", "content": "What is it?"}]}' >chat.jsonl
go "$rk" "${gen[@]}" --input chat.jsonl --max-new-tokens 4
same "--chat is a user's message" "$(js out 'd["token_ids"]')" "$(js chat.json 'd["token_ids"]')"

# --- bench: what is measured, not how fast it is
ben=(bench --model "$tiny" --threads 1 --prefill 100,200 --context 60,150 --batch 1,3 --decode 5 --ratio 0.3 --sensitivity a.h5 --profile --response 8 --repeat 2)
go "$rk" "${ben[@]}" --json
cp out bench.json
same "keys of bench" "$(js out 'sorted(d)')" '["backend", "beside_uniform", "compress_s", "decode", "decode_tok_s", "kv_bytes", "logits_hash", "model", "numerics", "path", "peak_bytes", "prefill", "prefill_s", "prefills", "profile", "profile_s", "ranks", "repeat", "roofs", "seed", "stages", "threads", "weights"]'
same "one entry for each setting" "$(js out '[[r["tokens"] for r in d["prefill"]], [[r["context"], r["batch"], r["cache"]] for r in d["decode"]], [r["context"] for r in d["profile"]]]')" \
    '[[100, 200], [[60, 1, "full"], [60, 1, "compressed"], [60, 3, "full"], [60, 3, "compressed"], [150, 1, "full"], [150, 1, "compressed"], [150, 3, "full"], [150, 3, "compressed"]], [60, 150]]'
holds "the first compressed one on top" out 'all(d["decode"][1][k] == d[k] for k in ("decode_tok_s", "kv_bytes", "logits_hash", "compress_s")) and d["prefill"][0]["prefill_s"] == d["prefill_s"] and d["profile"][0]["prefills"] == d["prefills"]'
holds "rates are positive" out 'all(d["roofs"][k] > 0 for k in ("flop_s", "l2_read_s")) and all(r["flop_s"] > 0 and r["min_s"] <= r["prefill_s"] <= r["max_s"] for r in d["prefill"]) and all(r["step_s"] > 0 and r["read_s"] > 0 for r in d["decode"]) and all(r["prefills"] > 1 for r in d["profile"])'
holds "whole prompts where nothing is evicted, else a third" out "all(r['kv_tokens'] == r['context'] if r['cache'] == 'full' else r['kv_tokens'] * $layers == max(round(0.3 * $layers * r['context']), 32 * $layers) for r in d['decode'])"
holds "bytes follow tokens" out "all(r['kv_bytes'] * 60 == d['decode'][0]['kv_bytes'] * r['batch'] * r['kv_tokens'] for r in d['decode'])"
holds "memory at most" out 'd["peak_bytes"] == d["stages"][0]["peak_bytes"] >= max(r["peak_bytes"] for k in ("prefill", "decode", "profile") for r in d[k]) > 0'
hashes='[r["logits_hash"] for k in ("prefill", "decode", "profile") for r in d[k]]'
holds "different settings, different logits" out "len(set($hashes)) == 12"
go "$MPIRUN" -n 2 "$rk" "${ben[@]}" --chunk 32 --json
same "two ranks, same logits" "$(js out "$hashes")" "$(js bench.json "$hashes")"
holds "both ranks in it" out 'd["ranks"] == 2 and d["roofs"]["threads"] == 2 and len(d["stages"]) == 2 and d["peak_bytes"] == sum(s["peak_bytes"] for s in d["stages"])'
js bench.json "$hashes" | tr -d '[],"' | tr ' ' '\n' | sort >hashes
go "$rk" "${ben[@]}"
same "the text has them too" "$(grep -oE '[0-9a-f]{16}$' out | sort)" "$(cat hashes)"
go "$rk" bench --model "$tiny" --prefill 0 --context 40 --decode 1 --budget 33 --allocator pyramid --policy streaming --json
holds "decode alone" out 'd["prefill"] == d["profile"] == [] and d["prefill_s"] == d["decode"][1]["prefill_s"] and d["decode"][1]["kv_tokens"] == 33 and d["decode"][0]["decode_s"] == d["decode"][0]["step_s"]'
go "$rk" bench --model "$tiny" --decode 0 --backend ref --json
holds "prefill alone, on ref" out 'd["decode"] == d["profile"] == [] and "kv_bytes" not in d and d["logits_hash"] == d["prefill"][0]["logits_hash"] and d["weights"] == "f32"'
go "$MPIRUN" -n 2 "$rk" "${ben[@]}" --dry-run --json
holds "dry run of bench" out 'd["dry_run"] and d["sequences"] == 3 and d["max_prompt_tokens"] == 200 and len(d["stages"]) == 2'

# --- warnings, dry run, quiet
go "$rk" generate --model cousin.gguf --prompt "$(head -c 300 text.txt)" --ratio 0.5 --sensitivity a.h5 --max-new-tokens 2
same "one warning about other weights" "$(grep -c 'WARN budget: .*other weights' err)" 1
go "$rk" "${many[@]}" --ratio 0.25 --sensitivity a.h5
is "none about its own" eval '! grep -q WARN err'
go "$MPIRUN" -n 2 "$rk" "${many[@]}" --ratio 0.25 --output dry.jsonl --dry-run
is "dry run shows the stages" grep -qE '^ +1  [0-9]+-[0-9]+ ' out
is "and writes nothing" test ! -e dry.jsonl
go "$rk" "${gen[@]}" --prompt Hello --max-new-tokens 2 --log error
is "--log error is quiet" test ! -s err
"$rk" inspect "$tiny" >/dev/full 2>err
same "a full disk under stdout" $? 5

echo "$checks checks, $failures failures"
[ $failures = 0 ]
