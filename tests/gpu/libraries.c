// cuBLAS, cuSOLVER, cuDNN and NCCL without a GPU. NCCL really exchanges what the ranks send, through shared memory.
//
// build.py adds each other function that torch's libraries ask for: those named *Create* make a handle, those of cuBLAS
// and cuSOLVER that compute are a launch on the stream of their handle, and the rest succeed and do nothing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int fake_cuda_launch(void *stream);
int fake_cuda_launch_call(void *stream, void (*call)(void *), void *data, int *held);

typedef struct { void *stream; char more[248]; } Handle;
int fake_cuda_handle(void **made) { *made = calloc(1, sizeof(Handle)); return 0; }
int fake_cuda_compute(Handle *handle) { return fake_cuda_launch(handle->stream); }
static int set_stream(Handle *handle, void *stream) { handle->stream = stream; return 0; }

// ---- cuBLAS and cuSOLVER

int cublasSetStream_v2(Handle *handle, void *stream) { return set_stream(handle, stream); }
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) { return 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasSetMathMode(void *handle, int mode) { return 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
int cublasSetPointerMode_v2(void *handle, int mode) { return 0; }
size_t cublasLtGetVersion(void) { return 120000; }
int cublasLtMatmulAlgoGetHeuristic(
    void *l, void *o, void *a, void *b, void *c, void *d, void *preference, int asked, uint64_t *result, int *found) {
  memset(result, 0, 12 * sizeof *result);  // an algorithm that needs no workspace
  *found = 1;
  return 0;
}
int cublasLtMatmul(
    void *l, void *o, void *alpha, void *a, void *a_layout, void *b, void *b_layout, void *beta, void *c, void *c_layout,
    void *d, void *d_layout, void *algorithm, void *workspace, size_t bytes, void *stream) {
  return fake_cuda_launch(stream);
}
int cusolverDnSetStream(Handle *handle, void *stream) { return set_stream(handle, stream); }
int cusolverDnSgeqrf_bufferSize(void *h, int m, int n, void *a, int lda, int *size) { *size = 64; return 0; }
int cusolverDnSorgqr_bufferSize(void *h, int m, int n, int k, void *a, int lda, void *tau, int *size) {
  *size = 64;
  return 0;
}
int cusolverDnXgeqrf_bufferSize(
    void *h, void *p, int64_t m, int64_t n, int type, void *a, int64_t lda, int tau_type, void *tau, int compute,
    size_t *device, size_t *host) {
  *device = *host = 64;
  return 0;
}

// ---- cuDNN

size_t cudnnGetVersion(void) { return 90100; }
int cudnnSetStream(Handle *handle, void *stream) { return set_stream(handle, stream); }
int cudnnGetStream(Handle *handle, void **stream) { *stream = handle->stream; return 0; }
const char *cudnnGetErrorString(int status) { return "an error of the fake cuDNN"; }
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *h, int mode, int ops, void *x, void *z, void *y, void *scale, void *activation, size_t *bytes) {
  return *bytes = 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void *h, int mode, int ops, void *x, void *y, void *dy, void *dz, void *dx, void *scale, void *act, size_t *bytes) {
  return *bytes = 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    void *h, int mode, int ops, void *activation, void *x, size_t *bytes) {
  return *bytes = 0;
}
int cudnnBatchNormalizationForwardTrainingEx(Handle *handle) { return fake_cuda_compute(handle); }
int cudnnBatchNormalizationForwardInference(Handle *handle) { return fake_cuda_compute(handle); }
int cudnnBatchNormalizationBackwardEx(Handle *handle) { return fake_cuda_compute(handle); }
// Convolutions: a graph of operations has one engine, whose plan needs no workspace. The numbers are cuDNN's.
enum { RESULTS = 202, ENGINE = 300, CONFIGURED_WORKSPACE = 303, WORKSPACE = 402, ENGINES = 802, INDEX = 1301 };
int cudnnBackendCreateDescriptor(int type, void **made) { return fake_cuda_handle(made); }
int cudnnBackendDestroyDescriptor(void *descriptor) { free(descriptor); return 0; }
int cudnnBackendGetAttribute(void *d, int name, int type, int64_t asked, int64_t *count, int64_t *value) {
  int number = name == WORKSPACE || name == CONFIGURED_WORKSPACE || name == INDEX || name == ENGINES;
  if (number && asked && value) *value = name == ENGINES;
  if (count) *count = number || name == RESULTS || name == ENGINE;
  return 0;
}
int cudnnBackendExecute(Handle *handle, void *plan, void *variables) { return fake_cuda_compute(handle); }

// ---- NCCL

#define SLOT (128 << 20)  // bytes that a rank can send at once
enum { INT32 = 2, INT64 = 4, UINT64 = 5, HALF = 6, FLOAT = 7, DOUBLE = 8, SUM = 0, MAX = 2, MIN = 3, AVERAGE = 4 };
typedef struct { char internal[128]; } UniqueId;
typedef struct { int arrived, turn; } Meeting;
typedef struct Communicator {
  int rank, ranks;
  Meeting *meeting;
  char *slots;
  int split;
  int held;  // collectives in graphs
} Communicator;

static size_t width(int type) { return (int[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}[type]; }
static char *slot(Communicator *c, int rank) { return c->slots + (size_t)rank * SLOT; }
// Wait until all ranks are here.
static void meet(Communicator *c) {
  int turn = __atomic_load_n(&c->meeting->turn, __ATOMIC_SEQ_CST);
  if (__atomic_add_fetch(&c->meeting->arrived, 1, __ATOMIC_SEQ_CST) == c->ranks) {
    __atomic_store_n(&c->meeting->arrived, 0, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&c->meeting->turn, 1, __ATOMIC_SEQ_CST);
  }
  for (int seconds = 0, tries = 0; __atomic_load_n(&c->meeting->turn, __ATOMIC_SEQ_CST) == turn; tries++) {
    if (tries < 100) { sched_yield(); continue; }
    usleep(200);
    if (tries > 300000) { fprintf(stderr, "fake NCCL: a minute without the other ranks\n"); abort(); }
  }
}
// Write a line to the file FAKE_NCCL_LOG.<rank>: what is sent, and its bytes on this rank.
static void note(Communicator *c, const char *name, size_t bytes) {
  static FILE *log;
  if (!log && getenv("FAKE_NCCL_LOG")) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", getenv("FAKE_NCCL_LOG"), c->rank);
    setlinebuf(log = fopen(path, "a"));
  }
  if (log) fprintf(log, "%s%s %zu\n", c->split ? "split_" : "", name, bytes);
}
// Put data where all ranks can read it.
static void share(Communicator *c, const char *name, const void *data, size_t bytes) {
  if (bytes > SLOT) { fprintf(stderr, "fake NCCL: %zu bytes at once\n", bytes); abort(); }
  note(c, name, bytes);
  memcpy(slot(c, c->rank), data, bytes);
  meet(c);
}
#define REDUCE(T)                                                                                            \
  for (size_t i = 0; i < count; i++) {                                                                       \
    T all = *(T *)(slot(c, 0) + offset + i * sizeof(T));                                                     \
    for (int rank = 1; rank < c->ranks; rank++) {                                                            \
      T one = *(T *)(slot(c, rank) + offset + i * sizeof(T));                                                \
      all = op == MAX ? (one > all ? one : all) : op == MIN ? (one < all ? one : all) : all + one;           \
    }                                                                                                        \
    ((T *)to)[i] = op == AVERAGE ? all / c->ranks : all;                                                     \
  }
static void reduce(Communicator *c, void *to, size_t offset, size_t count, int type, int op) {
  if (type == FLOAT) { REDUCE(float) }
  else if (type == DOUBLE) { REDUCE(double) }
  else if (type == INT64 || type == UINT64) { REDUCE(int64_t) }
  else if (type == INT32) { REDUCE(int32_t) }
  else if (width(type) == 1) { REDUCE(unsigned char) }
  else { fprintf(stderr, "fake NCCL: no sums of type %d\n", type); abort(); }
}
// A collective, which a graph carries out at each replay and not when it is captured.
typedef struct { const char *from; char *to; size_t from_bytes, to_bytes; } Pair;
typedef struct Collective {
  void (*carry_out)(struct Collective *);
  Communicator *c;
  const char *from;
  char *to;
  size_t n, bytes;  // elements, and their bytes
  int type, how;    // an operation, or a rank
  Pair *pairs;      // what is sent to each rank, and received from it
  struct Collective *members;  // of a group
} Collective;
static int start(Collective collective, void *stream) {
  Collective *kept = malloc(sizeof *kept);
  *kept = collective;
  kept->bytes = kept->n * width(kept->type);
  return fake_cuda_launch_call(stream, (void (*)(void *))kept->carry_out, kept, &kept->c->held);
}
static void all_reduce(Collective *x) {
  share(x->c, "all_reduce", x->from, x->bytes);
  reduce(x->c, x->to, 0, x->n, x->type, x->how);
  meet(x->c);
}
static void reduce_scatter(Collective *x) {
  share(x->c, "reduce_scatter", x->from, x->c->ranks * x->bytes);
  reduce(x->c, x->to, x->c->rank * x->bytes, x->n, x->type, x->how);
  meet(x->c);
}
static void all_gather(Collective *x) {
  share(x->c, "all_gather", x->from, x->bytes);
  for (int rank = 0; rank < x->c->ranks; rank++) memcpy(x->to + rank * x->bytes, slot(x->c, rank), x->bytes);
  meet(x->c);
}
static void all_to_all(Collective *x) {
  share(x->c, "all_to_all", x->from, x->c->ranks * x->bytes);
  for (int rank = 0; rank < x->c->ranks; rank++)
    memcpy(x->to + rank * x->bytes, slot(x->c, rank) + x->c->rank * x->bytes, x->bytes);
  meet(x->c);
}
static void broadcast(Collective *x) {
  share(x->c, "broadcast", x->from, x->bytes);
  memcpy(x->to, slot(x->c, x->how), x->bytes);
  meet(x->c);
}
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, Communicator *c, void *stream) {
  return start((Collective){reduce_scatter, c, from, to, n, .type = type, .how = op}, stream);
}
int ncclAllGather(const void *from, void *to, size_t n, int type, Communicator *c, void *stream) {
  return start((Collective){all_gather, c, from, to, n, .type = type}, stream);
}
int ncclAlltoAll(const void *from, void *to, size_t n, int type, Communicator *c, void *stream) {
  return start((Collective){all_to_all, c, from, to, n, .type = type}, stream);
}
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Communicator *c, void *stream) {
  return start((Collective){broadcast, c, from, to, n, .type = type, .how = root}, stream);
}
int ncclBcast(void *data, size_t n, int type, int root, Communicator *c, void *stream) {
  return ncclBroadcast(data, data, n, type, root, c, stream);
}
// Older releases of torch send to all ranks one by one, in a group: here every rank sends and receives in it.
static __thread Pair pending[64];
static __thread Communicator *grouped;
static __thread void *grouped_stream;
static __thread int depth;
int ncclGroupStart(void) { depth++; return 0; }
int ncclSend(const void *data, size_t n, int type, int peer, Communicator *c, void *stream) {
  pending[peer].from = data;
  pending[peer].from_bytes = n * width(type);
  grouped = c;
  grouped_stream = stream;
  return 0;
}
int ncclRecv(void *data, size_t n, int type, int peer, Communicator *c, void *stream) {
  pending[peer].to = data;
  pending[peer].to_bytes = n * width(type);
  grouped = c;
  grouped_stream = stream;
  return 0;
}
// Those in a group are one launch.
static __thread Collective *summed;
static __thread int sums;
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Communicator *c, void *stream) {
  Collective one = {all_reduce, c, from, to, n, n * width(type), type, op};
  if (!depth) return start(one, stream);
  summed = realloc(summed, (sums + 1) * sizeof one);
  summed[sums++] = one;
  grouped = c;
  grouped_stream = stream;
  return 0;
}
static void all_reduces(Collective *x) {
  size_t bytes = 0, offset = 0;
  for (size_t i = 0; i < x->n; bytes += x->members[i++].bytes)
    memcpy(slot(x->c, x->c->rank) + bytes, x->members[i].from, x->members[i].bytes);
  note(x->c, "all_reduce", bytes);
  meet(x->c);
  for (Collective *one = x->members; one < x->members + x->n; offset += one++->bytes)
    reduce(x->c, one->to, offset, one->n, one->type, one->how);
  meet(x->c);
}
static void exchange(Collective *x) {
  size_t room = SLOT / x->c->ranks, bytes = 0;
  for (int rank = 0; rank < x->c->ranks; rank++) {
    memcpy(slot(x->c, x->c->rank) + rank * room, x->pairs[rank].from, x->pairs[rank].from_bytes);
    bytes += x->pairs[rank].from_bytes;
  }
  note(x->c, "all_to_all", bytes);
  meet(x->c);
  for (int rank = 0; rank < x->c->ranks; rank++)
    memcpy(x->pairs[rank].to, slot(x->c, rank) + x->c->rank * room, x->pairs[rank].to_bytes);
  meet(x->c);
}
int ncclGroupEnd(void) {
  Communicator *c = grouped;
  if (--depth || !c) return 0;
  grouped = NULL;
  if (sums) {
    Collective all = {all_reduces, c, .n = sums, .members = summed};
    summed = NULL;
    sums = 0;
    return start(all, grouped_stream);
  }
  Pair *pairs = memcpy(malloc(sizeof pending), pending, sizeof pending);
  memset(pending, 0, sizeof pending);
  return start((Collective){exchange, c, .pairs = pairs}, grouped_stream);
}
// NCCL waits for the graphs that hold a communicator before it destroys it.
static int destroy(Communicator *c) {
  if (c->held) { fprintf(stderr, "fake NCCL: a graph still holds the communicator\n"); abort(); }
  return 0;
}
int ncclCommDestroy(Communicator *c) { return destroy(c); }
int ncclCommFinalize(Communicator *c) { return destroy(c); }

int ncclGetVersion(int *version) { *version = 22100; return 0; }
int ncclGetUniqueId(UniqueId *id) {
  static int made;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/fake-nccl-%d-%d", getpid(), made++);
  return 0;
}
int ncclCommInitRankConfig(Communicator **made, int ranks, UniqueId id, int rank, void *configuration) {
  Communicator *c = *made = calloc(1, sizeof *c);
  size_t bytes = 4096 + (size_t)ranks * SLOT;
  int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, bytes)) return 2;
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  *c = (Communicator){rank, ranks, (Meeting *)memory, memory + 4096};
  meet(c);
  if (rank == 0) shm_unlink(id.internal);
  return 0;
}
// Of all ranks, as the product splits.
int ncclCommSplit(Communicator *c, int color, int key, Communicator **made, void *configuration) {
  UniqueId id;
  if (c->rank == 0) ncclGetUniqueId(&id);
  memcpy(slot(c, c->rank), &id, sizeof id);
  meet(c);
  memcpy(&id, slot(c, 0), sizeof id);
  meet(c);
  int error = ncclCommInitRankConfig(made, c->ranks, id, c->rank, configuration);
  (*made)->split = 1;
  return error;
}
int ncclCommInitRank(Communicator **made, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(made, ranks, id, rank, NULL);
}
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int count, UniqueId *ids, void *configuration) {
  return ncclCommInitRankConfig(made, ranks, ids[0], rank, configuration);
}
int ncclCommGetAsyncError(Communicator *c, int *error) { return *error = 0; }
int ncclCommCount(Communicator *c, int *ranks) { *ranks = c->ranks; return 0; }
int ncclCommUserRank(Communicator *c, int *rank) { *rank = c->rank; return 0; }
const char *ncclGetErrorString(int error) { return "an error of the fake NCCL"; }
const char *ncclGetLastError(Communicator *c) { return ""; }
