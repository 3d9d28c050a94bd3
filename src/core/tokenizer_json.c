/* tokenizer_json.c - tokenizers from a tokenizer.json file.
 *
 * Components are read as in the Hugging Face library, absent keys by its defaults (old files lack
 * many). What would change the ids and is not implemented is refused by its name. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "core/tokenizer_impl.h"

#define REMEDY "use a Llama 3, Qwen, GPT-2 or SmolLM2 style tokenizer"

typedef struct loader {
    const char   *path;
    rk_tokenizer *t;
    const char   *regex[RK_SPLIT_STEPS]; /* split steps so far, as rk_splitter_open takes them */
    int           n_steps;
    bool          bytes_done; /* ByteLevel came: what follows would see its alphabet */
    int64_t       n_ids, n_bytes;
    char         *buf; /* room for the longest token */
    size_t        longest;
} loader;

static const char *type_of(const rk_json *j) {
    return rk_json_str(rk_json_get(j, "type"), "");
}
static bool is(const rk_json *j, const char *type) {
    return strcmp(type_of(j), type) == 0;
}
static bool absent(const rk_json *j) {
    return !j || rk_json_kind_of(j) == RK_JSON_NULL;
}
static bool flag(const rk_json *j, const char *key, bool dflt) {
    return rk_json_bool(rk_json_get(j, key), dflt);
}

static rk_status refuse(const loader *l, const char *part, const char *what) {
    return RK_FAIL(RK_E_INPUT, "%s: %s %.60s is not supported; " REMEDY, l->path, part,
                   *what ? what : "without a type");
}
static rk_status damaged(const loader *l, const char *what) {
    return RK_FAIL(RK_E_INPUT, "%s: %s; the file is damaged or not a tokenizer.json", l->path,
                   what);
}

/* ---- normalizer, pre-tokenizer, decoder, post-processor ---- */

/* Lists of components nest; each element goes to fn. */
static rk_status each_of(loader *l, const rk_json *seq, const char *key, int depth,
                         rk_status (*fn)(loader *, const rk_json *, int)) {
    const rk_json *list = rk_json_get(seq, key);
    if (rk_json_kind_of(list) != RK_JSON_ARRAY || depth > 8)
        return damaged(l, "a Sequence has no list of components");
    for (size_t i = 0; i < rk_json_len(list); i++) RK_TRY(fn(l, rk_json_at(list, i), depth + 1));
    return RK_OK;
}

static rk_status load_normalizer(loader *l, const rk_json *j, int depth) {
    if (absent(j)) return RK_OK;
    if (is(j, "Sequence")) return each_of(l, j, "normalizers", depth, load_normalizer);
    if (!is(j, "NFC")) return refuse(l, "normalizer", type_of(j));
    l->t->nfc = true;
    return RK_OK;
}

static rk_status add_step(loader *l, const char *regex) {
    if (l->n_steps == RK_SPLIT_STEPS) return refuse(l, "pre_tokenizer", "with more than 8 steps");
    l->regex[l->n_steps++] = regex;
    return RK_OK;
}

static rk_status load_split(loader *l, const rk_json *j) {
    const char *regex = rk_json_str(rk_json_get(rk_json_get(j, "pattern"), "Regex"), NULL);
    const char *behavior = rk_json_str(rk_json_get(j, "behavior"), "");
    if (!regex) return refuse(l, "pre_tokenizer", "Split without a Regex");
    if (strlen(regex) != rk_json_str_len(rk_json_get(rk_json_get(j, "pattern"), "Regex")))
        return refuse(l, "pre_tokenizer", "Split with U+0000 in its Regex");
    if (strcmp(behavior, "Isolated") != 0 || flag(j, "invert", false))
        return refuse(l, "pre_tokenizer", "Split with another behavior than Isolated");
    return add_step(l, regex);
}

static rk_status load_pre_tokenizer(loader *l, const rk_json *j, int depth) {
    if (absent(j)) return RK_OK;
    if (is(j, "Sequence")) return each_of(l, j, "pretokenizers", depth, load_pre_tokenizer);
    if (l->bytes_done) return refuse(l, "a pre_tokenizer after ByteLevel:", type_of(j));
    if (is(j, "Split")) return load_split(l, j);
    if (is(j, "Digits"))
        return add_step(l, flag(j, "individual_digits", false) ? rk_regex_digit : rk_regex_digits);
    if (!is(j, "ByteLevel")) return refuse(l, "pre_tokenizer", type_of(j));
    if (flag(j, "add_prefix_space", true)) RK_TRY(add_step(l, NULL));
    if (flag(j, "use_regex", true)) RK_TRY(add_step(l, rk_regex_gpt2));
    l->bytes_done = true;
    return RK_OK;
}

/* Ids of a template's special token, by its name in special_tokens. */
static rk_status template_token(loader *l, const rk_json *template, const rk_json *item,
                                bool after) {
    const char    *name = rk_json_str(rk_json_get(item, "id"), "");
    const rk_json *ids =
        rk_json_get(rk_json_get(rk_json_get(template, "special_tokens"), name), "ids");
    rk_tokenizer *t = l->t;
    if (rk_json_len(ids) == 0)
        return damaged(l, "the post_processor's template names a token without ids");
    for (size_t i = 0; i < rk_json_len(ids); i++) {
        int64_t id = rk_json_int(rk_json_at(ids, i), -1);
        int    *n = after ? &t->n_after : &t->n_before;
        if (id < 0 || id >= RK_TOK_ID_MAX)
            return damaged(l, "the post_processor's template has an id that no token has");
        if (*n == RK_TOK_TEMPLATE)
            return refuse(l, "post_processor", "TemplateProcessing with more than 8 tokens");
        (after ? t->after : t->before)[(*n)++] = (int32_t)id;
    }
    return RK_OK;
}

static rk_status load_template(loader *l, const rk_json *j) {
    const rk_json *single = rk_json_get(j, "single");
    int            n_text = 0;
    for (size_t i = 0; i < rk_json_len(single); i++) {
        const rk_json *item = rk_json_at(single, i), *token = rk_json_get(item, "SpecialToken");
        if (token)
            RK_TRY(template_token(l, j, token, n_text > 0));
        else
            n_text++;
    }
    if (n_text != 1) return refuse(l, "post_processor", "TemplateProcessing without one text");
    return RK_OK;
}

static rk_status load_post_processor(loader *l, const rk_json *j, int depth) {
    if (absent(j) || is(j, "ByteLevel")) return RK_OK; /* ByteLevel there concerns offsets only */
    if (is(j, "Sequence")) return each_of(l, j, "processors", depth, load_post_processor);
    if (!is(j, "TemplateProcessing")) return refuse(l, "post_processor", type_of(j));
    return load_template(l, j);
}

/* ---- vocabulary ---- */

static rk_status measure(loader *l, int64_t id, const rk_json *id_json, size_t n) {
    if (rk_json_kind_of(id_json) != RK_JSON_INT || id < 0)
        return damaged(l, "a token's id is not a number from 0");
    if (id >= RK_TOK_ID_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: token id %lld is impossibly large; the file is damaged",
                       l->path, (long long)id);
    if (id >= l->n_ids) l->n_ids = id + 1;
    if (n > l->longest) l->longest = n;
    l->n_bytes += (int64_t)n;
    return RK_OK;
}

static rk_status measure_entry(void *arg, const char *key, const rk_json *value) {
    return measure(arg, rk_json_int(value, -1), value, strlen(key));
}

static rk_status put_entry(void *arg, const char *key, const rk_json *value) {
    loader   *l = arg;
    rk_vocab *v = &l->t->bpe.vocab;
    int32_t   id = (int32_t)rk_json_int(value, -1);
    size_t    n = strlen(key);
    int64_t   k = rk_alphabet_bytes(key, n, l->buf);
    if (v->len[id] >= 0)
        return RK_FAIL(RK_E_INPUT, "%s: two tokens of model.vocab have the id %d", l->path, id);
    /* A token with a character outside the alphabet is plain text, matched as an added token. */
    rk_vocab_put(v, id, k < 0 ? key : l->buf, k < 0 ? n : (size_t)k, k >= 0);
    return RK_OK;
}

static rk_status load_merges(loader *l, const rk_json *merges) {
    if (rk_json_kind_of(merges) != RK_JSON_ARRAY) return damaged(l, "model.merges is no array");
    size_t n = rk_json_len(merges);
    if (n > RK_TOK_ID_MAX) return damaged(l, "model.merges is impossibly long");
    RK_TRY(rk_bpe_open_merges(&l->t->bpe, (int64_t)n));
    for (size_t i = 0; i < n; i++) {
        const rk_json *m = rk_json_at(merges, i), *a = rk_json_at(m, 0), *b = rk_json_at(m, 1);
        const char    *s = rk_json_str(m, NULL);
        if (s) { /* "left right" */
            size_t      len = rk_json_str_len(m);
            const char *gap = memchr(s, ' ', len);
            if (!gap) return damaged(l, "an entry of model.merges has no space");
            size_t n_left = (size_t)(gap - s);
            RK_TRY(rk_load_merge(&l->t->bpe, l->path, (int32_t)i, s, n_left, gap + 1,
                                 len - n_left - 1));
        } else { /* ["left", "right"] */
            if (!rk_json_str(a, NULL) || !rk_json_str(b, NULL) || rk_json_len(m) != 2)
                return damaged(l, "an entry of model.merges is not a pair of strings");
            RK_TRY(rk_load_merge(&l->t->bpe, l->path, (int32_t)i, rk_json_str(a, ""),
                                 rk_json_str_len(a), rk_json_str(b, ""), rk_json_str_len(b)));
        }
    }
    return RK_OK;
}

static rk_status load_one_added(loader *l, const rk_json *j) {
    rk_vocab   *v = &l->t->bpe.vocab;
    const char *content = rk_json_str(rk_json_get(j, "content"), "");
    size_t      n = rk_json_str_len(rk_json_get(j, "content")), len;
    rk_added    a = {.id = (int32_t)rk_json_int(rk_json_get(j, "id"), -1),
                     .special = flag(j, "special", false),
                     .normalized = flag(j, "normalized", false),
                     .lstrip = flag(j, "lstrip", false),
                     .rstrip = flag(j, "rstrip", false),
                     .single_word = flag(j, "single_word", false)};
    const char *have = rk_tokenizer_bytes(l->t, a.id, &len);
    bool        same = have && len == n && memcmp(have, content, n) == 0;
    if (n == 0) return RK_OK; /* never matches */
    if (have && !same) {      /* in the vocabulary it may stand in the alphabet */
        int64_t k = rk_alphabet_bytes(content, n, l->buf);
        if (k < 0 || (size_t)k != len || memcmp(have, l->buf, len) != 0)
            return RK_FAIL(RK_E_INPUT,
                           "%s: the added token \"%.80s\" has the id %d of another token", l->path,
                           content, a.id);
    }
    if (!have) rk_vocab_put(v, a.id, content, n, false);
    RK_TRY(rk_load_added(l->t, &a, content, n));
    return RK_OK;
}

static rk_status load_tokens(loader *l, const rk_json *vocab, const rk_json *added) {
    if (rk_json_kind_of(vocab) != RK_JSON_OBJECT) return damaged(l, "model.vocab is no object");
    if (!absent(added) && rk_json_kind_of(added) != RK_JSON_ARRAY)
        return damaged(l, "added_tokens is no array");
    RK_TRY(rk_json_each(vocab, measure_entry, l));
    size_t n_added = rk_json_kind_of(added) == RK_JSON_ARRAY ? rk_json_len(added) : 0;
    for (size_t i = 0; i < n_added; i++) {
        const rk_json *j = rk_json_at(added, i), *id = rk_json_get(j, "id");
        if (rk_json_kind_of(rk_json_get(j, "content")) != RK_JSON_STRING)
            return damaged(l, "an added token has no content");
        RK_TRY(measure(l, rk_json_int(id, -1), id, rk_json_str_len(rk_json_get(j, "content"))));
    }
    if (l->n_ids == 0) return damaged(l, "model.vocab is empty");
    if (l->n_bytes > UINT32_MAX) return damaged(l, "the tokens have more than 4 GiB of text");
    RK_TRY(rk_load_room(l->t, l->n_ids, (int64_t)rk_json_len(vocab), l->n_bytes, (int64_t)n_added));
    void *p;
    RK_TRY(rk_mem_alloc((int64_t)l->longest + 1, 1, "token text", &p));
    l->buf = p;
    RK_TRY(rk_json_each(vocab, put_entry, l));
    rk_bpe_index_bytes(&l->t->bpe);
    for (size_t i = 0; i < n_added; i++) RK_TRY(load_one_added(l, rk_json_at(added, i)));
    return RK_OK;
}

/* ---- model ---- */

static bool nonempty(const rk_json *j) {
    return *rk_json_str(j, "");
}

static rk_status check_model(const loader *l, const rk_json *root, const rk_json *m) {
    const rk_json *type = rk_json_get(m, "type");
    if (rk_json_kind_of(m) != RK_JSON_OBJECT) return damaged(l, "there is no model");
    if (type && !is(m, "BPE")) return refuse(l, "model", type_of(m));
    if (flag(m, "byte_fallback", false) || is(rk_json_get(root, "pre_tokenizer"), "Metaspace"))
        return refuse(l, "model", "BPE of the SentencePiece style (byte_fallback)");
    if (rk_json_num(rk_json_get(m, "dropout"), 0) > 0) return refuse(l, "model", "with dropout");
    if (nonempty(rk_json_get(m, "continuing_subword_prefix")))
        return refuse(l, "model", "with continuing_subword_prefix");
    if (nonempty(rk_json_get(m, "end_of_word_suffix")))
        return refuse(l, "model", "with end_of_word_suffix");
    const rk_json *decoder = rk_json_get(root, "decoder");
    if (!absent(decoder) && !is(decoder, "ByteLevel"))
        return refuse(l, "decoder", type_of(decoder));
    return RK_OK;
}

/* What the model makes of a byte without a token: nothing, or unk_token. */
static rk_status load_unk(loader *l, const rk_json *m) {
    const char *unk = rk_json_str(rk_json_get(m, "unk_token"), NULL);
    rk_bpe     *b = &l->t->bpe;
    size_t      n = unk ? strlen(unk) : 0;
    if (!unk) return RK_OK;
    int64_t k = n <= l->longest ? rk_alphabet_bytes(unk, n, l->buf) : -1;
    b->unk = k < 0 ? rk_tokenizer_find(l->t, unk) : rk_vocab_find(&b->vocab, l->buf, (size_t)k);
    if (b->unk == RK_TOK_NONE)
        return RK_FAIL(RK_E_INPUT, "%s: model.unk_token \"%.80s\" is not in the vocabulary",
                       l->path, unk);
    b->fuse_unk = flag(m, "fuse_unk", false);
    return RK_OK;
}

static rk_status check_template(const loader *l, const int32_t *ids, int n) {
    size_t unused;
    for (int i = 0; i < n; i++)
        if (!rk_tokenizer_bytes(l->t, ids[i], &unused))
            return damaged(l, "the post_processor's template has an id that no token has");
    return RK_OK;
}

static rk_status load_root(loader *l, const rk_json *root) {
    const rk_json *m = rk_json_get(root, "model");
    rk_tokenizer  *t = l->t;
    if (rk_json_kind_of(root) != RK_JSON_OBJECT) return damaged(l, "the document is no object");
    RK_TRY(check_model(l, root, m));
    RK_TRY(load_normalizer(l, rk_json_get(root, "normalizer"), 0));
    RK_TRY(load_pre_tokenizer(l, rk_json_get(root, "pre_tokenizer"), 0));
    if (!l->bytes_done) return refuse(l, "pre_tokenizer", "without ByteLevel");
    RK_TRY(load_post_processor(l, rk_json_get(root, "post_processor"), 0));
    RK_TRY(load_tokens(l, rk_json_get(m, "vocab"), rk_json_get(root, "added_tokens")));
    RK_TRY(load_unk(l, m));
    RK_TRY(load_merges(l, rk_json_get(m, "merges")));
    RK_TRY(check_template(l, t->before, t->n_before));
    RK_TRY(check_template(l, t->after, t->n_after));
    t->bpe.ignore_merges = flag(m, "ignore_merges", false);
    RK_TRY(rk_splitter_open(l->regex, l->n_steps, l->path, &t->split));
    const rk_split_rule *rule = rk_split_rule_like(l->regex, l->n_steps);
    snprintf(t->kind, sizeof t->kind, "byte-level BPE, %s", rule ? rule->pre : "own split rule");
    return RK_OK;
}

rk_status rk_tokenizer_open_json(const char *path, rk_tokenizer **out) {
    *out = NULL;
    rk_json *root;
    RK_TRY(rk_json_load(path, &root));
    loader    l = {.path = path};
    void     *p;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc(1, sizeof(rk_tokenizer), "tokenizer", &p));
    l.t = p;
    RK_TRY_OUT(st, load_root(&l, root));
    *out = l.t;
    l.t = NULL;
out:
    rk_tokenizer_close(l.t);
    rk_mem_free(l.buf);
    rk_json_close(root);
    return st;
}
