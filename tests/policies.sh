#!/usr/bin/env bash
# Every policy under every allocator: the same records for any number of ranks and any chunks; answers
# of each policy are the same for any number of ranks.
# label: mpi
# timeout: 300
set -uo pipefail
[ -n "${RIPPLEKV_PYTHON:-}" ] || { echo "no Python"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
fail() { echo "FAILED: $*"; tail -5 ./*.err 2>/dev/null; exit 1; }
"$RIPPLEKV_BUILD/make_tiny" tiny.gguf || fail "no tiny model"
"$RIPPLEKV_PYTHON" - >docs.jsonl <<'P'
import json, random
words = "river stone cloud seven lamp quiet market engine harbour letter winter copper".split()
r = random.Random(9)
for i in range(3):
    print(json.dumps({"text": " ".join(r.choice(words) for _ in range(200))}))
P
launch() { # P COMMAND...: alone for 0
    local p=$1
    shift
    if [ "$p" = 0 ]; then "$@"; else "$MPIRUN" -n "$p" "$@"; fi
}
"$RIPPLEKV_BIN" profile --model tiny.gguf --calibration docs.jsonl --samples 3 --context 150 --response 6 --threads 1 \
    --signal kl,local,attention,damage --levels 0.1,0.3,0.6 --window 8 --output s.h5 >/dev/null 2>p.err || fail "profile"
policies="snapkv streaming h2o tova knorm expected random"
for policy in $policies; do
    for allocator in uniform pyramid ripple local cake curve; do
        s=''
        case $allocator in ripple | local | cake | curve) s="--sensitivity s.h5" ;; esac
        echo "$policy-$allocator: --policy $policy --allocator $allocator $s"
    done
    [ "$policy" = streaming ] || echo "$policy-heads: --policy $policy --head-mode adaptive --alpha 0.3"
done >sweep.txt
echo "kvpress: --preset kvpress --window 8" >>sweep.txt
echo "adakv: --preset adakv --window 8" >>sweep.txt
evaluate() { # NAME P EXTRA...
    local name=$1 p=$2
    shift 2
    launch "$p" "$RIPPLEKV_BIN" eval fidelity --model tiny.gguf --input docs.jsonl --context 150 --response 6 \
        --ratio 0.3 --sweep sweep.txt --threads 1 --output "$tmp/$name.jsonl" --json "$@" >"$name.json" 2>"$name.err" ||
        fail "$name: $?"
}
sed -i 's/$/ /; s/--window 8 $/--window 8/; s/\(--policy [a-z0-9]*\)/\1 --window 8/' sweep.txt
evaluate one 0
for p in 1 2 3 4; do
    evaluate "p$p" "$p"
    cmp one.jsonl "p$p.jsonl" || fail "$p ranks differ"
done
evaluate chunks 2 --chunk 37
cmp one.jsonl chunks.jsonl || fail "chunks of 37 differ"
evaluate chunks1 0 --chunk 1
cmp one.jsonl chunks1.jsonl || fail "single tokens differ"
"$RIPPLEKV_PYTHON" - <<'P' || fail "numbers"
import json
c = {x["name"]: x for x in json.load(open("one.json"))["configurations"]}
assert len(c) == 7 * 6 + 6 + 2, len(c)
for name, x in c.items():
    assert x["kl"] > 1e-9, x
    if name != "adakv":
        assert abs(x["kept_share"] - 0.3) < 0.003, x  # exact totals, head budgets too
policies = {x["policy"] for x in c.values()}
assert policies == {"snapkv", "streaming", "h2o", "tova", "knorm", "expected", "random"}, policies
uniform = [x["kl"] for n, x in c.items() if n.endswith("-uniform")]
assert len(set(uniform)) == 7, uniform
heads = [n[:-6] for n in c if n.endswith("-heads") and n != "tova-heads"]  # its heads agree
assert all(c[n + "-heads"]["kl"] != c[n + "-uniform"]["kl"] for n in heads)
P
# the tokens that are generated
head -c 1200 docs.jsonl >prompt.txt
answers=0
for policy in $policies; do
    mode=kv
    [ "$policy" = knorm ] && mode=adaptive
    extra=''
    [ "$policy" = streaming ] || extra="--head-mode $mode"
    first=''
    for p in 0 1 2 3 4; do
        # shellcheck disable=SC2086
        launch "$p" "$RIPPLEKV_BIN" generate --model tiny.gguf --prompt-file prompt.txt --policy "$policy" --ratio 0.3 \
            --window 8 --threads 1 --max-new-tokens 6 $extra --json >"g.json" 2>g.err || fail "generate $policy on $p"
        hash=$(sed -n 's/.*"logits_hash": *"\([0-9a-f]*\)".*/\1/p' g.json | head -1)
        [ -n "$hash" ] || fail "no hash"
        [ -n "$first" ] || first=$hash
        [ "$hash" = "$first" ] || fail "$policy: $p ranks give $hash, not $first"
        answers=$((answers + 1))
    done
done
echo "50 configurations on 0 to 4 ranks, $answers answers"
