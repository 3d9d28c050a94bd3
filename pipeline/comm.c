/* comm.c - ranks over MPI.
 *
 * Collectives are the non-blocking ones, polled, so that a lost peer ends in a message and not in a
 * hang. The few calls that have no non-blocking form (split, finalize) stand behind a polled
 * barrier: once all ranks have come, they are short. Nothing here allocates after start but split.
 *
 * A start without a launcher ("singleton") is made isolated: Open MPI would otherwise look for the
 * tools to spawn more processes, which costs time and fails where they are missing. */
#include "pipeline/comm.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    SPIN_TESTS = 2000,              /* tests before the core is offered to other ranks */
    ABORT_GRACE_S = 8,              /* an abort that itself hangs ends this rank after this */
    SLURM_SPECIAL_STEP = 0x7ffffff0 /* ids from here (as int: negative too) are shells, not srun */
};
static const double  DEFAULT_TIMEOUT_S = 120;
static const double  SLEEP_AFTER_S = 0.02; /* a wait this long can afford the 50 us of a sleep */
static const int64_t PART_BYTES = (int64_t)256 << 20;

struct rk_comm {
    MPI_Comm mpi;
    rk_comm *parent;    /* NULL: world; must outlive */
    double   timeout_s; /* 0: the parent's */
    int      rank, size, local_size;
};

/* A process has one world, and MPI can start in it only once. */
static bool alone; /* started without a launcher: an abort has nobody to tell */

static rk_status fail_mpi(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int  n = 0;
    MPI_Error_string(code, text, &n);
    return RK_FAIL(RK_E_PEER, "MPI failed in %s: %s", what, text);
}

#define RK_MPI(call, what)                                                                         \
    do {                                                                                           \
        int rk_mpi_ = (call);                                                                      \
        if (rk_mpi_ != MPI_SUCCESS) return fail_mpi(rk_mpi_, (what));                              \
    } while (0)

static rk_status wait_all(const rk_comm *c, MPI_Request *request, const char *what) {
    double limit = rk_comm_timeout(c), start = rk_now_s();
    for (int64_t n = 0;; n++) {
        int done = 0;
        RK_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE), what);
        if (done) return RK_OK;
        if (n < SPIN_TESTS) continue;
        double waited = rk_now_s() - start;
        if (waited > limit) break;
        if (waited > SLEEP_AFTER_S)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        else
            sched_yield();
    }
    return RK_FAIL(RK_E_PEER,
                   "rank %d waits for the other %d ranks in %s since %.0f s: one is lost or stuck "
                   "(--timeout SECONDS gives slow work more time)",
                   c->rank, c->size - 1, what, limit);
}

/* ---- start and end ---- */

static bool env_set(const char *name) {
    const char *v = getenv(name);
    return v && *v;
}

static bool launched(void) {
    return env_set("OMPI_COMM_WORLD_SIZE") || env_set("PMIX_NAMESPACE") || env_set("PMI_RANK") ||
           env_set("PMI_FD") || env_set("PMI2_RANK") || env_set("PALS_RANKID");
}

/* Tasks of the srun step that started this process; 1 outside a step. A batch script and an
 * interactive allocation are steps too in some versions, with ids from the top of the range: there
 * a plain start is meant as it stands. */
static int slurm_tasks(void) {
    const char *step = getenv("SLURM_STEP_ID");
    if (!step || !*step) return 1;
    unsigned long long id = strtoull(step, NULL, 10);
    if (id >= SLURM_SPECIAL_STEP) return 1;
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!tasks || !*tasks) tasks = getenv("SLURM_NTASKS");
    long n = tasks ? strtol(tasks, NULL, 10) : 1;
    return n > 1 && n < INT_MAX ? (int)n : 1;
}

static rk_status refuse_slurm(int tasks) {
    return RK_FAIL(RK_E_USAGE,
                   "srun started %d tasks, but MPI sees one rank in each: start with srun "
                   "--mpi=pmix (srun --mpi=list shows what there is), or with srun -n 1 for one "
                   "rank",
                   tasks);
}

static rk_status find_local_size(rk_comm *c) {
    MPI_Comm node = MPI_COMM_NULL;
    RK_MPI(MPI_Comm_split_type(c->mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
           "finding the ranks of a node");
    RK_MPI(MPI_Comm_size(node, &c->local_size), "finding the ranks of a node");
    RK_MPI(MPI_Comm_free(&node), "finding the ranks of a node");
    return RK_OK;
}

rk_status rk_comm_start(int *argc, char ***argv, rk_comm **world) {
    bool lone = !launched();
    int  tasks = slurm_tasks();
    /* Some MPI libraries end the process themselves here: say it before they do. */
    if (lone && tasks > 1) return refuse_slurm(tasks);
    if (lone) setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    /* Where /sys is not mounted (a chroot) hwloc, under MPI, would write a line of its own. */
    setenv("HWLOC_HIDE_ERRORS", "2", 0);

    int level = MPI_THREAD_SINGLE;
    RK_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level), "start");
    alone = lone;
    RK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "start");
    rk_err_set_abort_hook(rk_comm_abort);

    void *p = NULL;
    RK_TRY(rk_mem_alloc(1, (int64_t)sizeof(rk_comm), "the communicator", &p));
    rk_comm *c = p;
    c->mpi = MPI_COMM_WORLD;
    c->timeout_s = DEFAULT_TIMEOUT_S;
    MPI_Comm_rank(c->mpi, &c->rank);
    MPI_Comm_size(c->mpi, &c->size);
    rk_log_set_rank(c->rank, c->size);

    rk_status st = RK_OK;
    if (level < MPI_THREAD_FUNNELED)
        st = RK_FAIL(RK_E_PEER, "this MPI library was built without threads (MPI_THREAD_FUNNELED)");
    else if (c->size == 1 && tasks > 1 && !env_set("OMPI_COMM_WORLD_SIZE"))
        st = refuse_slurm(tasks);
    else
        st = find_local_size(c);
    if (st != RK_OK) {
        rk_mem_free(c);
        return st;
    }
    *world = c;
    return RK_OK;
}

bool rk_comm_started(void) {
    int on = 0, off = 0;
    MPI_Initialized(&on);
    MPI_Finalized(&off);
    return on && !off;
}

void rk_comm_finish(rk_comm *world) {
    if (!world) return;
    if (rk_comm_barrier(world) != RK_OK) {
        rk_err_print(rk_err_last()); /* finalize would hang: there is no way back to a caller */
        rk_comm_abort(RK_E_PEER);
    }
    rk_mem_free(world);
    MPI_Finalize();
    rk_err_set_abort_hook(NULL);
}

static volatile sig_atomic_t abort_code;

static void end_now(int sig) {
    (void)sig;
    _Exit(abort_code);
}

void rk_comm_abort(rk_status code) {
    if (rk_comm_started() && !alone) {
        abort_code = (sig_atomic_t)code;
        signal(SIGALRM, end_now);
        alarm(ABORT_GRACE_S);
        MPI_Abort(MPI_COMM_WORLD, (int)code);
    }
    _Exit((int)code);
}

/* ---- what a communicator is ---- */

void rk_comm_set_timeout(rk_comm *c, double seconds) { c->timeout_s = seconds; }

double rk_comm_timeout(const rk_comm *c) {
    while (c->timeout_s <= 0 && c->parent) c = c->parent;
    return c->timeout_s > 0 ? c->timeout_s : DEFAULT_TIMEOUT_S;
}

int rk_comm_rank(const rk_comm *c) { return c->rank; }
int rk_comm_size(const rk_comm *c) { return c->size; }
int rk_comm_local_size(const rk_comm *c) { return c->local_size; }
const void *rk_comm_native(const rk_comm *c) { return &c->mpi; }

rk_status rk_comm_split(rk_comm *c, int color, rk_comm **out) {
    void *p = NULL;
    /* All ranks must come to the split, also when one has no memory. */
    rk_status st = rk_mem_alloc(1, (int64_t)sizeof(rk_comm), "a communicator", &p);
    RK_TRY_OUT(st, rk_comm_agree(c, st, NULL));
    rk_comm *child = p;
    child->mpi = MPI_COMM_NULL;
    child->parent = c;
    child->local_size = c->local_size;
    int code = MPI_Comm_split(c->mpi, color, c->rank, &child->mpi);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(child->mpi, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(child->mpi, &child->rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(child->mpi, &child->size);
    if (code != MPI_SUCCESS) {
        st = fail_mpi(code, "a split of the ranks");
        goto out;
    }
    *out = child;
    return RK_OK;
out:
    rk_mem_free(p);
    return st;
}

void rk_comm_close(rk_comm *c) {
    if (!c || !c->parent) return;
    if (c->mpi != MPI_COMM_NULL) MPI_Comm_free(&c->mpi);
    rk_mem_free(c);
}

/* ---- collectives ---- */

rk_status rk_comm_barrier(rk_comm *c) {
    MPI_Request r = MPI_REQUEST_NULL;
    RK_MPI(MPI_Ibarrier(c->mpi, &r), "a barrier");
    RK_TRY(wait_all(c, &r, "a barrier"));
    return RK_OK;
}

rk_status rk_comm_bcast(rk_comm *c, void *data, int64_t bytes, int root) {
    for (int64_t at = 0; at < bytes; at += PART_BYTES) {
        int         n = (int)(bytes - at < PART_BYTES ? bytes - at : PART_BYTES);
        MPI_Request r = MPI_REQUEST_NULL;
        RK_MPI(MPI_Ibcast((char *)data + at, n, MPI_BYTE, root, c->mpi, &r), "a broadcast");
        RK_TRY(wait_all(c, &r, "a broadcast"));
    }
    return RK_OK;
}

static rk_status reduce(rk_comm *c, void *v, int n, MPI_Datatype type, MPI_Op op,
                        const char *what) {
    if (n <= 0) return RK_OK;
    MPI_Request r = MPI_REQUEST_NULL;
    RK_MPI(MPI_Iallreduce(MPI_IN_PLACE, v, n, type, op, c->mpi, &r), what);
    RK_TRY(wait_all(c, &r, what));
    return RK_OK;
}

/* Integer sums, maxima and unions do not depend on the order that MPI chooses. */
rk_status rk_comm_sum_i64(rk_comm *c, int64_t *v, int n) {
    return reduce(c, v, n, MPI_INT64_T, MPI_SUM, "a sum");
}

rk_status rk_comm_max_f64(rk_comm *c, double *v, int n) {
    return reduce(c, v, n, MPI_DOUBLE, MPI_MAX, "a maximum");
}

rk_status rk_comm_or_u64(rk_comm *c, uint64_t *v, int n) {
    return reduce(c, v, n, MPI_UINT64_T, MPI_BOR, "a union");
}

/* Each part is one element of a type whose extent is a whole row of out, so that parts of all ranks
 * land in their rows. */
rk_status rk_comm_gather(rk_comm *c, const void *mine, int64_t bytes, void *out, int root) {
    static const char what[] = "a gather";
    for (int64_t at = 0; at < bytes; at += PART_BYTES) {
        int          n = (int)(bytes - at < PART_BYTES ? bytes - at : PART_BYTES);
        MPI_Datatype part = MPI_DATATYPE_NULL, row = MPI_DATATYPE_NULL;
        MPI_Request  r = MPI_REQUEST_NULL;
        RK_MPI(MPI_Type_contiguous(n, MPI_BYTE, &part), what);
        RK_MPI(MPI_Type_create_resized(part, 0, (MPI_Aint)bytes, &row), what);
        RK_MPI(MPI_Type_commit(&row), what);
        int code = MPI_Igather((const char *)mine + at, n, MPI_BYTE,
                               c->rank == root ? (char *)out + at : NULL, 1, row, root, c->mpi, &r);
        MPI_Type_free(&part);
        MPI_Type_free(&row); /* lives on until the gather is done */
        RK_MPI(code, what);
        RK_TRY(wait_all(c, &r, what));
    }
    return RK_OK;
}

/* ---- agreement ---- */

typedef struct verdict {
    int32_t code;
    char    text[RK_ERR_TEXT];
} verdict;

/* Lowest failing rank, or the number of ranks; and what it says. */
static rk_status find_first(rk_comm *c, rk_status mine, int *first, verdict *v) {
    *first = mine == RK_OK ? c->size : c->rank;
    RK_TRY(reduce(c, first, 1, MPI_INT, MPI_MIN, "the agreement on a status"));
    if (*first < c->size) RK_TRY(rk_comm_bcast(c, v, (int64_t)sizeof *v, *first));
    return RK_OK;
}

rk_status rk_comm_agree(rk_comm *c, rk_status mine, bool *reporter) {
    const rk_err_record own = *rk_err_last();
    verdict v = {.code = (int32_t)mine};
    if (mine != RK_OK)
        snprintf(v.text, sizeof v.text, "%s",
                 own.code == mine && own.text[0] ? own.text : rk_status_name(mine));

    int       first = 0;
    rk_status st = find_first(c, mine, &first, &v);
    if (reporter) *reporter = st != RK_OK || first == c->rank;
    if (st != RK_OK) {
        if (mine == RK_OK) return st;
        /* The own failure is the cause worth telling. */
        return rk_err_fail(mine, own.file ? own.file : __FILE__, own.line, own.func, "%s", v.text);
    }
    if (first == c->size) return RK_OK;
    if (first == c->rank) return mine;
    v.text[RK_ERR_TEXT - 1] = 0;
    return RK_FAIL((rk_status)v.code, "rank %d: %s", first, v.text);
}
