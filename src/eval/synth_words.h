/* synth_words.h - random words, numbers and prose for synth.c. */
#pragma once
#include <stdint.h>

/* A stream of random numbers: Philox by (seed, stream, how many were drawn). */
typedef struct rk_draws {
    uint64_t seed;
    uint32_t stream[3], n;
} rk_draws;

uint32_t rk_draw(rk_draws *d, uint32_t below); /* in [0, below) */

enum { RK_SENTENCE = 600 };

/* Texts into buf [48]: "quiet-harbour"; 7 digits; a UUID of version 4's form; n capital letters. */
void        rk_words_key(rk_draws *d, char *buf);
void        rk_words_number(rk_draws *d, char *buf);
void        rk_words_uuid(rk_draws *d, char *buf);
void        rk_words_letters(rk_draws *d, int n, char *buf);
/* Word number i of a long list of invented and real nouns, all different. */
void        rk_words_noun(int64_t i, char *buf);
/* Sentence i of a text that only repeats itself. */
const char *rk_words_noise(int64_t i);
/* A sentence of prose into buf [RK_SENTENCE]: the next of the program's grammar, or where haystack
 * is not NULL its next sentence from *at on, from the front again after its end; *at is moved. */
void        rk_words_sentence(rk_draws *d, const char *haystack, const char **at, char *buf);
