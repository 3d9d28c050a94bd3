/* infile.h - what the readers of model files share: a read-only mapping, and names made fit to
 * print. Internal to core. */
#pragma once
#include "base/err.h"

typedef struct rk_infile {
    const uint8_t *data;
    int64_t        bytes;
} rk_infile;

/* Map a whole regular file.
 * Owner:  rk_infile_close
 * Errors: RK_E_INPUT cannot open, not a regular file, empty */
rk_status rk_infile_open(const char *path, rk_infile *out);
void      rk_infile_close(rk_infile *f); /* a zeroed one is fine */

bool rk_infile_is_file(const char *path);
bool rk_infile_is_folder(const char *path);

enum { RK_PATH_LEN = 4096, RK_SHOWN = 96 };

/* FOLDER/NAME. Errors: RK_E_INPUT too long */
rk_status rk_infile_join(const char *folder, const char *name, char out[RK_PATH_LEN]);

/* Text from a file as a message can show it: cut to fit, control characters and bytes that are not
 * ASCII as '?'. Returns buf. */
const char *rk_infile_shown(const char *s, char buf[RK_SHOWN]);

/* True for 1 .. max printable ASCII characters without a blank: what a name of a tensor or key is.
 */
bool rk_infile_is_name(const char *s, size_t n, size_t max);
