/* metrics_internal.h - the parts of metrics.c that are long. */
#pragma once
#include "eval/metrics.h"
#include "eval/text.h"

/* F of ROUGE-L as PyPI's rouge 1.0.1 gives it (facts and restatement: methods of that package):
 * pieces between full stops; union of the longest common subsequences of all pairs of pieces, as a
 * set of words; shares of the distinct words of each side. An empty side gives 0. */
rk_status rk_rouge_l(rk_slice prediction, rk_slice answer, double *out);

/* fuzzywuzzy's fuzz.ratio in percent: 100 for equal strings, 0 for an empty one. */
rk_status rk_fuzz_ratio(rk_similarity s, rk_slice a, rk_slice b, int *percent);
