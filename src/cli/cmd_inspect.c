/* cmd_inspect.c - ripplekv inspect: what a model or a sensitivity file holds. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "core/chat.h"
#include "core/tokenizer.h"
#include "profiler/profile_h5.h"

/* ---- models ---- */

static rk_json *config_json(const rk_config *c) {
    static const char *const scaling[] = {"none", "linear", "llama3"};
    rk_json                 *o = rk_json_object();
    rk_json_set_str(o, "name", c->name);
    rk_json_set_str(o, "architecture", c->arch);
    rk_json_set_int(o, "layers", c->n_layers);
    rk_json_set_int(o, "d_model", c->d_model);
    rk_json_set_int(o, "heads", c->n_heads);
    rk_json_set_int(o, "kv_heads", c->n_kv_heads);
    rk_json_set_int(o, "head_dim", c->head_dim);
    rk_json_set_int(o, "d_ffn", c->d_ffn);
    rk_json_set_int(o, "vocabulary", c->n_vocab);
    rk_json_set_int(o, "context", c->max_positions);
    rk_json_set_num(o, "rope_theta", c->rope_theta);
    rk_json_set_str(o, "rope_scaling", scaling[c->rope_scaling]);
    rk_json_set_num(o, "rms_eps", c->rms_eps);
    rk_json_set_bool(o, "tied_head", c->tied);
    rk_json_set_bool(o, "qkv_bias", c->qkv_bias);
    rk_json_set_bool(o, "qk_norm", c->qk_norm);
    rk_cli_set_hash(o, "model_shape_hash", rk_config_shape_hash(c));
    return o;
}

static void add_problem(rk_json *list, const char *what, const char *consequence) {
    char text[RK_ERR_TEXT + 128];
    snprintf(text, sizeof text, "%s: %s (%s)", what, rk_err_last()->text, consequence);
    rk_json_add_str(list, text);
    rk_err_clear();
}

/* Tokenizer and chat template; what cannot be used goes to `unsupported` with the reason. */
static void add_text_parts(rk_json *o, rk_json *problems, const rk_weights *w) {
    rk_tokenizer *t = NULL;
    rk_chat      *chat = NULL;
    if (rk_tokenizer_open_model(rk_weights_path(w), rk_weights_gguf(w), &t) != RK_OK) {
        add_problem(problems, "tokenizer", "generate and profile need it");
        return;
    }
    rk_json_set_str(o, "tokenizer", rk_tokenizer_kind(t));
    rk_json_set_int(o, "tokens", rk_tokenizer_size(t));
    if (rk_chat_open(rk_weights_chat_template(w), NULL, t, &chat) == RK_OK)
        rk_json_set_str(o, "chat_template", rk_chat_name(chat));
    else
        add_problem(problems, "chat template", "raw prompts only, or --chat-template");
    const rk_config *c = rk_weights_config(w);
    rk_json         *stop = rk_json_array();
    for (int i = 0; i < c->n_stop; i++) {
        rk_json    *s = rk_json_object();
        size_t      n = 0;
        const char *bytes = rk_tokenizer_bytes(t, c->stop[i], &n);
        rk_json_set_int(s, "id", c->stop[i]);
        rk_json_set_strn(s, "token", bytes ? bytes : "", n);
        rk_json_add(stop, s);
    }
    rk_json_set(o, "stop", stop);
    rk_json_set_int(o, "bos", rk_tokenizer_bos(t));
    rk_chat_close(chat);
    rk_tokenizer_close(t);
}

static rk_json *model_json(const rk_weights *w) {
    rk_json *o = rk_json_object(), *problems = rk_json_array(), *list = rk_json_array();
    int64_t  bytes = 0, count = 0;
    rk_json_set_str(o, "kind", "model");
    rk_json_set_str(o, "path", rk_weights_path(w));
    rk_json_set_str(o, "format", rk_weights_gguf(w) ? "gguf" : "safetensors");
    rk_json_set(o, "config", config_json(rk_weights_config(w)));
    add_text_parts(o, problems, w);
    for (int i = 0; i < rk_weights_count(w); i++) {
        const rk_weights_entry *e = rk_weights_entry_at(w, i);
        rk_json                *t = rk_json_object(), *shape = rk_json_array();
        int64_t                 n = 1;
        for (int d = 0; d < e->rank; d++) {
            rk_json_add_int(shape, e->dim[d]);
            n *= e->dim[d];
        }
        rk_json_set_str(t, "name", e->name);
        rk_json_set_str(t, "dtype", e->dtype);
        rk_json_set(t, "shape", shape);
        rk_json_set_int(t, "bytes", e->bytes);
        rk_json_add(list, t);
        bytes += e->bytes;
        count += n;
    }
    rk_json_set(o, "tensors", list);
    rk_json_set_int(o, "n_tensors", rk_weights_count(w));
    rk_json_set_int(o, "parameters", count);
    rk_json_set_int(o, "bytes", bytes);
    rk_json_set_str(o, "dtype", rk_weights_dtype(w));
    rk_json_set(o, "unsupported", problems);
    return o;
}

static rk_status show_member(void *arg, const char *key, const rk_json *v) {
    (void)arg;
    switch (rk_json_kind_of(v)) {
    case RK_JSON_STRING:
        printf("%-18s %s\n", key, rk_json_str(v, ""));
        break;
    case RK_JSON_INT:
        printf("%-18s %lld\n", key, (long long)rk_json_int(v, 0));
        break;
    case RK_JSON_REAL:
        printf("%-18s %.6g\n", key, rk_json_num(v, 0));
        break;
    case RK_JSON_BOOL:
        printf("%-18s %s\n", key, rk_json_bool(v, false) ? "yes" : "no");
        break;
    default:
        break;
    }
    return RK_OK;
}

static void show_tensors(const rk_json *list) {
    printf("\n%-34s %-6s %-20s %12s\n", "tensor", "dtype", "shape", "bytes");
    for (size_t i = 0; i < rk_json_len(list); i++) {
        const rk_json *t = rk_json_at(list, i), *dims = rk_json_get(t, "shape");
        char           shape[96] = "";
        for (size_t d = 0; d < rk_json_len(dims); d++) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%lld", d ? " x " : "",
                     (long long)rk_json_int(rk_json_at(dims, d), 0));
        }
        printf("%-34s %-6s %-20s %12lld\n", rk_json_str(rk_json_get(t, "name"), ""),
               rk_json_str(rk_json_get(t, "dtype"), ""), shape,
               (long long)rk_json_int(rk_json_get(t, "bytes"), 0));
    }
}

static rk_status show_model(const rk_json *o) {
    const rk_json *stop = rk_json_get(o, "stop"), *bad = rk_json_get(o, "unsupported");
    char           human[32];
    RK_TRY(rk_json_each(rk_json_get(o, "config"), show_member, NULL));
    for (const char *const *k = (const char *const[]){"tokenizer", "tokens", "chat_template", NULL};
         *k; k++)
        if (rk_json_get(o, *k)) RK_TRY(show_member(NULL, *k, rk_json_get(o, *k)));
    for (size_t i = 0; i < rk_json_len(stop); i++) {
        const rk_json *s = rk_json_at(stop, i);
        printf("%-18s %lld %s\n", "stop token", (long long)rk_json_int(rk_json_get(s, "id"), 0),
               rk_json_str(rk_json_get(s, "token"), ""));
    }
    show_tensors(rk_json_get(o, "tensors"));
    printf("\n%lld tensors, %lld parameters, %s, mostly %s\n",
           (long long)rk_json_int(rk_json_get(o, "n_tensors"), 0),
           (long long)rk_json_int(rk_json_get(o, "parameters"), 0),
           rk_mem_human(rk_json_int(rk_json_get(o, "bytes"), 0), human),
           rk_json_str(rk_json_get(o, "dtype"), ""));
    for (size_t i = 0; i < rk_json_len(bad); i++)
        printf("not supported: %s\n", rk_json_str(rk_json_at(bad, i), ""));
    return RK_OK;
}

static rk_status inspect_model(const rk_cli *c) {
    rk_weights *w;
    RK_TRY(rk_weights_open(c->o->positional, &w));
    rk_json *o = model_json(w);
    rk_weights_close(w);
    if (c->o->json) {
        rk_cli_print_json(o);
        return RK_OK;
    }
    rk_status st = show_model(o);
    rk_json_close(o);
    return st;
}

/* ---- sensitivity files ---- */

static void add_numbers(rk_json *o, const char *key, const double *v, int n) {
    rk_json *list = rk_json_array();
    for (int i = 0; i < n; i++) rk_json_add_num(list, v[i]);
    rk_json_set(o, key, list);
}

static rk_json *profile_json(const rk_profile *p, const char *path) {
    rk_json *o = rk_json_object();
    int      done = 0;
    for (int i = 0; i < p->n_samples; i++) done += p->done[i] != 0;
    rk_json_set_str(o, "kind", "sensitivity");
    rk_json_set_str(o, "path", path);
    rk_json_set_str(o, "model_name", p->model_name);
    rk_cli_set_hash(o, "model_shape_hash", p->model_shape_hash);
    rk_cli_set_hash(o, "weights_hash", p->weights_hash);
    rk_cli_set_hash(o, "calibration_hash", p->calibration_hash);
    rk_json_set_int(o, "n_layers", p->n_layers);
    rk_json_set_int(o, "n_kv_heads", p->n_kv_heads);
    rk_json_set_int(o, "head_dim", p->head_dim);
    rk_json_set_int(o, "samples", p->n_samples);
    rk_json_set_int(o, "samples_done", done);
    add_numbers(o, "epsilon", p->epsilon, p->n_epsilon);
    rk_json_set_int(o, "draws", p->n_draws);
    rk_json_set_int(o, "seed", (int64_t)p->seed);
    rk_json_set_int(o, "context", p->context);
    rk_json_set_int(o, "response", p->response);
    rk_json_set_str(o, "signal", p->signal);
    rk_json_set_str(o, "backend", p->backend);
    rk_json_set_str(o, "dtype", p->dtype);
    rk_json_set_str(o, "numerics", p->numerics);
    rk_json_set_str(o, "weights", p->weights);
    rk_json_set_int(o, "ranks", p->ranks);
    rk_json_set_int(o, "replicas", p->replicas);
    rk_json_set_int(o, "threads", p->threads);
    rk_json_set_str(o, "version", p->version);
    rk_json_set_str(o, "command", p->command ? p->command : "");
    rk_json_set_num(o, "noise_floor", p->noise_floor);
    add_numbers(o, "sensitivity", p->sensitivity, p->n_layers);
    add_numbers(o, "sensitivity_std", p->sensitivity_std, p->n_layers);
    return o;
}

static rk_status inspect_profile(const rk_cli *c) {
    rk_profile p;
    RK_TRY(rk_profile_read(c->o->positional, &p));
    rk_json  *o = profile_json(&p, c->o->positional);
    rk_status st = RK_OK;
    if (c->o->json) {
        rk_cli_print_json(o);
    } else {
        st = rk_json_each(o, show_member, NULL);
        printf("%-18s", "epsilon");
        for (int i = 0; i < p.n_epsilon; i++) printf(" %g", p.epsilon[i]);
        printf("\n\n");
        rk_cli_show_layers(p.n_layers, p.sensitivity, p.sensitivity_std, NULL);
        rk_json_close(o);
    }
    rk_profile_free(&p);
    return st;
}

/* ---- which is it? ---- */

static bool begins_with(const char *path, const char *magic, size_t n) {
    char  head[16] = {0};
    FILE *f = fopen(path, "rbe");
    if (!f) return false;
    size_t k = fread(head, 1, n, f);
    fclose(f);
    return k == n && memcmp(head, magic, n) == 0;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

rk_status rk_cmd_inspect(rk_cli *c) {
    const char *path = c->o->positional;
    struct stat s;
    if (stat(path, &s) != 0) return RK_FAIL(RK_E_INPUT, "%s: cannot open: %m", path);
    bool folder = S_ISDIR(s.st_mode), file = S_ISREG(s.st_mode);
    if (folder || (file && (ends_with(path, ".gguf") || begins_with(path, "GGUF", 4))))
        RK_TRY(inspect_model(c));
    else if (file && (ends_with(path, ".h5") || begins_with(path, "\x89HDF\r\n\x1a\n", 8)))
        RK_TRY(inspect_profile(c));
    else
        return RK_FAIL(
            RK_E_INPUT,
            "%s is neither a model (a folder or a .gguf file) nor a sensitivity file (HDF5)", path);
    return rk_cli_flush_stdout();
}
