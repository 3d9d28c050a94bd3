/* metrics.h - LongBench v1's scores, to the last rounding rule and with the quirks that are part of
 * them (THUDM/LongBench, LongBench/metrics.py and eval.py at 2e00731; rouge 1.0.1; fuzzywuzzy
 * 0.18.0).
 *
 * All are pure. Texts are UTF-8. A metric of one prediction and one answer lies in [0, 1]. */
#pragma once
#include "base/err.h"

typedef enum rk_metric {
    RK_METRIC_QA_F1,          /* words in common, normalised */
    RK_METRIC_ROUGE,          /* ROUGE-L of the package rouge */
    RK_METRIC_CLASSIFICATION, /* names of classes in the prediction */
    RK_METRIC_COUNT,          /* share of the numbers that are the answer */
    RK_METRIC_RETRIEVAL,      /* the same for "Paragraph N" */
    RK_METRIC_RETRIEVAL_ZH,
    RK_METRIC_CODE_SIM, /* similarity of the first line of code */
    RK_METRIC_QA_F1_ZH, /* of texts cut into words by the caller: rk_metric_tokens */
    RK_METRIC_ROUGE_ZH,
    RK_METRICS,
} rk_metric;

/* How fuzz.ratio measures: without python-Levenshtein installed by difflib, with it by indel
 * distance. */
typedef enum rk_similarity { RK_SIMILARITY_DIFFLIB, RK_SIMILARITY_INDEL } rk_similarity;

const char *rk_metric_name(rk_metric m);
rk_status   rk_metric_parse(const char *name, rk_metric *out); /* RK_E_USAGE */

typedef struct rk_str {
    const char *s;
    size_t      n;
} rk_str;

/* One prediction against one answer. classes [n_classes] are read by classification.
 * Errors: RK_E_MEM; RK_E_USAGE a metric that wants words */
rk_status rk_metric_score(rk_metric m, rk_similarity s, rk_str prediction, rk_str answer,
                          const rk_str *classes, int n_classes, double *out);

/* The Chinese metrics, of words as a segmenter (jieba) gives them. */
rk_status rk_metric_tokens(rk_metric m, const rk_str *prediction, int n_prediction,
                           const rk_str *answer, int n_answer, double *out);

/* A dataset's score in percent from the scores of its samples, as eval.py's scorer: 100 times the
 * sum, in order, by n, rounded to 2 digits half to even in decimal. unrounded may be NULL. n >= 1
 */
double rk_metric_dataset(const double *scores, int n, double *unrounded);
/* The same of one of LongBench-E's buckets, as scorer_e: numpy's mean and round. NaN where n is 0.
 */
double rk_metric_bucket(const double *scores, int n, double *unrounded);
