/* ranks.c: one prompt whose keys lie on several machines, with MPI.
 *
 *     make mpi
 *     mpirun -n 4 build/ranks [--length N] [--capacity N] [--budget head|layer]
 *                             [--voting sum|max] [--collect] [--verify] [--spoil RANK]
 *                             [--file PREFIX | --write PREFIX]
 *
 * Each rank holds a contiguous run of whole parts (SNAPKV_PART positions) of K and V and nothing of
 * the others'. Rank 0 broadcasts the voters' queries. Then, for each K/V head:
 *
 *   1. every rank observes its keys                        snapkv_part_observe
 *   2. all get all statistics                              8 bytes a part, query head and voter
 *   3. every rank turns its keys into votes                snapkv_part_vote
 *   4. neighbours exchange the votes near their borders    kernel_size / 2 a side and query head
 *   5. every rank pools and reduces its own                snapkv_part_score
 *   6. all get all candidates                              4 bytes each: a score
 *   7. every rank asks how many of its own survive         snapkv_allocate, a list per set and rank
 *   8. and gathers those rows                              snapkv_top_k, snapkv_gather_rows
 *   9. all get what each part drops, for the coverage      32 bytes a part
 *
 * Lists, scores and coverage have the bits of one process: --verify compares them on rank 0, which
 * then makes the whole prompt. --write leaves each rank's keys and values in PREFIX.<rank>, --file
 * reads them; --spoil puts a NaN into a rank's keys, which ends all of them with an error. */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "snapkv.h"

enum { DIM = 64, ROW = DIM * sizeof(float), N_KV_HEADS = 2, GROUP = 4, N_SINK = 4 };
enum { N_QUERY_HEADS = N_KV_HEADS * GROUP, WINDOW = 16, RECENT = 8, KERNEL = 7 };
enum { RUN = 768, RUNS = SNAPKV_PART / RUN, LANES = 16 }; /* docs/numerics.md, coverage */
enum { MOST_LENGTH = 1 << 26, MOST_RANKS = 1024 };

typedef struct options {
    size_t length, capacity;
    int by_layer, collect, verify, spoil;
    snapkv_voting voting;
    const char *read_from, *write_to;
} options;

/* What a rank allocates and sends is counted. */
static int rank, n_ranks;
static size_t bytes_held, bytes_sent;

static void stop(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "ranks: rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        stop("not enough memory for %zu times %zu bytes", count, size);
    }
    bytes_held += count * size;
    return memory;
}

/* All ranks end together, with the first error that one of them met. */
static void agree(snapkv_status status, const char *step) {
    int mine = (int)status, worst = 0;
    MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (mine != SNAPKV_OK) {
        fprintf(stderr, "ranks: rank %d: %s: %s\n", rank, step, snapkv_status_string(status));
    }
    if (worst != SNAPKV_OK) {
        MPI_Finalize();
        exit(1);
    }
}

/* ---- who holds what -------------------------------------------------------------------------- */

/* Every rank knows every rank's rows: first .. end - 1, of which first .. vote_end - 1 compete. */
typedef struct share {
    size_t first_part, n_parts;
    size_t first, end, vote_end;
} share;

static share share_of(size_t length, int of_rank) {
    const size_t n_parts = snapkv_part_count(length), n = (size_t)n_ranks, r = (size_t)of_rank;
    const size_t prefix = length - RECENT;
    share s;
    s.first_part = n_parts * r / n;
    s.n_parts = n_parts * (r + 1) / n - s.first_part;
    s.first = s.first_part * SNAPKV_PART;
    s.end = (s.first_part + s.n_parts) * SNAPKV_PART;
    s.end = s.end < length ? s.end : length;
    s.first = s.first < s.end ? s.first : s.end;
    s.vote_end = s.end < prefix ? s.end : prefix;
    s.vote_end = s.vote_end > s.first ? s.vote_end : s.first;
    return s;
}

/* Numbers that depend on their place alone, so that any rank makes the same: splitmix64. */
static float number_at(uint64_t stream, uint64_t i) {
    uint64_t z = (stream << 40) + (i + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return ((float)(z >> 40) / 16777216.0f - 0.5f) * 2.0f;
}

/* Rows first .. end - 1 of K (kind 1) or V (2), [head][row][dim]. Every 7th key is one of three
 * that recur all over the prompt: equal keys tie exactly, whoever holds them. */
static void make_rows(float *rows, uint64_t kind, size_t first, size_t end) {
    for (size_t head = 0; head < N_KV_HEADS; head++) {
        for (size_t row = first; row < end; row++) {
            const size_t source = kind == 1 && row % 7 == 0 ? row / 7 % 3 : row + 3;
            for (size_t d = 0; d < DIM; d++) {
                rows[(head * (end - first) + row - first) * DIM + d] =
                    number_at(kind, (head << 34) + source * DIM + d);
            }
        }
    }
}

static void move_file(const char *prefix, const char *mode, float *keys, float *values, size_t n) {
    char path[4096];
    const int written = snprintf(path, sizeof path, "%s.%d", prefix, rank);
    FILE *file = written > 0 && (size_t)written < sizeof path ? fopen(path, mode) : NULL;
    size_t done = 0;
    if (file && mode[0] == 'r') {
        done = fread(keys, sizeof *keys, n, file) + fread(values, sizeof *values, n, file);
        done += fgetc(file) != EOF; /* longer than it should be */
    } else if (file) {
        done = fwrite(keys, sizeof *keys, n, file) + fwrite(values, sizeof *values, n, file);
    }
    if (!file || (fclose(file) != 0) || done != 2 * n) {
        stop("%s: can't be %s as %zu floats of keys and as many of values", path,
             mode[0] == 'r' ? "read" : "written", n);
    }
}

/* ---- what is exchanged ----------------------------------------------------------------------- */

/* Everybody's share of an array, joined in order of rank. counts in elements of `size` bytes. */
static void join(const void *mine, size_t n_mine, void *all, const size_t *counts, size_t size) {
    static int bytes[MOST_RANKS], starts[MOST_RANKS];
    size_t start = 0;
    for (int r = 0; r < n_ranks; r++) {
        if ((start + counts[r]) * size > INT32_MAX) {
            stop("more than 2 GiB in one exchange");
        }
        bytes[r] = (int)(counts[r] * size);
        starts[r] = (int)(start * size);
        start += counts[r];
    }
    MPI_Allgatherv(mine, (int)(n_mine * size), MPI_BYTE, all, bytes, starts, MPI_BYTE,
                   MPI_COMM_WORLD);
    bytes_sent += n_mine * size;
}

/* Fills the margins of `votes`, rows from..to of GROUP heads, with what other ranks hold of them. A
 * neighbour may hold less than a margin, or nothing: everybody looks at everybody. */
static void exchange_margins(float *votes, size_t stride, share own, size_t radius, size_t prefix) {
    enum { TAG = 1 };
    MPI_Request requests[2 * GROUP];
    const size_t from = own.first > radius ? own.first - radius : 0;
    for (int distance = 1; distance < n_ranks; distance++) {
        for (int side = 0; side < 2; side++) { /* towards the later ranks, then the earlier ones */
            const int to = side ? rank - distance : rank + distance;
            const int source = side ? rank + distance : rank - distance;
            int n = 0;
            for (int way = 0; way < 2; way++) { /* receive, then send */
                const int other = way ? to : source;
                if (other < 0 || other >= n_ranks) {
                    continue;
                }
                const share holder = way ? own : share_of(prefix + RECENT, other);
                const share wanting = way ? share_of(prefix + RECENT, other) : own;
                size_t low = wanting.first > radius ? wanting.first - radius : 0;
                size_t high = wanting.vote_end + radius;
                high = high < prefix ? high : prefix;
                low = low > holder.first ? low : holder.first;
                high = high < holder.vote_end ? high : holder.vote_end;
                if (wanting.vote_end == wanting.first || low >= high) {
                    continue;
                }
                for (int head = 0; head < GROUP; head++) {
                    float *at = votes + (size_t)head * stride + (low - from);
                    const int bytes = (int)((high - low) * sizeof *at);
                    if (way) {
                        MPI_Isend(at, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
                        bytes_sent += (size_t)bytes;
                    } else {
                        MPI_Irecv(at, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n++]);
                    }
                }
            }
            MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
        }
    }
}

/* What a part's lists drop, in the runs and with the tree of docs/numerics.md, so that the sum over
 * all parts has the bits of snapkv_coverage. votes are those of rows 0 .. n - 1, kept ones 0. */
static void sum_runs(const float *votes, size_t n, float *sums) {
    for (size_t run = 0; run < n; run += RUN) {
        const size_t end = run + RUN < n ? run + RUN : n;
        float lanes[LANES] = {0};
        for (size_t i = run; i < end; i++) {
            lanes[(i - run) % LANES] += votes[i];
        }
        for (size_t half = LANES / 2; half > 0; half /= 2) {
            for (size_t i = 0; i < half; i++) {
                lanes[i] += lanes[i + half];
            }
        }
        sums[run / RUN] = lanes[0];
    }
}

/* ---- the layer ------------------------------------------------------------------------------- */

static snapkv_layer describe(size_t length, const float *queries, const float *keys, size_t n_rows,
                             size_t first_row) {
    snapkv_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.n_query_heads = N_QUERY_HEADS;
    layer.n_kv_heads = N_KV_HEADS;
    layer.length = length;
    layer.head_dim = DIM;
    layer.queries = snapkv_rows_by_head(queries, SNAPKV_F32, WINDOW, DIM);
    layer.keys = snapkv_rows_by_head(keys, SNAPKV_F32, n_rows, DIM);
    layer.first_row = first_row;
    return layer;
}

/* What a rank knows of one set: its scores, and in the end its list. */
typedef struct set {
    float *scores, *mean; /* [own rows that compete] */
    float *candidates;    /* [all ranks' n_candidates] */
    size_t n_best;        /* own rows among the best of all */
    int32_t *kept;        /* [n_kept] own rows, counted from the first */
    size_t n_kept;
    float coverage;
} set;

/* Candidates of a rank: no more of one list than the budget can survive. */
static size_t n_candidates(share s, size_t budget) {
    const size_t skip = s.first < N_SINK ? N_SINK - s.first : 0;
    const size_t n = s.vote_end - s.first;
    return n <= skip ? 0 : n - skip < budget ? n - skip : budget;
}

static void score_set(set *s, size_t head, const snapkv_config *config, const snapkv_layer *layer,
                      share own, size_t budget, void *workspace, size_t workspace_size,
                      double *seconds) {
    const size_t prefix = layer->length - RECENT, radius = KERNEL / 2;
    const size_t n_parts = snapkv_part_count(layer->length), per_part = GROUP * WINDOW;
    const size_t from = own.first > radius ? own.first - radius : 0;
    const size_t to = own.vote_end + radius < prefix ? own.vote_end + radius : prefix;
    const size_t n_own = own.vote_end - own.first, stride = n_own ? to - from : 0;
    const int by_max = config->voting == SNAPKV_VOTE_MAX;
    snapkv_statistic *mine = take(own.n_parts * per_part, sizeof *mine);
    snapkv_statistic *all = take(n_parts * per_part, sizeof *all);
    float *votes = take(GROUP * stride, sizeof *votes);
    float *sums = by_max ? take(GROUP * stride, sizeof *sums) : votes;
    float *scores = take(stride, sizeof *scores), *mean = take(stride, sizeof *mean);
    size_t counts[MOST_RANKS];
    snapkv_status status;

    *seconds -= MPI_Wtime();
    status = snapkv_part_observe(config, layer, head, own.first_part, own.n_parts, mine, workspace,
                                 workspace_size);
    *seconds += MPI_Wtime();
    agree(status, "observing");
    for (int r = 0; r < n_ranks; r++) {
        counts[r] = share_of(layer->length, r).n_parts * per_part;
    }
    join(mine, own.n_parts * per_part, all, counts, sizeof *mine);
    *seconds -= MPI_Wtime();
    status = n_own == 0 ? SNAPKV_OK
                        : snapkv_part_vote(config, layer, head, own.first_part, own.n_parts, all, 1,
                                           votes + (own.first - from), sums + (own.first - from),
                                           stride, workspace, workspace_size);
    *seconds += MPI_Wtime();
    agree(status, "voting");
    exchange_margins(votes, stride, own, radius, prefix);
    if (by_max) {
        exchange_margins(sums, stride, own, 0, prefix); /* summed votes are not pooled */
    }
    *seconds -= MPI_Wtime();
    if (n_own > 0) {
        status = snapkv_part_score(config, GROUP, stride, votes, sums, stride, scores, mean);
    }
    s->scores = take(n_own, sizeof *scores);
    s->mean = take(n_own, sizeof *mean);
    memcpy(s->scores, scores + (own.first - from), n_own * sizeof *scores);
    memcpy(s->mean, mean + (own.first - from), n_own * sizeof *mean);

    /* The best candidates of this rank, in order of position, so that ties stay in order. */
    const size_t skip = own.first < N_SINK ? N_SINK - own.first : 0, n = n_candidates(own, budget);
    int32_t *best = take(n, sizeof *best);
    float *offered = take(n, sizeof *offered);
    if (status == SNAPKV_OK && n > 0) {
        status = snapkv_top_k(s->scores + skip, n_own - skip, n, SNAPKV_BY_POSITION, best);
        for (size_t i = 0; i < n && status == SNAPKV_OK; i++) {
            offered[i] = s->scores[skip + (size_t)best[i]];
        }
    }
    *seconds += MPI_Wtime();
    agree(status, "scoring");
    size_t n_all = 0;
    for (int r = 0; r < n_ranks; r++) {
        counts[r] = n_candidates(share_of(layer->length, r), budget);
        n_all += counts[r];
    }
    s->candidates = take(n_all, sizeof *offered);
    join(offered, n, s->candidates, counts, sizeof *offered);
    void *done[] = {mine, all, votes, by_max ? sums : NULL, scores, mean, best, offered};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++) {
        free(done[i]);
    }
}

/* How many of its candidates each rank keeps of each set: every rank finds the same. With a budget
 * for the layer all lists share it, in order of set, then rank; else each set has its own. */
static void share_budget(set sets[N_KV_HEADS], const options *o, size_t n_best, size_t budget) {
    const size_t n_lists = (size_t)n_ranks;
    snapkv_list *lists = take(N_KV_HEADS * n_lists, sizeof *lists);
    size_t *counts = take(N_KV_HEADS * n_lists, sizeof *counts);
    snapkv_status status = SNAPKV_OK;
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        const float *next = sets[i].candidates;
        for (int r = 0; r < n_ranks; r++) {
            snapkv_list *list = &lists[i * n_lists + (size_t)r];
            list->scores = next;
            list->n = n_candidates(share_of(o->length, r), budget);
            next += list->n;
        }
    }
    if (o->by_layer) {
        status = snapkv_allocate(lists, N_KV_HEADS * n_lists, N_KV_HEADS * n_best, 0, counts);
    }
    for (size_t i = 0; !o->by_layer && i < N_KV_HEADS && status == SNAPKV_OK; i++) {
        status = snapkv_allocate(lists + i * n_lists, n_lists, n_best, 0, counts + i * n_lists);
    }
    agree(status, "sharing the budget");
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        sets[i].n_best = counts[i * n_lists + (size_t)rank];
    }
    free(lists);
    free(counts);
}

/* This rank's list of a set: pinned, best and recent rows that it holds. Then the coverage. */
static void keep_rows(set *s, share own, size_t length) {
    const size_t n_own = own.vote_end - own.first;
    const size_t pinned = own.first < N_SINK ? N_SINK - own.first : 0;
    const size_t n_pinned = pinned < n_own ? pinned : n_own;
    size_t counts[MOST_RANKS];
    const size_t n_runs = own.n_parts * RUNS;
    float *dropped = take(n_own, sizeof *dropped), *mine = take(n_runs, sizeof *mine);
    float *all = take(snapkv_part_count(length) * RUNS, sizeof *all), sum = 0.0f;
    s->kept = take(n_pinned + s->n_best + (own.end - own.vote_end), sizeof *s->kept);
    for (size_t i = 0; i < n_pinned; i++) {
        s->kept[s->n_kept++] = (int32_t)i;
    }
    if (s->n_best > 0) {
        agree(snapkv_top_k(s->scores + n_pinned, n_own - n_pinned, s->n_best, SNAPKV_BY_POSITION,
                           s->kept + s->n_kept), "keeping");
    } else {
        agree(SNAPKV_OK, "keeping");
    }
    for (size_t i = 0; i < s->n_best; i++) {
        s->kept[s->n_kept++] += (int32_t)n_pinned;
    }
    memcpy(dropped, s->mean, n_own * sizeof *dropped);
    for (size_t i = 0; i < s->n_kept; i++) {
        dropped[s->kept[i]] = 0.0f;
    }
    for (size_t row = own.vote_end; row < own.end; row++) {
        s->kept[s->n_kept++] = (int32_t)(row - own.first);
    }
    sum_runs(dropped, n_own, mine);
    for (int r = 0; r < n_ranks; r++) {
        counts[r] = share_of(length, r).n_parts * RUNS;
    }
    join(mine, n_runs, all, counts, sizeof *mine);
    for (size_t i = 0; i < snapkv_part_count(length) * RUNS; i++) {
        sum += all[i];
    }
    s->coverage = 1.0f - sum / (float)WINDOW;
    s->coverage = s->coverage < 0.0f ? 0.0f : s->coverage;
    free(dropped);
    free(mine);
    free(all);
}

/* ---- to rank 0 ------------------------------------------------------------------------------- */

/* Joins what the ranks have, n_mine elements each, on rank 0. Returns it there, and how many. */
static void *collect(const void *mine, size_t n_mine, size_t size, size_t *n_all) {
    static int bytes[MOST_RANKS], starts[MOST_RANKS];
    const int n_bytes = (int)(n_mine * size);
    size_t total = 0;
    MPI_Gather(&n_bytes, 1, MPI_INT, bytes, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int r = 0; rank == 0 && r < n_ranks; r++) {
        starts[r] = (int)total;
        total += (size_t)bytes[r];
    }
    void *all = rank == 0 ? malloc(total ? total : 1) : NULL;
    if (rank == 0 && !all) {
        stop("not enough memory to collect %zu bytes", total);
    }
    MPI_Gatherv(mine, n_bytes, MPI_BYTE, all, bytes, starts, MPI_BYTE, 0, MPI_COMM_WORLD);
    *n_all = total / size;
    return all;
}

/* Rank 0 does it all alone, from the whole prompt, and compares every bit. */
static int verify(const options *o, const snapkv_config *config, const float *queries,
                  int32_t *const lists[N_KV_HEADS], const size_t n_kept[N_KV_HEADS],
                  float *const scores[N_KV_HEADS], const set *sets) {
    const size_t prefix = o->length - RECENT, n_best = o->capacity - RECENT - N_SINK;
    float *keys = take(N_KV_HEADS * o->length * DIM, sizeof *keys);
    make_rows(keys, 1, 0, o->length);
    const snapkv_layer layer = describe(o->length, queries, keys, o->length, 0);
    const size_t size = snapkv_workspace_size(config, &layer);
    void *workspace = take(size, 1);
    float *whole[N_KV_HEADS], *votes = take(prefix, sizeof *votes);
    snapkv_list all[N_KV_HEADS];
    size_t counts[N_KV_HEADS];
    int wrong = 0;
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        whole[i] = take(prefix, sizeof *votes);
        wrong += snapkv_score(config, &layer, i, whole[i], votes, workspace, size) != SNAPKV_OK;
        wrong += memcmp(whole[i], scores[i], prefix * sizeof *votes) != 0;
        all[i].scores = whole[i] + N_SINK;
        all[i].n = prefix - N_SINK;
        counts[i] = n_best;
    }
    if (o->by_layer) {
        wrong += snapkv_allocate(all, N_KV_HEADS, N_KV_HEADS * n_best, 0, counts) != SNAPKV_OK;
    }
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        const size_t n = N_SINK + counts[i] + RECENT;
        int32_t *kept = take(n, sizeof *kept);
        float coverage = -1;
        wrong += snapkv_keep(config, o->length, whole[i], counts[i], kept) != SNAPKV_OK;
        wrong += n != n_kept[i] || memcmp(kept, lists[i], n * sizeof *kept) != 0;
        wrong += snapkv_score(config, &layer, i, whole[i], votes, workspace, size) != SNAPKV_OK;
        wrong += snapkv_coverage(config, o->length, votes, kept, n, &coverage) != SNAPKV_OK;
        wrong += memcmp(&coverage, &sets[i].coverage, sizeof coverage) != 0;
        free(kept);
    }
    printf("one process: %s\n", wrong ? "DIFFERENT" : "the same lists, scores and coverage");
    return wrong;
}

static int read_options(int argc, char **argv, options *o) {
    static const char *const budgets[] = {"head", "layer"}, *const votings[] = {"sum", "max"};
    memset(o, 0, sizeof *o);
    o->length = 40000;
    o->capacity = 512;
    o->spoil = -1;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        unsigned long number = 0;
        size_t index = 0;
        if (strcmp(argv[i], "--collect") == 0) {
            o->collect = 1;
            continue;
        }
        if (strcmp(argv[i], "--verify") == 0) {
            o->verify = 1;
            continue;
        }
        if (strcmp(argv[i], "--length") == 0 && read_number(value, MOST_LENGTH, &number)) {
            o->length = number;
        } else if (strcmp(argv[i], "--capacity") == 0 && read_number(value, MOST_LENGTH, &number)) {
            o->capacity = number;
        } else if (strcmp(argv[i], "--spoil") == 0 && read_number(value, MOST_RANKS, &number)) {
            o->spoil = (int)number;
        } else if (strcmp(argv[i], "--budget") == 0 && read_name(value, budgets, 2, &index)) {
            o->by_layer = (int)index;
        } else if (strcmp(argv[i], "--voting") == 0 && read_name(value, votings, 2, &index)) {
            o->voting = index ? SNAPKV_VOTE_MAX : SNAPKV_VOTE_SUM;
        } else if (strcmp(argv[i], "--file") == 0 && *value) {
            o->read_from = value;
        } else if (strcmp(argv[i], "--write") == 0 && *value) {
            o->write_to = value;
        } else {
            return 0;
        }
        i++;
    }
    return o->capacity > RECENT + N_SINK && o->length >= o->capacity && o->length >= WINDOW &&
           !(o->verify && o->read_from);
}

int main(int argc, char **argv) {
    options o;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    if (!read_options(argc, argv, &o) || n_ranks > MOST_RANKS) {
        if (rank == 0) {
            fprintf(stderr,
                    "usage: mpirun -n N ranks [--length N] [--capacity N] [--budget head|layer] "
                    "[--voting sum|max] [--collect] [--verify] [--file PREFIX] [--write PREFIX] "
                    "[--spoil RANK]\nlength >= capacity > %d; --verify makes the prompt itself\n",
                    RECENT + N_SINK);
        }
        MPI_Finalize();
        return 2;
    }
    snapkv_config config = snapkv_default_config();
    config.window = WINDOW;
    config.n_recent = RECENT;
    config.n_sink = N_SINK;
    config.kernel_size = KERNEL;
    config.capacity = o.capacity;
    config.voting = o.voting;

    /* The queries come from rank 0; keys and values are made, or read, where they stay. */
    const share own = share_of(o.length, rank);
    const size_t n_rows = own.end - own.first, n_floats = N_KV_HEADS * n_rows * DIM;
    float *queries = take(N_QUERY_HEADS * WINDOW * DIM, sizeof *queries);
    float *keys = take(n_floats, sizeof *keys), *values = take(n_floats, sizeof *values);
    for (size_t i = 0; rank == 0 && i < N_QUERY_HEADS * WINDOW * DIM; i++) {
        queries[i] = 4.0f * number_at(3, i);
    }
    MPI_Bcast(queries, N_QUERY_HEADS * WINDOW * DIM, MPI_FLOAT, 0, MPI_COMM_WORLD);
    bytes_sent += rank == 0 ? N_QUERY_HEADS * WINDOW * ROW : 0;
    if (o.read_from) {
        move_file(o.read_from, "rb", keys, values, n_floats);
    } else {
        make_rows(keys, 1, own.first, own.end);
        make_rows(values, 2, own.first, own.end);
    }
    if (o.write_to) {
        move_file(o.write_to, "wb", keys, values, n_floats);
    }
    if (rank == o.spoil && n_floats > 0) {
        keys[n_floats / 2] = NAN;
    }

    const snapkv_layer layer = describe(o.length, queries, keys, n_rows, own.first);
    const size_t size = own.n_parts ? snapkv_part_workspace_size(&config, &layer, own.n_parts)
                                    : snapkv_part_workspace_min(&config, &layer);
    if (size == 0) {
        stop("%s", snapkv_explain(&config, &layer));
    }
    void *workspace = take(size, 1);
    const size_t cache_bytes = 2 * n_floats * sizeof(float);
    const size_t n_best = o.capacity - RECENT - N_SINK;
    const size_t budget = o.by_layer ? N_KV_HEADS * n_best : n_best;
    set sets[N_KV_HEADS];
    double seconds = 0, all_seconds = -MPI_Wtime();
    memset(sets, 0, sizeof sets);
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        score_set(&sets[i], i, &config, &layer, own, budget, workspace, size, &seconds);
    }
    share_budget(sets, &o, n_best, budget);
    size_t n_kept = 0;
    for (size_t i = 0; i < N_KV_HEADS; i++) {
        keep_rows(&sets[i], own, o.length);
        n_kept += sets[i].n_kept;
    }

    /* Every rank gathers its own rows: a list after the other. */
    float *small_keys = take(n_kept * DIM, sizeof *keys);
    float *small_values = take(n_kept * DIM, sizeof *values);
    snapkv_status status = SNAPKV_OK;
    size_t slot = 0;
    for (size_t i = 0; i < N_KV_HEADS && n_rows > 0; i++) {
        const size_t from = i * n_rows * DIM;
        for (int v = 0; v < 2 && status == SNAPKV_OK; v++) {
            float *to = (v ? small_values : small_keys) + slot * DIM;
            status = snapkv_gather_rows(sets[i].kept, sets[i].n_kept, (v ? values : keys) + from,
                                        ROW, n_rows, ROW, to, ROW);
        }
        slot += sets[i].n_kept;
    }
    agree(status, "gathering");
    all_seconds += MPI_Wtime();

    for (int r = 0; r < n_ranks; r++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (r == rank) {
            printf("rank %d: %zu positions, %zu bytes of K and V, %zu of workspace, %zu besides; "
                   "kept %zu rows, sent %zu bytes; %.1f ms, %.1f of them its own work\n",
                   rank, n_rows, cache_bytes, size, bytes_held - cache_bytes - size, n_kept,
                   bytes_sent, 1e3 * all_seconds, 1e3 * seconds);
            fflush(stdout);
        }
    }

    /* What the exchange may cost, and what a rank may hold: nothing that grows with the prompt but
     * its own rows, 64 bytes a part and voter, and the candidates. */
    const size_t n_parts = snapkv_part_count(o.length), voters = N_QUERY_HEADS * WINDOW;
    const size_t may_send =
        64 * (own.n_parts + 1) * voters + 8 * N_KV_HEADS * n_candidates(own, budget) +
        2 * 2 * (size_t)n_ranks * N_QUERY_HEADS * KERNEL * sizeof(float) + voters * ROW;
    const size_t per_row = N_KV_HEADS * (2 * GROUP + 5) * sizeof(float); /* votes and scores */
    const size_t may_hold = cache_bytes + size + per_row * (n_rows + 2 * KERNEL) +
                            64 * n_parts * voters + N_QUERY_HEADS * WINDOW * ROW +
                            N_KV_HEADS * 64 * (size_t)n_ranks + 2 * n_kept * ROW +
                            16 * N_KV_HEADS * (size_t)n_ranks * budget;
    int wrong = bytes_sent > may_send || bytes_held > may_hold;
    if (wrong) {
        fprintf(stderr, "ranks: rank %d: sent %zu of at most %zu bytes, held %zu of at most %zu\n",
                rank, bytes_sent, may_send, bytes_held, may_hold);
    }
    if (o.collect || o.verify) {
        int32_t *lists[N_KV_HEADS];
        size_t n_listed[N_KV_HEADS], n;
        float *scores[N_KV_HEADS];
        for (size_t i = 0; i < N_KV_HEADS; i++) {
            for (size_t k = 0; k < sets[i].n_kept; k++) {
                sets[i].kept[k] += (int32_t)own.first; /* from here on rows of the prompt */
            }
            lists[i] = collect(sets[i].kept, sets[i].n_kept, sizeof(int32_t), &n_listed[i]);
            scores[i] = collect(sets[i].scores, own.vote_end - own.first, sizeof(float), &n);
        }
        if (rank == 0 && o.verify) {
            wrong += verify(&o, &config, queries, lists, n_listed, scores, sets);
        }
        size_t start = 0;
        for (size_t i = 0; i < N_KV_HEADS && o.collect; i++) {
            float *cache[2];
            for (int v = 0; v < 2; v++) {
                const float *from = (v ? small_values : small_keys) + start * DIM;
                cache[v] = collect(from, sets[i].n_kept, ROW, &n);
            }
            start += sets[i].n_kept;
            /* A value tells where it is from. */
            for (size_t k = 0; rank == 0 && !o.read_from && k < n; k++) {
                const uint64_t at = (i << 34) + ((uint64_t)lists[i][k] + 3) * DIM;
                wrong += cache[1][k * DIM] != number_at(2, at);
            }
            if (rank == 0) {
                printf("head %zu: %zu rows on rank 0, coverage %.6f\n", i, n,
                       (double)sets[i].coverage);
            }
            free(cache[0]);
            free(cache[1]);
        }
    }
    int worst = 0;
    MPI_Allreduce(&wrong, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return worst != 0;
}
