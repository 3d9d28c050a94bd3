/* comm.h - the ranks: start, agreement, small typed collectives, the end.
 *
 * One thread talks to MPI (FUNNELED). Every wait polls with a deadline and fails with RK_E_PEER
 * naming what was waited for. Collectives are called by all ranks of the communicator in the same
 * order, never under a rank-dependent condition. Started without a launcher there is one rank. */
#pragma once
#include "base/err.h"

typedef struct rk_comm rk_comm;

/* Start MPI; also sets the log's rank and the assert hook (MPI_Abort). A Slurm job step of several
 * tasks in which MPI sees one rank is refused (RK_E_USAGE, remedy --mpi=pmix).
 * Errors: RK_E_PEER MPI cannot start */
rk_status rk_comm_start(int *argc, char ***argv, rk_comm **world);
/* Finalize and free: only after all ranks agreed to end. NULL is fine. */
void rk_comm_finish(rk_comm *world);
/* End the job now, all ranks, with this exit code. Flushes nothing, does not return. */
void rk_comm_abort(rk_status code) __attribute__((noreturn));
bool rk_comm_started(void);

/* Seconds that any later wait on this communicator and its children may take (default 120). */
void rk_comm_set_timeout(rk_comm *c, double seconds);
double rk_comm_timeout(const rk_comm *c);

int rk_comm_rank(const rk_comm *c);
int rk_comm_size(const rk_comm *c);
/* Ranks that share this rank's node (memory), at least 1; found once at start. */
int rk_comm_local_size(const rk_comm *c);

/* Ranks: collective. Ranks with the same color form a communicator, ordered by old rank. */
rk_status rk_comm_split(rk_comm *c, int color, rk_comm **out);
void      rk_comm_close(rk_comm *c); /* of split; local */

/* Ranks: collective. All get the status of the lowest failing rank (RK_OK if none). The rank that
 * failed keeps its error record; the others get a record that names the failing rank and repeats
 * its text. *reporter (may be NULL) is true on the one rank whose main prints. */
rk_status rk_comm_agree(rk_comm *c, rk_status mine, bool *reporter);

/* Ranks: collective. Bytes from root to all. Any size. */
rk_status rk_comm_bcast(rk_comm *c, void *data, int64_t bytes, int root);
rk_status rk_comm_barrier(rk_comm *c);
/* Element-wise over ranks, result on all ranks; sums are made in rank order on rank 0. */
rk_status rk_comm_sum_i64(rk_comm *c, int64_t *v, int n);
rk_status rk_comm_max_f64(rk_comm *c, double *v, int n);
rk_status rk_comm_or_u64(rk_comm *c, uint64_t *v, int n);
/* Same number of bytes from each rank; out (root only) [size][bytes]. */
rk_status rk_comm_gather(rk_comm *c, const void *mine, int64_t bytes, void *out, int root);

/* For link_mpi.c alone: points to the MPI_Comm behind c, valid until c is closed. */
const void *rk_comm_native(const rk_comm *c);
