// A CUDA runtime without a GPU, for torch's own C++: its allocator, streams, autograd, graphs and process groups.
//
// Device memory is host memory. Copies and fills are carried out; kernels do nothing. Everything is done at once, so that
// streams and events only keep the rules of stream capture: what a driver refuses during a capture is refused here.
// build.py adds each other function that torch's libraries ask for: it succeeds and does nothing.
//
// Settings: FAKE_CUDA_DEVICES GPUs, FAKE_CUDA_MB their memory.
#define _GNU_SOURCE
#include <driver_types.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef cudaError_t Error;
typedef enum cudaStreamCaptureMode Mode;

static long long setting(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoll(text) : otherwise;
}
static int gpus(void) { return setting("FAKE_CUDA_DEVICES", 1); }
static size_t memory(void) { return (size_t)setting("FAKE_CUDA_MB", 81920) << 20; }

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread int current;  // device of this thread
static __thread Error last;   // error of this thread
static Error give(Error error) { return error ? (last = error) : error; }

// What the tests read: launches of kernels, copies, fills and graphs; waits of the host for the device.
static long launches, waits;
static __thread int copied;  // the last call of this thread was a copy that waits: that torch then waits is no other wait
long fake_cuda_launches(void) { return launches; }
long fake_cuda_waits(void) { return waits; }

// ---- streams, events and captures

// A copy; without a source a fill. Or a call, such as a collective, for which the graph holds something.
typedef struct { void *to; const void *from; size_t bytes; int fill; void (*call)(void *); void *data; int *held; } Node;
typedef struct { Node *nodes; size_t count, room; } Graph;
typedef struct Capture {
  unsigned long long id;
  Mode mode;
  pthread_t thread;
  Graph *graph;
  const char *fault;  // why it has become invalid
  struct Capture *next;
} Capture;
typedef struct Stream {
  Capture *capture;
  long work, joined;  // operations since the capture began, and how many of them another stream waits for
  struct Stream *next;
} Stream;
typedef struct { Stream *stream; Capture *capture; long work; double time; } Event;

static Stream legacy, *streams = &legacy;
static Capture *captures;
static unsigned long long captured;

static Stream *of(void *stream) { return stream && stream != (void *)1 && stream != (void *)2 ? stream : &legacy; }
static int open(Capture *capture) {
  for (Capture *each = captures; each; each = each->next) if (each == capture) return 1;
  return 0;
}
static Error spoil(Capture *capture, const char *fault, Error error) {
  if (!capture->fault) {
    capture->fault = fault;
    fprintf(stderr, "fake CUDA: no stream capture allows %s\n", fault);
  }
  return give(error);
}
static __thread Mode mode = cudaStreamCaptureModeGlobal;
// A call that a driver refuses while a capture is under way which concerns this thread.
static Error refused(const char *name) {
  Error error = cudaSuccess;
  pthread_mutex_lock(&lock);
  for (Capture *each = captures; each; each = each->next) {
    int own = pthread_equal(each->thread, pthread_self());
    int global = each->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
    if (mode != cudaStreamCaptureModeRelaxed && (global || (own && each->mode != cudaStreamCaptureModeRelaxed)))
      error = spoil(each, name, cudaErrorStreamCaptureUnsupported);
  }
  pthread_mutex_unlock(&lock);
  return error;
}
// The calls that graphs have recorded. Where values are computed, values.py carries them out in place of a replay.
static struct { void (*call)(void *); void *data; } *calls;
static long recorded_calls;
static int by_hand;
long fake_cuda_recorded_calls(void) { return recorded_calls; }
void fake_cuda_call(long number) { calls[number].call(calls[number].data); }
void fake_cuda_calls_by_hand(void) { by_hand = 1; }

static void carry_out(Node node) {
  if (node.call) node.call(node.data);
  else if (node.from) memmove(node.to, node.from, node.bytes);
  else if (node.to) memset(node.to, node.fill, node.bytes);
}
// Give work to a stream: it is recorded during a capture, and carried out otherwise.
static Error work(void *on, Node node) {
  Stream *stream = of(on);
  Error error = cudaSuccess;
  pthread_mutex_lock(&lock);
  Capture *capture = stream->capture;
  stream->work++;
  if (!node.to) copied = 0;
  if (!capture) {
    launches++;
  } else if (capture->fault) {
    error = cudaErrorStreamCaptureInvalidated;
  } else {
    Graph *graph = capture->graph;
    if (graph->count == graph->room)
      graph->nodes = realloc(graph->nodes, (graph->room = 2 * graph->room + 256) * sizeof(Node));
    graph->nodes[graph->count++] = node;
    if (node.call) {
      ++*node.held;
      calls = realloc(calls, (recorded_calls + 1) * sizeof *calls);
      calls[recorded_calls].call = node.call;
      calls[recorded_calls++].data = node.data;
    }
  }
  pthread_mutex_unlock(&lock);
  if (!capture) carry_out(node);
  return give(error);
}
int fake_cuda_launch(void *stream) { return work(stream, (Node){0}); }
int fake_cuda_launch_call(void *stream, void (*call)(void *), void *data, int *held) {
  return work(stream, (Node){.call = call, .data = data, .held = held});
}
static void let_go(Graph *graph) {
  for (size_t i = 0; graph && i < graph->count; i++) if (graph->nodes[i].call) --*graph->nodes[i].held;
}

Error cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  Stream *made = calloc(1, sizeof *made);
  pthread_mutex_lock(&lock);
  made->next = streams;
  *stream = streams = made;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
Error cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
Error cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
Error cudaStreamGetPriority(void *stream, int *priority) { return *priority = 0; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
static Error ask(Capture *capture, const char *name, Error error) {
  return capture && open(capture) ? spoil(capture, name, error) : refused(name);
}
Error cudaStreamQuery(void *s) {
  return of(s)->capture ? spoil(of(s)->capture, "cudaStreamQuery", cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
Error cudaStreamSynchronize(void *s) {
  waits += !copied;
  copied = 0;
  return ask(of(s)->capture, "cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported);
}
Error cudaDeviceSynchronize(void) { waits++; return refused("cudaDeviceSynchronize"); }
Error cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
  if (!of(stream)->capture) call(data);
  return cudaSuccess;
}
Error cudaStreamAddCallback(void *stream, void (*call)(void *, Error, void *), void *data, unsigned flags) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}
Error cudaEventCreateWithFlags(void **event, unsigned flags) { *event = calloc(1, sizeof(Event)); return cudaSuccess; }
Error cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
Error cudaEventDestroy(void *event) { free(event); return cudaSuccess; }
Error cudaEventRecordWithFlags(Event *event, void *on, unsigned flags) {
  Stream *stream = of(on);
  *event = (Event){stream, stream->capture, stream->work, milliseconds()};
  return cudaSuccess;
}
Error cudaEventRecord(Event *event, void *stream) { return cudaEventRecordWithFlags(event, stream, 0); }
Error cudaEventQuery(Event *event) { return ask(event->capture, "cudaEventQuery", cudaErrorCapturedEvent); }
Error cudaEventSynchronize(Event *event) {
  waits++;
  return ask(event->capture, "cudaEventSynchronize", cudaErrorCapturedEvent);
}
Error cudaEventElapsedTime(float *time, Event *start, Event *end) {
  *time = end->time - start->time + 1e-3;
  return cudaSuccess;
}
// A stream that waits for an event of a capture joins it. Nothing else may wait for it, and it for nothing else.
Error cudaStreamWaitEvent(void *waiting, Event *event, unsigned flags) {
  Stream *stream = of(waiting);
  Error error = cudaSuccess;
  pthread_mutex_lock(&lock);
  if (event->capture && open(event->capture)) {
    if (stream == &legacy) {
      error = spoil(event->capture, "the default stream to wait for it", cudaErrorStreamCaptureImplicit);
    } else {
      if (!stream->capture) { stream->capture = event->capture; stream->work = stream->joined = 0; }
      if (stream != event->stream && event->work > event->stream->joined) event->stream->joined = event->work;
    }
  } else if (event->stream && stream->capture) {
    error = spoil(stream->capture, "a wait for work outside of it", cudaErrorStreamCaptureIsolation);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

Error cudaThreadExchangeStreamCaptureMode(Mode *other) {
  Mode before = mode;
  mode = *other;
  *other = before;
  return cudaSuccess;
}
Error cudaStreamBeginCapture(Stream *stream, Mode how) {
  if (of(stream) == &legacy) return give(cudaErrorStreamCaptureUnsupported);
  Capture *made = calloc(1, sizeof *made);
  pthread_mutex_lock(&lock);
  *made = (Capture){++captured, how, pthread_self(), calloc(1, sizeof(Graph)), NULL, captures};
  captures = stream->capture = made;
  stream->work = stream->joined = 0;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
Error cudaStreamEndCapture(Stream *stream, void **graph) {
  Capture *capture = of(stream)->capture, **place = &captures;
  if (!capture) return give(cudaErrorIllegalState);
  pthread_mutex_lock(&lock);
  Error error = capture->fault ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  for (Stream *each = streams; each; each = each->next) {
    if (each->capture != capture) continue;
    if (each != stream && each->work > each->joined && !error) error = cudaErrorStreamCaptureUnjoined;
    each->capture = NULL;
  }
  while (*place != capture) place = &(*place)->next;
  *place = capture->next;
  *graph = error ? NULL : capture->graph;
  if (error) let_go(capture->graph);
  pthread_mutex_unlock(&lock);
  return give(error);
}
Error cudaStreamIsCapturing(void *on, enum cudaStreamCaptureStatus *status) {
  Capture *capture = of(on)->capture;
  *status = !capture ? cudaStreamCaptureStatusNone
            : capture->fault ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
static Error information(void *on, enum cudaStreamCaptureStatus *status, unsigned long long *id, void **graph) {
  Capture *capture = of(on)->capture;
  if (id && capture) *id = capture->id;
  if (graph) *graph = capture ? capture->graph : NULL;
  return cudaStreamIsCapturing(on, status);
}
Error cudaStreamGetCaptureInfo_v2(  // CUDA 12
    void *s, enum cudaStreamCaptureStatus *status, unsigned long long *id, void **graph, void **nodes, size_t *count) {
  if (nodes) *nodes = NULL;
  if (count) *count = 0;
  return information(s, status, id, graph);
}
Error cudaStreamGetCaptureInfo(  // CUDA 13
    void *s, enum cudaStreamCaptureStatus *status, unsigned long long *id, void **graph, void **nodes, void **edges,
    size_t *count) {
  if (edges) *edges = NULL;
  return cudaStreamGetCaptureInfo_v2(s, status, id, graph, nodes, count);
}
Error cudaGraphInstantiate(void **ready, void *graph, unsigned long long flags) { *ready = graph; return cudaSuccess; }
Error cudaGraphInstantiateWithFlags(void **ready, void *graph, unsigned long long flags) {
  return cudaGraphInstantiate(ready, graph, flags);
}
Error cudaGraphGetNodes(Graph *graph, void *nodes, size_t *count) { *count = graph->count; return cudaSuccess; }
Error cudaGraphLaunch(Graph *graph, void *stream) {
  launches++;
  for (size_t i = 0; i < graph->count; i++) if (!by_hand || !graph->nodes[i].call) carry_out(graph->nodes[i]);
  return cudaSuccess;
}
Error cudaGraphExecDestroy(Graph *graph) { let_go(graph); return cudaSuccess; }

// ---- memory: of a device, or pinned

typedef struct Block { char *start; size_t bytes; int device; struct Block *next; } Block;  // device -1: pinned
static Block *blocks;
static long long used[64];

static Block *find(const void *p) {
  Block *block = blocks;
  while (block && ((char *)p < block->start || (char *)p >= block->start + block->bytes)) block = block->next;
  return block;
}
static Error allocate(void **p, size_t bytes, int device, const char *name) {
  if (refused(name)) return last;
  bytes = bytes + 4096 & ~(size_t)4095;
  pthread_mutex_lock(&lock);
  int room = device < 0 || used[device] + bytes <= memory();
  *p = room ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : NULL;
  if (room) {
    Block *made = malloc(sizeof *made);
    *made = (Block){*p, bytes, device, blocks};
    blocks = made;
    if (device >= 0) used[device] += bytes;
  }
  pthread_mutex_unlock(&lock);
  return give(room ? cudaSuccess : cudaErrorMemoryAllocation);
}
static Error release(void *p, const char *name) {
  if (!p) return cudaSuccess;
  if (refused(name)) return last;
  pthread_mutex_lock(&lock);
  Block **place = &blocks;
  while (*place && (*place)->start != p) place = &(*place)->next;
  Block *block = *place;
  if (block) {
    *place = block->next;
    if (block->device >= 0) used[block->device] -= block->bytes;
    munmap(p, block->bytes);
    free(block);
  }
  pthread_mutex_unlock(&lock);
  return give(block ? cudaSuccess : cudaErrorInvalidValue);
}
Error cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, current, "cudaMalloc"); }
Error cudaHostAlloc(void **p, size_t bytes, unsigned flags) { return allocate(p, bytes, -1, "cudaHostAlloc"); }
Error cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, -1, "cudaMallocHost"); }
Error cudaFree(void *p) { return release(p, "cudaFree"); }
Error cudaFreeHost(void *p) { return release(p, "cudaFreeHost"); }
Error cudaMemGetInfo(size_t *free, size_t *total) {
  *total = memory();
  *free = *total - used[current];
  return cudaSuccess;
}
Error cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *p) {
  memset(found, 0, sizeof *found);
  pthread_mutex_lock(&lock);
  Block *block = find(p);
  found->type = !block ? cudaMemoryTypeUnregistered : block->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  found->device = block && block->device >= 0 ? block->device : 0;
  found->devicePointer = block ? (void *)p : NULL;
  found->hostPointer = block && block->device < 0 ? (void *)p : NULL;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
static int pageable(const void *p) {
  pthread_mutex_lock(&lock);
  int found = find(p) == NULL;
  pthread_mutex_unlock(&lock);
  return found;
}
// A copy from or to memory that is not pinned waits for the device, and no graph may hold its address.
Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  if (bytes && (pageable(to) || pageable(from))) {
    if (of(stream)->capture)
      return spoil(of(stream)->capture, "a copy of memory that is not pinned", cudaErrorStreamCaptureUnsupported);
    waits++;
    copied = 1;
  }
  return work(stream, (Node){to, from, bytes});
}
Error cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  waits++;
  return refused("cudaMemcpy") ? last : work(NULL, (Node){to, from, bytes});
}
Error cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t bytes, void *stream) {
  return work(stream, (Node){to, from, bytes});
}
Error cudaMemcpy2DAsync(
    char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height, int kind, void *stream) {
  Error error = cudaSuccess;
  for (size_t row = 0; row < height && !error; row++)
    error = cudaMemcpyAsync(to + row * to_pitch, from + row * from_pitch, width, kind, stream);
  return error;
}
Error cudaMemset(void *p, int value, size_t bytes) {
  return refused("cudaMemset") ? last : work(NULL, (Node){p, NULL, bytes, value});
}
Error cudaMemsetAsync(void *p, int value, size_t bytes, void *s) { return work(s, (Node){p, NULL, bytes, value}); }
Error cudaGetSymbolAddress(void **p, const void *symbol) { static char area[65536]; *p = area; return cudaSuccess; }

// ---- devices

Error cudaGetDeviceCount(int *count) {
  *count = gpus();
  return give(gpus() ? cudaSuccess : cudaErrorNoDevice);
}
Error cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
Error cudaSetDevice(int device) {
  if (device < 0 || device >= gpus()) return give(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
Error cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "a GPU that is not there");
  found->uuid.bytes[15] = found->pciBusID = device + 1;
  found->major = 9;
  found->totalGlobalMem = memory();
  found->warpSize = 32;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->multiProcessorCount = 132;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxBlocksPerMultiProcessor = 32;
  found->sharedMemPerBlock = 49152;
  found->sharedMemPerBlockOptin = found->sharedMemPerMultiprocessor = 98304;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->l2CacheSize = 6 << 20;
  found->unifiedAddressing = found->concurrentKernels = found->cooperativeLaunch = 1;
  found->textureAlignment = 512;
  return cudaSuccess;
}
Error cudaGetDeviceProperties_v2(struct cudaDeviceProp *found, int device) {  // CUDA 12
  return cudaGetDeviceProperties(found, device);
}
Error cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp found;
  cudaGetDeviceProperties(&found, device);
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? found.major
           : attribute == cudaDevAttrComputeCapabilityMinor ? found.minor
           : attribute == cudaDevAttrMultiProcessorCount ? found.multiProcessorCount
           : attribute == cudaDevAttrWarpSize ? found.warpSize
           : attribute == cudaDevAttrMaxThreadsPerBlock ? found.maxThreadsPerBlock
           : attribute == cudaDevAttrMaxSharedMemoryPerBlock ? 49152
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 98304
           : attribute == cudaDevAttrMaxGridDimX ? 2147483647
           : attribute == cudaDevAttrMaxGridDimY || attribute == cudaDevAttrMaxGridDimZ ? 65535 : 0;
  return cudaSuccess;
}
Error cudaDeviceCanAccessPeer(int *can, int device, int other) { return *can = 0; }
Error cudaDeviceGetPCIBusId(char *text, int size, int device) { snprintf(text, size, "0000:%02x:00.0", device + 1); return 0; }
Error cudaDriverGetVersion(int *version) { *version = CUDA_VERSION_OF_TORCH; return cudaSuccess; }
int cuDriverGetVersion(int *version) { *version = CUDA_VERSION_OF_TORCH; return 0; }
Error cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION_OF_TORCH; return cudaSuccess; }
Error cudaPeekAtLastError(void) { return last; }
Error cudaGetLastError(void) { Error error = last; last = cudaSuccess; return error; }
const char *cudaGetErrorString(Error error) {
  static __thread char text[64];
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  if (error == cudaErrorStreamCaptureImplicit)
    return "operation would make the legacy stream depend on a capturing blocking stream";
  if (error == cudaErrorStreamCaptureUnsupported) return "operation not permitted when stream is capturing";
  snprintf(text, sizeof text, "error %d of the fake CUDA", error);
  return text;
}
const char *cudaGetErrorName(Error error) { return cudaGetErrorString(error); }
static int nothing(void) { return 0; }
Error cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {  // CUDA 12
  *function = nothing;
  if (found) *found = 0;
  return cudaSuccess;
}
Error cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, unsigned long long f, int *found) {
  return cudaGetDriverEntryPoint(name, call, f, found);
}

// ---- kernels

typedef struct { unsigned x, y, z; } Size;
static __thread struct { Size grid, block; size_t shared; void *stream; } configuration;
unsigned __cudaPushCallConfiguration(Size grid, Size block, size_t shared, void *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}
Error __cudaPopCallConfiguration(Size *grid, Size *block, size_t *shared, void **stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *stream = configuration.stream;
  return cudaSuccess;
}
void **__cudaRegisterFatBinary(void *binary) { static void *handle[8]; return handle; }
char __cudaInitModule(void **handle) { return 1; }
Error __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return cudaSuccess; }
Error cudaLaunchKernel(const void *kernel, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  return work(stream, (Node){0});
}
Error __cudaLaunchKernel(const void *kernel, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  return work(stream, (Node){0});
}
Error cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **arguments) {
  return work(how->stream, (Node){0});
}
Error cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int size, size_t shared) {
  *blocks = 2;
  return cudaSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *k, int size, size_t m, unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, k, size, m);
}

// ---- the driver, which torch and Triton open by its name

int cuDeviceGetCount(int *count) { *count = gpus(); return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);  // numbered alike
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
static int handle(void **made) { static long area; *made = &area; return 0; }
int cuCtxGetCurrent(void **context) { return handle(context); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return handle(context); }
int cuModuleLoadData(void **module, const void *image) { return handle(module); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return handle(function); }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute ? 0 : 1024;  // the first one is the number of threads
  return 0;
}
int cuPointerGetAttribute(void **value, int attribute, void *p) { *value = p; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "an error of the fake driver"; return 0; }
int cuStreamIsCapturing(void *stream, int *status) { return cudaStreamIsCapturing(stream, (void *)status); }
int cuLaunchKernel(
    void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream) {
  return work(stream, (Node){0});
}
int cuLaunchKernelEx(void **how, void *function) { return work(how[4], (Node){0}); }
