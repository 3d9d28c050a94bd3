/* eval_docs.h - documents as items of an evaluation, for the tasks that measure rows. */
#pragma once
#include "cli/eval.h"
#include "profiler/calibration.h"

/* --input's documents; sets items, prompt lengths and max_response.
 * Owner: *out is freed by rk_eval_unload_documents where it is v->data */
rk_status rk_eval_load_documents(rk_eval *v, rk_calibration *out);
void      rk_eval_unload_documents(rk_eval *v);
