/* profile_h5.c - see profile_h5.h; the one file that knows HDF5.
 *
 * Bytes depend on the profile alone: file format bounds fixed at 1.10, no object times, strings of
 * fixed length, attributes inside the root's header, and arrays in chunks whose shape follows from
 * the sizes. Everything carries a checksum (format 1.10 for metadata, Fletcher-32 for data), so a
 * damaged file is refused and not misread.
 * Strings: hashes, format and units have exactly their length; every other text has its full field
 * size, ends in a 0 and is padded with zeros. `command` is cut to COMMAND_SIZE - 1 bytes and then
 * ends in "...". */
#define _GNU_SOURCE
#include "profiler/profile_h5.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

#define FORMAT "ripplekv-sensitivity"
#define UNITS  "nats"
#define AGAIN  "measure it again with 'ripplekv profile'"
enum {
    VERSION = 1,
    HEX_SIZE = 16,
    COMMAND_SIZE = 1024,
    MAX_RANK = 4,
    MAX_EXTENT = 1 << 24,    /* of one dimension of a file that is read */
    CHUNK_BYTES = 16 << 20,  /* arrays are cut along samples into chunks of about this size */
    ATTRIBUTES_COMPACT = 64, /* more than there are: all lie in the root's object header */
    DETAIL = 256,
};

/* ---- what the file holds ---- */

typedef enum kind { TEXT, HEX, I32, I64, U64, U8, F64 } kind;

typedef struct attribute {
    const char *name;
    kind        kind;
    size_t      offset; /* in rk_profile */
    size_t      size;   /* TEXT: of the field, its final 0 included */
} attribute;

#define FIELD(name, kind, field)                                                                   \
    { name, kind, offsetof(rk_profile, field), sizeof(((const rk_profile *)0)->field) }

/* Root attributes that are one value of the struct, in file order; format, format_version, epsilon,
 * command and units are handled by name. */
static const attribute attributes[] = {
    FIELD("model_name", TEXT, model_name),
    FIELD("model_shape_hash", HEX, model_shape_hash),
    FIELD("weights_hash", HEX, weights_hash),
    FIELD("n_layers", I32, n_layers),
    FIELD("n_kv_heads", I32, n_kv_heads),
    FIELD("head_dim", I32, head_dim),
    FIELD("draws", I32, n_draws),
    FIELD("seed", U64, seed),
    FIELD("context", I64, context),
    FIELD("response", I64, response),
    FIELD("signal", TEXT, signal),
    FIELD("calibration_hash", HEX, calibration_hash),
    FIELD("backend", TEXT, backend),
    FIELD("dtype", TEXT, dtype),
    FIELD("numerics", TEXT, numerics),
    FIELD("weights", TEXT, weights),
    FIELD("noise_floor", F64, noise_floor),
    FIELD("ranks", I32, ranks),
    FIELD("replicas", I32, replicas),
    FIELD("threads", I32, threads),
    FIELD("version", TEXT, version),
};
enum { N_ATTRIBUTES = sizeof attributes / sizeof attributes[0] };

/* Attributes of the group damage. */
static const attribute policy_attributes[] = {
    FIELD("policy", TEXT, policy.policy),         FIELD("window", I32, policy.window),
    FIELD("sinks", I32, policy.sinks),            FIELD("pool", TEXT, policy.pool),
    FIELD("kernel", I32, policy.kernel),          FIELD("group_reduce", TEXT, policy.group_reduce),
    FIELD("pool_first", I32, policy.pool_first),  FIELD("head_mode", TEXT, policy.head_mode),
    FIELD("alpha", F64, policy.alpha),
};
enum { N_POLICY = sizeof policy_attributes / sizeof policy_attributes[0] };

typedef struct dataset {
    const char *name;
    kind        kind;
    void       *data;
    int         rank;
    hsize_t     dim[MAX_RANK];
} dataset;

enum { MAX_DATASETS = 11 };

/* Returns how many there are. */
static int list_datasets(const rk_profile *p, dataset set[MAX_DATASETS]) {
    hsize_t L = (hsize_t)p->n_layers, N = (hsize_t)p->n_samples, K = (hsize_t)p->n_levels;
    hsize_t E = (hsize_t)p->n_epsilon, D = (hsize_t)p->n_draws;
    int     n = 6;
    set[0] = (dataset){"sensitivity", F64, p->sensitivity, 1, {L}};
    set[1] = (dataset){"sensitivity_std", F64, p->sensitivity_std, 1, {L}};
    set[2] = (dataset){"samples/kl", F64, p->kl, 4, {N, E, D, L}};
    set[3] = (dataset){"samples/done", U8, p->done, 1, {N}};
    set[4] = (dataset){"samples/prompt_tokens", I32, p->prompt_tokens, 1, {N}};
    set[5] = (dataset){"samples/hash", U64, p->hash, 1, {N}};
    if (p->local) set[n++] = (dataset){"local", F64, p->local, 2, {N, L}};
    if (p->entropy) {
        set[n++] = (dataset){"attention/entropy", F64, p->entropy, 2, {N, L}};
        set[n++] = (dataset){"attention/variance", F64, p->variance, 2, {N, L}};
    }
    if (K) set[n++] = (dataset){"damage/kl", F64, p->damage, 3, {N, K, L}};
    if (K) set[n++] = (dataset){"damage/levels", F64, p->levels, 1, {K}};
    return n;
}

/* ---- HDF5: types, properties, reasons ---- */

/* H5Pset_file_locking came with 1.10.7 and 1.12.1; before, only the environment does it. */
#if H5_VERS_MAJOR == 1 && (H5_VERS_MINOR == 10 ? H5_VERS_RELEASE < 7 : H5_VERSION_LE(1, 12, 0))
static herr_t locking_off(hid_t fapl) {
    (void)fapl;
    return setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
}
#else
static herr_t locking_off(hid_t fapl) {
    return H5Pset_file_locking(fapl, 0, 1);
}
#endif

/* Before any other call: no stack traces on stderr, and no clean-up at exit, which crashes after a
 * close that failed on a full disk. Everything is closed by hand. */
static void quiet(void) {
    (void)H5dont_atexit();
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    (void)H5Eclear2(H5E_DEFAULT);
}

/* In the file all numbers are little-endian. */
static hid_t file_type(kind k) {
    switch (k) {
    case I32:
        return H5T_STD_I32LE;
    case I64:
        return H5T_STD_I64LE;
    case U64:
        return H5T_STD_U64LE;
    case U8:
        return H5T_STD_U8LE;
    default:
        return H5T_IEEE_F64LE;
    }
}

static hid_t memory_type(kind k) {
    switch (k) {
    case I32:
        return H5T_NATIVE_INT32;
    case I64:
        return H5T_NATIVE_INT64;
    case U64:
        return H5T_NATIVE_UINT64;
    case U8:
        return H5T_NATIVE_UINT8;
    default:
        return H5T_NATIVE_DOUBLE;
    }
}

static size_t kind_size(kind k) {
    return k == U8 ? 1 : k == I32 ? 4 : 8;
}

/* exact: every byte is text; else a 0 ends it, so that tools do not print the padding. */
static hid_t text_type(size_t size, bool exact) {
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t >= 0 && (H5Tset_size(t, size) < 0 ||
                   H5Tset_strpad(t, exact ? H5T_STR_NULLPAD : H5T_STR_NULLTERM) < 0 ||
                   H5Tset_cset(t, H5T_CSET_UTF8) < 0)) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

static hid_t access_properties(void) {
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (fapl >= 0 && (H5Pset_fapl_sec2(fapl) < 0 || locking_off(fapl) < 0 ||
                      H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) < 0 ||
                      H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0)) {
        H5Pclose(fapl);
        return -1;
    }
    return fapl;
}

static herr_t first_reason(unsigned n, const H5E_error2_t *e, void *arg) {
    if (n > 0 || !e->desc) return 0;
    /* The file driver's texts hold times and addresses around the system's own words. */
    const char *from = strstr(e->desc, "error message = '"), *to = NULL;
    if (from) to = strchr(from += strlen("error message = '"), '\'');
    if (to)
        snprintf(arg, DETAIL, "%.*s", (int)(to - from), from);
    else
        snprintf(arg, DETAIL, "%s", e->desc);
    return 0;
}

/* The innermost reason on HDF5's error stack, as one line in buf. Every call clears the stack, so
 * this comes before closing anything. */
static const char *reason(char buf[DETAIL]) {
    snprintf(buf, DETAIL, "no reason given");
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_reason, buf);
    for (char *c = buf; *c; c++)
        if (*c == '\n') *c = ' ';
    (void)H5Eclear2(H5E_DEFAULT);
    return buf;
}

/* ---- writing ---- */

static rk_status fail_write(const char *path, const char *what) {
    char why[DETAIL];
    return RK_FAIL(RK_E_OUTPUT, "%s: cannot write %s: %s", path, what, reason(why));
}

/* One scalar attribute, or a list of n > 0 values. */
static rk_status put(hid_t file, const char *path, const char *name, hid_t ftype, hid_t mtype,
                     int64_t n, const void *value) {
    hsize_t   dim = (hsize_t)n;
    hid_t     space = n ? H5Screate_simple(1, &dim, NULL) : H5Screate(H5S_SCALAR);
    hid_t     a = H5Acreate2(file, name, ftype, space, H5P_DEFAULT, H5P_DEFAULT);
    bool      good = space >= 0 && a >= 0 && H5Awrite(a, mtype, value) >= 0;
    rk_status st = good ? RK_OK : fail_write(path, name);
    if (a >= 0 && H5Aclose(a) < 0 && good) st = fail_write(path, name);
    if (space >= 0) H5Sclose(space);
    return st;
}

/* A text of exactly its size, for what has but one length. */
static rk_status put_exact(hid_t file, const char *path, const char *name, const char *text) {
    hid_t t = text_type(strlen(text), true);
    if (t < 0) return fail_write(path, name);
    rk_status st = put(file, path, name, t, t, 0, text);
    H5Tclose(t);
    return st;
}

/* A text in a field of size bytes, cut at a whole character and marked if it is longer. */
static rk_status put_text(hid_t file, const char *path, const char *name, size_t size,
                          const char *text) {
    char   buf[COMMAND_SIZE] = {0};
    size_t n = strlen(text);
    RK_ASSERT(size <= sizeof buf);
    if (n > size - 1) {
        n = size - 1 - 3;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
        memcpy(buf + n, "...", 3);
    }
    memcpy(buf, text, n);
    hid_t t = text_type(size, false);
    if (t < 0) return fail_write(path, name);
    rk_status st = put(file, path, name, t, t, 0, buf);
    H5Tclose(t);
    return st;
}

static rk_status put_field(hid_t file, const char *path, const attribute *a, const rk_profile *p) {
    const char *field = (const char *)p + a->offset;
    char        hex[HEX_SIZE + 1];
    uint64_t    hash;
    switch (a->kind) {
    case TEXT:
        return put_text(file, path, a->name, a->size, field);
    case HEX:
        memcpy(&hash, field, sizeof hash);
        return put_exact(file, path, a->name, rk_hash_hex(hash, hex));
    default:
        return put(file, path, a->name, file_type(a->kind), memory_type(a->kind), 0, field);
    }
}

static rk_status put_attributes(hid_t file, const char *path, const rk_profile *p) {
    const int32_t version = VERSION;
    RK_TRY(put_exact(file, path, "format", FORMAT));
    RK_TRY(put(file, path, "format_version", file_type(I32), memory_type(I32), 0, &version));
    for (int i = 0; i < N_ATTRIBUTES; i++) RK_TRY(put_field(file, path, &attributes[i], p));
    RK_TRY(put(file, path, "epsilon", file_type(F64), memory_type(F64), p->n_epsilon, p->epsilon));
    RK_TRY(put_text(file, path, "command", COMMAND_SIZE, p->command ? p->command : ""));
    return put_exact(file, path, "units", UNITS);
}

/* Creation properties of a dataset: checksummed chunks cut along the first dimension, no times. */
static hid_t chunk_properties(const dataset *d) {
    hsize_t chunk[MAX_RANK], row = kind_size(d->kind);
    for (int i = 1; i < d->rank; i++) row *= d->dim[i];
    memcpy(chunk, d->dim, sizeof chunk);
    hsize_t rows = CHUNK_BYTES / row;
    chunk[0] = rows < 1 ? 1 : rows < d->dim[0] ? rows : d->dim[0];
    for (int i = 1; i < d->rank; i++) chunk[i] = d->dim[i];
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    if (dcpl >= 0 && (H5Pset_obj_track_times(dcpl, 0) < 0 ||
                      H5Pset_chunk(dcpl, d->rank, chunk) < 0 || H5Pset_fletcher32(dcpl) < 0)) {
        H5Pclose(dcpl);
        return -1;
    }
    return dcpl;
}

static rk_status put_dataset(hid_t file, const char *path, const dataset *d) {
    hid_t dcpl = chunk_properties(d), space = H5Screate_simple(d->rank, d->dim, NULL);
    hid_t set = -1;
    if (dcpl >= 0 && space >= 0)
        set = H5Dcreate2(file, d->name, file_type(d->kind), space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    bool good = set >= 0 &&
                H5Dwrite(set, memory_type(d->kind), H5S_ALL, H5S_ALL, H5P_DEFAULT, d->data) >= 0;
    rk_status st = good ? RK_OK : fail_write(path, d->name);
    if (set >= 0 && H5Dclose(set) < 0 && good) st = fail_write(path, d->name);
    if (space >= 0) H5Sclose(space);
    if (dcpl >= 0) H5Pclose(dcpl);
    return st;
}

/* A group with n attributes of the profile. */
static rk_status put_group(hid_t file, const char *path, const char *name, const attribute *a, int n,
                           const rk_profile *p) {
    hid_t gcpl = H5Pcreate(H5P_GROUP_CREATE), g = -1;
    if (gcpl >= 0 && H5Pset_obj_track_times(gcpl, 0) >= 0 &&
        H5Pset_attr_phase_change(gcpl, ATTRIBUTES_COMPACT, 0) >= 0)
        g = H5Gcreate2(file, name, H5P_DEFAULT, gcpl, H5P_DEFAULT);
    rk_status st = g >= 0 ? RK_OK : fail_write(path, name);
    for (int i = 0; st == RK_OK && i < n; i++) st = put_field(g, path, &a[i], p);
    if (g >= 0 && H5Gclose(g) < 0 && st == RK_OK) st = fail_write(path, name);
    if (gcpl >= 0) H5Pclose(gcpl);
    return st;
}

static rk_status create_file(const char *path, const char *tmp, hid_t *out) {
    hid_t fapl = access_properties(), fcpl = H5Pcreate(H5P_FILE_CREATE), file = -1;
    if (fapl >= 0 && fcpl >= 0 && H5Pset_obj_track_times(fcpl, 0) >= 0 &&
        H5Pset_attr_phase_change(fcpl, ATTRIBUTES_COMPACT, 0) >= 0)
        file = H5Fcreate(tmp, H5F_ACC_TRUNC, fcpl, fapl);
    rk_status st = file >= 0 ? RK_OK : fail_write(path, "the file");
    if (fcpl >= 0) H5Pclose(fcpl);
    if (fapl >= 0) H5Pclose(fapl);
    *out = file;
    return st;
}

/* path is what messages name; tmp what is written. */
static rk_status write_file(const rk_profile *p, const char *path, const char *tmp) {
    dataset   set[MAX_DATASETS];
    int       n = list_datasets(p, set);
    rk_status st = RK_OK;
    quiet();
    hid_t file;
    RK_TRY(create_file(path, tmp, &file));
    RK_TRY_OUT(st, put_attributes(file, path, p));
    RK_TRY_OUT(st, put_group(file, path, "samples", NULL, 0, p));
    if (p->entropy) RK_TRY_OUT(st, put_group(file, path, "attention", NULL, 0, p));
    if (p->n_levels) RK_TRY_OUT(st, put_group(file, path, "damage", policy_attributes, N_POLICY, p));
    for (int i = 0; i < n; i++) RK_TRY_OUT(st, put_dataset(file, path, &set[i]));
out:
    if (H5Fclose(file) < 0 && st == RK_OK) st = fail_write(path, "the file's end");
    return st;
}

/* Fsync a file or folder. Some file systems cannot sync a folder; that is not a failure. */
static int sync_path(const char *path, bool folder) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | (folder ? O_DIRECTORY : 0));
    if (fd < 0) return -1;
    int rc = fsync(fd), e = errno;
    if (rc != 0 && folder && (e == EINVAL || e == EROFS || e == ENOTSUP)) rc = 0;
    close(fd);
    errno = e;
    return rc;
}

static rk_status publish(const char *tmp, const char *path) {
    char     *copy;
    rk_status st = RK_OK;
    RK_TRY(rk_mem_strdup(path, &copy));
    if (sync_path(tmp, false) != 0)
        st = RK_FAIL(RK_E_OUTPUT, "%s: cannot write to disk: %m", path);
    else if (rename(tmp, path) != 0)
        st = RK_FAIL(RK_E_OUTPUT, "%s: cannot rename %s: %m", path, tmp);
    else if (sync_path(dirname(copy), true) != 0)
        st = RK_FAIL(RK_E_OUTPUT, "%s: cannot write the folder to disk: %m", path);
    rk_mem_free(copy);
    return st;
}

/* Create the temporary empty beside path, which proves that the folder is writable. */
static rk_status open_temporary(const char *path, char **tmp) {
    struct stat s;
    void       *p;
    size_t      n = strlen(path) + sizeof ".tmp";
    *tmp = NULL;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return RK_FAIL(RK_E_OUTPUT, "%s: is %s: give the name of a file as --output", path,
                       S_ISDIR(s.st_mode) ? "a folder" : "not a regular file");
    RK_TRY(rk_mem_alloc((int64_t)n, 1, "file name", &p));
    snprintf(p, n, "%s.tmp", path);
    int fd = open(p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        rk_status st = RK_FAIL(RK_E_OUTPUT, "%s: cannot create %s: %s: choose another --output",
                               path, (char *)p, strerror(errno));
        rk_mem_free(p);
        return st;
    }
    close(fd);
    *tmp = p;
    return RK_OK;
}

rk_status rk_profile_write(const rk_profile *p, const char *path) {
    char *tmp;
    RK_TRY(open_temporary(path, &tmp));
    rk_status st = write_file(p, path, tmp);
    if (st == RK_OK) st = publish(tmp, path);
    if (st != RK_OK) unlink(tmp); /* gone already if only the folder's sync failed */
    rk_mem_free(tmp);
    return st;
}

rk_status rk_profile_probe(const char *path) {
    char *tmp;
    RK_TRY(open_temporary(path, &tmp));
    unlink(tmp);
    rk_mem_free(tmp);
    return RK_OK;
}

/* ---- reading ---- */

typedef struct reader {
    const char *path;
    hid_t       file;       /* or a group of it, for attributes */
    int64_t     file_bytes; /* no array can be larger */
} reader;

/* What was found is no sensitivity file, or no longer one. */
static rk_status fail_damaged(const reader *r, const char *what) {
    char why[DETAIL];
    return RK_FAIL(RK_E_INPUT, "%s: %s cannot be read: the file is damaged (%s): " AGAIN, r->path,
                   what, reason(why));
}

static rk_status fail_form(const reader *r, const char *what, const char *problem) {
    return RK_FAIL(RK_E_INPUT, "%s: %s %s: not a sensitivity file of format version %d: " AGAIN,
                   r->path, what, problem, VERSION);
}

static rk_status open_attribute(const reader *r, const char *name, hid_t *a) {
    htri_t there = H5Aexists(r->file, name);
    if (there == 0) return fail_form(r, name, "is missing");
    *a = there < 0 ? -1 : H5Aopen(r->file, name, H5P_DEFAULT);
    return *a < 0 ? fail_damaged(r, name) : RK_OK;
}

/* Whether a dataspace has exactly these dimensions; rank 0 is a scalar. */
static bool has_shape(hid_t space, int rank, const hsize_t *dim) {
    hsize_t found[H5S_MAX_RANK];
    if (H5Sget_simple_extent_ndims(space) != rank) return false;
    if (H5Sget_simple_extent_type(space) != (rank ? H5S_SIMPLE : H5S_SCALAR)) return false;
    if (H5Sget_simple_extent_dims(space, found, NULL) < 0) return false;
    return rank == 0 || memcmp(found, dim, sizeof *dim * (size_t)rank) == 0;
}

static rk_status get(const reader *r, const char *name, kind k, int rank, const hsize_t *dim,
                     void *value) {
    hid_t a = H5I_INVALID_HID;
    RK_TRY(open_attribute(r, name, &a));
    hid_t     type = H5Aget_type(a), space = H5Aget_space(a);
    rk_status st = RK_OK;
    if (type < 0 || space < 0)
        st = fail_damaged(r, name);
    else if (H5Tequal(type, file_type(k)) <= 0 || !has_shape(space, rank, dim))
        st = fail_form(r, name, "has another type or shape");
    else if (H5Aread(a, memory_type(k), value) < 0)
        st = fail_damaged(r, name);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    H5Aclose(a);
    return st;
}

/* A text of at most size bytes into buf[size + 1]. */
static rk_status get_text(const reader *r, const char *name, size_t size, char *buf) {
    hid_t a = H5I_INVALID_HID;
    RK_TRY(open_attribute(r, name, &a));
    hid_t     type = H5Aget_type(a), space = H5Aget_space(a);
    rk_status st = RK_OK;
    memset(buf, 0, size + 1);
    if (type < 0 || space < 0)
        st = fail_damaged(r, name);
    else if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0 ||
             !has_shape(space, 0, NULL))
        st = fail_form(r, name, "is not a string of fixed length");
    else if (H5Tget_size(type) < 1 || H5Tget_size(type) > size)
        st = fail_form(r, name, "is too long");
    else if (H5Aread(a, type, buf) < 0)
        st = fail_damaged(r, name);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    H5Aclose(a);
    return st;
}

static rk_status get_hex(const reader *r, const char *name, uint64_t *out) {
    char buf[HEX_SIZE + 1], *end;
    RK_TRY(get_text(r, name, HEX_SIZE, buf));
    if (strspn(buf, "0123456789abcdef") != HEX_SIZE)
        return fail_form(r, name, "is not 16 hex digits");
    *out = strtoull(buf, &end, 16);
    return RK_OK;
}

static rk_status get_field(const reader *r, const attribute *a, rk_profile *p) {
    char *field = (char *)p + a->offset;
    if (a->kind == HEX) {
        uint64_t hash = 0;
        RK_TRY(get_hex(r, a->name, &hash));
        memcpy(field, &hash, sizeof hash);
        return RK_OK;
    }
    if (a->kind == TEXT) {
        char text[COMMAND_SIZE + 1];
        RK_TRY(get_text(r, a->name, a->size, text));
        text[a->size - 1] = 0;
        memcpy(field, text, a->size);
        return RK_OK;
    }
    return get(r, a->name, a->kind, 0, NULL, field);
}

static rk_status get_format(const reader *r) {
    char    text[sizeof FORMAT + 32];
    int32_t version;
    if (H5Aexists(r->file, "format") == 0 || H5Aexists(r->file, "format_version") == 0)
        return RK_FAIL(RK_E_INPUT,
                       "%s: an HDF5 file, but not a sensitivity file (no attribute "
                       "`format` or `format_version`): give an output of 'ripplekv profile'",
                       r->path);
    RK_TRY(get_text(r, "format", sizeof text - 1, text));
    if (strcmp(text, FORMAT) != 0)
        return RK_FAIL(RK_E_INPUT, "%s: not a sensitivity file: `format` is \"%s\", not \"%s\"",
                       r->path, text, FORMAT);
    RK_TRY(get(r, "format_version", I32, 0, NULL, &version));
    if (version > VERSION)
        return RK_FAIL(RK_E_INPUT,
                       "%s: format_version %d is newer than this program's %d: use a "
                       "newer RippleKV",
                       r->path, version, VERSION);
    if (version != VERSION)
        return RK_FAIL(RK_E_INPUT,
                       "%s: format_version %d is unknown, this program reads %d: " AGAIN, r->path,
                       version, VERSION);
    return RK_OK;
}

/* Length of the one dimension of an attribute or dataset, within [1, MAX_EXTENT]. */
static rk_status length_of(const reader *r, const char *name, hid_t space, int *out) {
    hsize_t dim = 0;
    if (space < 0) return fail_damaged(r, name);
    if (H5Sget_simple_extent_ndims(space) != 1 || H5Sget_simple_extent_dims(space, &dim, NULL) < 0)
        return fail_form(r, name, "is not a list");
    if (dim < 1 || dim > MAX_EXTENT) return fail_form(r, name, "has an impossible length");
    *out = (int)dim;
    return RK_OK;
}

/* Whether a link, and the group before its slash, exists; < 0: damaged. */
static htri_t exists(const reader *r, const char *name) {
    const char *slash = strchr(name, '/');
    char        group[32];
    htri_t      there = 1;
    if (slash) {
        snprintf(group, sizeof group, "%.*s", (int)(slash - name), name);
        there = H5Lexists(r->file, group, H5P_DEFAULT);
    }
    return there > 0 ? H5Lexists(r->file, name, H5P_DEFAULT) : there;
}

static rk_status open_dataset(const reader *r, const char *name, hid_t *set) {
    htri_t there = exists(r, name);
    if (there == 0) return fail_form(r, name, "is missing");
    *set = there < 0 ? -1 : H5Dopen2(r->file, name, H5P_DEFAULT);
    return *set < 0 ? fail_damaged(r, name) : RK_OK;
}

/* The sizes L, N, E, D as the file states them. */
static rk_status get_sizes(const reader *r, int *n_layers, int *n_samples, int *n_epsilon,
                           int *n_draws) {
    hid_t id, space;
    RK_TRY(get(r, "n_layers", I32, 0, NULL, n_layers));
    RK_TRY(get(r, "draws", I32, 0, NULL, n_draws));
    if (*n_layers < 1 || *n_layers > MAX_EXTENT)
        return RK_FAIL(RK_E_INPUT, "%s: n_layers is %d: " AGAIN, r->path, *n_layers);
    if (*n_draws < 1 || *n_draws > MAX_EXTENT)
        return RK_FAIL(RK_E_INPUT, "%s: draws is %d: " AGAIN, r->path, *n_draws);
    RK_TRY(open_attribute(r, "epsilon", &id));
    space = H5Aget_space(id);
    rk_status st = length_of(r, "epsilon", space, n_epsilon);
    if (space >= 0) H5Sclose(space);
    H5Aclose(id);
    RK_TRY(st);
    RK_TRY(open_dataset(r, "samples/done", &id));
    space = H5Dget_space(id);
    st = length_of(r, "samples/done", space, n_samples);
    if (space >= 0) H5Sclose(space);
    H5Dclose(id);
    RK_TRY(st);
    /* The largest array lies in the file uncompressed. */
    if ((double)*n_layers * *n_samples * *n_epsilon * *n_draws * 8 > (double)r->file_bytes)
        return fail_form(r, "samples/kl", "does not fit in the file");
    return RK_OK;
}

/* Data within this file, in chunks no larger than it: a forged layout could name other files or
 * ask for endless memory. */
static bool layout_is_plain(hid_t set, int64_t file_bytes) {
    hid_t dcpl = H5Dget_create_plist(set);
    if (dcpl < 0) return false;
    H5D_layout_t layout = H5Pget_layout(dcpl);
    bool         plain = layout == H5D_CONTIGUOUS && H5Pget_external_count(dcpl) == 0;
    if (layout == H5D_CHUNKED) {
        hsize_t chunk[H5S_MAX_RANK];
        double  n = 8;
        int     rank = H5Pget_chunk(dcpl, H5S_MAX_RANK, chunk);
        for (int i = 0; i < rank; i++) n *= (double)chunk[i];
        plain = rank > 0 && n <= 8 * (double)file_bytes;
    }
    H5Pclose(dcpl);
    return plain;
}

static rk_status get_dataset(const reader *r, const dataset *d) {
    hid_t set;
    RK_TRY(open_dataset(r, d->name, &set));
    hid_t     type = H5Dget_type(set), space = H5Dget_space(set);
    rk_status st = RK_OK;
    if (type < 0 || space < 0)
        st = fail_damaged(r, d->name);
    else if (H5Tequal(type, file_type(d->kind)) <= 0)
        st = fail_form(r, d->name, "has another type");
    else if (!has_shape(space, d->rank, d->dim))
        st = fail_form(r, d->name, "has another shape than the attributes say");
    else if (!layout_is_plain(set, r->file_bytes))
        st = fail_form(r, d->name, "has another storage layout");
    else if (H5Dread(set, memory_type(d->kind), H5S_ALL, H5S_ALL, H5P_DEFAULT, d->data) < 0)
        st = fail_damaged(r, d->name);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    H5Dclose(set);
    return st;
}

/* Room for what the file has beside the sensitivities, and the policy of the damages. */
static rk_status get_optional(const reader *r, rk_profile *p) {
    int       K;
    hid_t     id, space;
    rk_status st;
    if (exists(r, "local") > 0) RK_TRY(rk_profile_add_local(p));
    if (exists(r, "attention/entropy") > 0) RK_TRY(rk_profile_add_attention(p));
    if (H5Lexists(r->file, "damage", H5P_DEFAULT) <= 0) return RK_OK;
    RK_TRY(open_dataset(r, "damage/levels", &id));
    space = H5Dget_space(id);
    st = length_of(r, "damage/levels", space, &K);
    if (space >= 0) H5Sclose(space);
    H5Dclose(id);
    RK_TRY(st);
    if ((double)p->n_samples * K * p->n_layers * 8 > (double)r->file_bytes)
        return fail_form(r, "damage/kl", "does not fit in the file");
    double *levels; /* their values come with the datasets */
    RK_TRY(rk_mem_alloc_to(K, sizeof(double), "levels", &levels));
    st = rk_profile_add_damage(p, levels, K);
    rk_mem_free(levels);
    RK_TRY(st);
    reader group = *r;
    group.file = H5Gopen2(r->file, "damage", H5P_DEFAULT);
    if (group.file < 0) return fail_damaged(r, "damage");
    for (int i = 0; st == RK_OK && i < N_POLICY; i++) st = get_field(&group, &policy_attributes[i], p);
    H5Gclose(group.file);
    return st;
}

static rk_status check_levels(const reader *r, const rk_profile *p) {
    for (int k = 0; k < p->n_levels; k++)
        if (!(p->levels[k] > (k ? p->levels[k - 1] : 0)) || p->levels[k] > 1)
            return fail_form(r, "damage/levels", "do not ascend within (0, 1]");
    return RK_OK;
}

static rk_status read_all(const reader *r, rk_profile *p) {
    int       L, N, E, D;
    char      command[COMMAND_SIZE + 1], units[64];
    dataset   set[MAX_DATASETS];
    rk_status st;
    RK_TRY(get_format(r));
    RK_TRY(get_sizes(r, &L, &N, &E, &D));
    RK_TRY(rk_profile_init(p, L, N, E, D));
    for (int i = 0; i < N_ATTRIBUTES; i++) RK_TRY_OUT(st, get_field(r, &attributes[i], p));
    hsize_t n_epsilon = (hsize_t)E;
    RK_TRY_OUT(st, get(r, "epsilon", F64, 1, &n_epsilon, p->epsilon));
    RK_TRY_OUT(st, get_text(r, "command", COMMAND_SIZE, command));
    RK_TRY_OUT(st, rk_mem_strdup(command, &p->command));
    RK_TRY_OUT(st, get_text(r, "units", sizeof units - 1, units));
    if (strcmp(units, UNITS) != 0) {
        st = fail_form(r, "units", "is not \"" UNITS "\"");
        goto out;
    }
    RK_TRY_OUT(st, get_optional(r, p));
    int n = list_datasets(p, set);
    for (int i = 0; i < n; i++) RK_TRY_OUT(st, get_dataset(r, &set[i]));
    RK_TRY_OUT(st, check_levels(r, p));
    for (int i = 0; i < N && st == RK_OK; i++)
        if (p->done[i] > 1 || p->prompt_tokens[i] < 0)
            st = fail_form(r, "samples", "hold impossible values");
out:
    if (st != RK_OK) rk_profile_free(p);
    return st;
}

/* The signature stands at 0, or at 512, 1024, 2048, ... after a user block. */
static bool has_signature(int fd) {
    char sig[8];
    for (off_t at = 0; pread(fd, sig, 8, at) == 8; at = at ? 2 * at : 512)
        if (memcmp(sig, "\x89HDF\r\n\x1a\n", 8) == 0) return true;
    return false;
}

/* What can be said without HDF5, in the system's words. */
static rk_status check_file(const char *path, int64_t *bytes) {
    struct stat s;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return RK_FAIL(RK_E_INPUT, "%s: cannot open the sensitivity file: %m", path);
    bool regular = fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
    bool hdf5 = regular && has_signature(fd);
    close(fd);
    if (!regular) return RK_FAIL(RK_E_INPUT, "%s: not a regular file", path);
    if (!hdf5)
        return RK_FAIL(RK_E_INPUT, "%s: not an HDF5 file: give an output of 'ripplekv profile'",
                       path);
    *bytes = s.st_size;
    return RK_OK;
}

rk_status rk_profile_read(const char *path, rk_profile *out) {
    reader r = {.path = path, .file = -1};
    RK_TRY(check_file(path, &r.file_bytes));
    quiet();
    hid_t fapl = access_properties();
    if (fapl >= 0) r.file = H5Fopen(path, H5F_ACC_RDONLY, fapl);
    rk_status st = r.file >= 0 ? RK_OK : fail_damaged(&r, "it");
    if (fapl >= 0) H5Pclose(fapl);
    RK_TRY(st);
    rk_profile p;
    st = read_all(&r, &p);
    H5Fclose(r.file); /* nothing was written: a failure here says nothing about what was read */
    if (st == RK_OK) *out = p;
    return st;
}
