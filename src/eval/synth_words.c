/* synth_words.c - see synth_words.h. */
#include "eval/synth_words.h"

#include <stdio.h>
#include <string.h>

#include "base/rng.h"

uint32_t rk_draw(rk_draws *d, uint32_t below) {
    uint32_t c[4] = {d->n++, d->stream[0], d->stream[1], d->stream[2]};
    rk_rng_philox(c, (uint32_t)d->seed, (uint32_t)(d->seed >> 32));
    return (uint32_t)((uint64_t)c[0] * below >> 32);
}

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof *(a)))

static const char *const adjectives[] = {
    "quiet",   "amber",   "distant", "narrow", "gentle", "rusty",  "bright", "hollow",
    "patient", "crooked", "silver",  "early",  "humble", "salty",  "brisk",  "velvet",
    "wooden",  "lonely",  "golden",  "stormy", "faded",  "clever", "frosty", "mellow",
    "sturdy",  "misty",   "ancient", "nimble", "solemn", "tender", "windy",  "scarlet"};
static const char *const nouns[] = {
    "harbour", "lantern", "orchard", "bridge", "market", "meadow", "kettle", "library",
    "station", "garden",  "compass", "valley", "mirror", "ladder", "chapel", "engine",
    "island",  "pocket",  "saddle",  "window", "basket", "candle", "hammer", "pillow",
    "rocket",  "shovel",  "tunnel",  "violin", "walnut", "anchor", "button", "cottage",
    "feather", "glacier", "helmet",  "jacket"};
static const char *const people[] = {"the teacher",   "a young carpenter",  "the ferryman",
                                     "her neighbour", "the doctor",         "an old sailor",
                                     "the baker",     "a travelling clerk", "his sister",
                                     "the gardener",  "a student",          "the postman"};
static const char *const verbs[] = {"remembered", "described", "repaired",  "carried",
                                    "admired",    "painted",   "mentioned", "sold",
                                    "watched",    "forgot",    "praised",   "measured"};
static const char *const when[] = {
    "in the spring",          "after the rain", "before breakfast",    "on the way home",
    "during the long winter", "late at night",  "when the bells rang", "without a word",
    "as the tide turned",     "year after year"};
static const char *const tails[] = {"and nobody asked why",
                                    "which pleased everyone in the village",
                                    "though the road was long",
                                    "and then went back to work",
                                    "because there was nothing else to do",
                                    "while the others were asleep",
                                    "and the matter was soon settled",
                                    "as people there have always done"};

void rk_words_key(rk_draws *d, char *buf) {
    const char *a = adjectives[rk_draw(d, COUNT(adjectives))];
    snprintf(buf, 48, "%s-%s", a, nouns[rk_draw(d, COUNT(nouns))]);
}

void rk_words_number(rk_draws *d, char *buf) {
    snprintf(buf, 48, "%u", 1000000 + rk_draw(d, 9000000));
}

void rk_words_uuid(rk_draws *d, char *buf) {
    static const int groups[] = {8, 4, 4, 4, 12};
    int              n = 0;
    for (int g = 0; g < 5; g++) {
        for (int i = 0; i < groups[g]; i++) {
            uint32_t x = rk_draw(d, 16);
            if (g == 2 && i == 0) x = 4;
            if (g == 3 && i == 0) x = 8 + x % 4;
            buf[n++] = "0123456789abcdef"[x];
        }
        buf[n++] = g < 4 ? '-' : 0;
    }
}

void rk_words_letters(rk_draws *d, int n, char *buf) {
    for (int i = 0; i < n; i++) buf[i] = (char)('A' + rk_draw(d, 26));
    buf[n] = 0;
}

/* Syllables make as many different words as are asked for: three of them, by the digits of a
 * permuted number. */
void rk_words_noun(int64_t i, char *buf) {
    static const char *const syllables[] = {"ba", "ko", "li", "mu", "ne", "ro", "si", "ta",
                                            "ve", "zu", "da", "fi", "go", "ha", "ju", "pe",
                                            "ra", "su", "wo", "la", "mi", "no", "tu", "ke"};
    const uint64_t           n = COUNT(syllables), all = n * n * n * n;
    uint64_t                 x = ((uint64_t)i * 7919 + 12345) % all; /* 7919 is prime to 24^4 */
    snprintf(buf, 48, "%s%s%s%s", syllables[x % n], syllables[x / n % n], syllables[x / n / n % n],
             syllables[x / n / n / n]);
}

const char *rk_words_noise(int64_t i) {
    static const char *const lines[] = {"The sky is wide.", "The river runs to the sea.",
                                        "The hills are far away.", "We walk there and back again."};
    return lines[i % 4];
}

/* The next sentence, up to a full stop, question or exclamation mark before white space. */
static const char *next_sentence(const char *text, const char **at, size_t *n) {
    const char *p = *at;
    p += strspn(p, " \t\r\n");
    if (!*p) p = text + strspn(text, " \t\r\n"); /* from the front again */
    const char *end = p;
    while (*end && !(strchr(".?!", *end) && (!end[1] || strchr(" \t\r\n", end[1])))) end++;
    if (*end) end++;
    *n = (size_t)(end - p);
    *at = end;
    return p;
}

static void grammar(rk_draws *d, char *buf) {
    char        line[RK_SENTENCE];
    const char *who = people[rk_draw(d, COUNT(people))], *verb = verbs[rk_draw(d, COUNT(verbs))];
    const char *adj = adjectives[rk_draw(d, COUNT(adjectives))],
               *noun = nouns[rk_draw(d, COUNT(nouns))];
    const char *time = when[rk_draw(d, COUNT(when))], *tail = tails[rk_draw(d, COUNT(tails))];
    const char *other = nouns[rk_draw(d, COUNT(nouns))];
    switch (rk_draw(d, 4)) {
    case 0:
        snprintf(line, sizeof line, "%s %s the %s %s %s.", who, verb, adj, noun, time);
        break;
    case 1:
        snprintf(line, sizeof line, "%s, %s %s the %s beside the %s.", time, who, verb, noun,
                 other);
        break;
    case 2:
        snprintf(line, sizeof line, "%s %s the %s, %s.", who, verb, noun, tail);
        break;
    default:
        snprintf(line, sizeof line, "the %s near the %s was %s, and %s %s it.", noun, other, adj,
                 who, verb);
        break;
    }
    if (line[0] >= 'a' && line[0] <= 'z') line[0] = (char)(line[0] - 'a' + 'A');
    memcpy(buf, line, strlen(line) + 1);
}

void rk_words_sentence(rk_draws *d, const char *haystack, const char **at, char *buf) {
    size_t n;
    if (!haystack) {
        grammar(d, buf);
        return;
    }
    const char *s = next_sentence(haystack, at, &n);
    if (n > RK_SENTENCE - 1) n = RK_SENTENCE - 1;
    while (n && ((unsigned char)s[n] & 0xc0) == 0x80) n--; /* whole characters */
    memcpy(buf, s, n);
    buf[n] = 0;
}
