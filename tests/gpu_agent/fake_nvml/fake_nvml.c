/*
 * A libnvidia-ml.so.1 for machines without a GPU: the functions that NVIDIA's Python bindings (nvidia-ml-py) call, with values from a file.
 *
 * The file in FAKE_NVML_STATE describes the GPUs. The first call after it was replaced (tests rename a new file over it) reads it again, so
 * a test can change clocks, lose a GPU, let a call hang or raise an event while the program under test runs.
 *
 * A line is `KEY VALUE` (driver, nvml, cuda, init_error), `gpu INDEX KEY VALUE`, or `event GPU TYPE DATA [GI CI]`; `#` begins a comment.
 * tests/helpers/platform/nvml.py lists the keys. Rules for all of them:
 *   - A missing key returns NVML_ERROR_NOT_SUPPORTED. The values of a MIG device have keys that begin with `mig.N.`, and no others.
 *   - `error CODE` in place of a value returns that code, from the calls that need the value only.
 *   - The key `error` is the code of every call for the GPU, `hang_ms` the time that each of them sleeps before it reads the state;
 *     without `gpu INDEX`, of every call for no GPU. Removing hang_ms wakes the sleeping calls.
 *   - One more event line at the end is a new event. Each event set receives it once, and a set created afterwards never does.
 *
 * Limits: nothing changes by itself (counters and clocks are constant), values are not checked against each other or for permissions, and
 * there are no setters.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { DONE, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15,
       VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { GPUS_MAX = 32, MIGS_MAX = 8, SETS_MAX = 64, POLL_MS = 100 };
#define NONE 0xFFFFFFFFu  /* no GPU; also the instance that NVML returns for a device that is not a MIG device */

/* A handle is an address in this table: its position is the GPU and its MIG device. */
static const struct handle { char none; } handles[GPUS_MAX][1 + MIGS_MAX], machine;
const int fake_nvml = 1;  /* shows a test that the bindings did not load the machine's own library */

typedef unsigned long long u64;
typedef const struct handle *device_t;
struct line { unsigned gpu; char key[48], value[128]; };
struct event { device_t device; u64 type, data; unsigned gi, ci; };
struct state { unsigned users, gpus; size_t count, events_count; u64 identity[4]; char *path; struct line *lines; struct event *events; };
struct event_set { int taken; size_t seen; u64 types[GPUS_MAX]; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct state *current;
static struct event_set sets[SETS_MAX];
static size_t delivered;
static atomic_int initialised;

/* Never held while a call sleeps: a GPU that hangs must not block another. */
static pthread_mutex_t *locked(void) { pthread_mutex_lock(&mutex); return &mutex; }
static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
#define LOCK __attribute__((cleanup(unlock), unused)) pthread_mutex_t *held = locked()

static u64 now_us(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (u64)now.tv_sec * 1000000u + (u64)now.tv_nsec / 1000u;
}
static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL); }
static unsigned gpu_of(device_t device) { return (unsigned)(((uintptr_t)device - (uintptr_t)handles) / sizeof handles[0]); }

/* ---- The state ------------------------------------------------------------------------------------------------------------------ */

static int parse_line(struct state *state, char *text) {
    struct line line = {.gpu = NONE};
    struct event event = {.gi = NONE, .ci = NONE};
    text[strcspn(text, "#\n")] = 0;
    for (size_t end = strlen(text); end && text[end - 1] == ' '; end--)
        text[end - 1] = 0;
    if (!*text)
        return 1;
    if (sscanf(text, "event %u %lli %llu %u %u", &line.gpu, (long long *)&event.type, &event.data, &event.gi, &event.ci) >= 3) {
        event.device = &handles[line.gpu % GPUS_MAX][0];
        state->events = realloc(state->events, (state->events_count + 1) * sizeof event);
        state->events[state->events_count++] = event;
        return line.gpu < GPUS_MAX;
    }
    if (sscanf(text, "gpu %u %47s %127[^\n]", &line.gpu, line.key, line.value) == 3) {
        state->gpus = line.gpu < state->gpus ? state->gpus : line.gpu + 1;
    } else {
        line.gpu = NONE;
        if (sscanf(text, "%47s %127[^\n]", line.key, line.value) != 2 || !strcmp(line.key, "gpu") || !strcmp(line.key, "event"))
            return 0;
    }
    state->lines = realloc(state->lines, (state->count + 1) * sizeof line);
    state->lines[state->count++] = line;
    return state->gpus <= GPUS_MAX;
}

static void release(struct state *state) {  /* with the lock */
    if (state && --state->users == 0) {
        free(state->path);
        free(state->lines);
        free(state->events);
        free(state);
    }
}

static struct state *read_state(const char *path, const u64 *identity) {
    struct state *state = calloc(1, sizeof *state);
    char text[256];
    int is_good = 1;
    FILE *file = fopen(path, "re");
    state->users = 1;
    state->path = strdup(path);
    memcpy(state->identity, identity, sizeof state->identity);
    while (file && is_good && fgets(text, sizeof text, file))
        is_good = parse_line(state, text);
    if (!is_good)
        fprintf(stderr, "fake_nvml: %s: `%s`: expected KEY VALUE, gpu INDEX KEY VALUE, or event GPU TYPE DATA\n", path, text);
    if (file)
        fclose(file);
    if (!file || !is_good)
        release(state);
    return file && is_good ? state : NULL;
}

/* Return the current state, which does not change while the caller holds it; NULL if it cannot be read. */
static struct state *hold(void) {
    LOCK;
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat found;
    if (!path || stat(path, &found)) {
        fprintf(stderr, "fake_nvml: FAKE_NVML_STATE is %s: expected the path of a state file\n", path ? path : "not set");
        return NULL;
    }
    const u64 identity[] = {found.st_ino, (u64)found.st_size, (u64)found.st_mtim.tv_sec, (u64)found.st_mtim.tv_nsec};
    int is_another = !current || strcmp(current->path, path);
    if (is_another || memcmp(current->identity, identity, sizeof identity)) {
        struct state *fresh = read_state(path, identity);
        if (!fresh)
            return NULL;
        /* A set that has received more events than now exist would miss the next ones. */
        size_t most = is_another ? 0 : fresh->events_count;
        delivered = delivered < most ? delivered : most;
        for (struct event_set *set = sets; set < sets + SETS_MAX; set++)
            set->seen = set->seen < most ? set->seen : most;
        release(current);
        current = fresh;
    }
    current->users++;
    return current;
}

/* ---- One call ------------------------------------------------------------------------------------------------------------------- */

struct call { struct state *state; unsigned gpu; int mig, code; char key[96]; };  /* code: of the first failure */

static void end(struct call *call) { LOCK; release(call->state); }

static const char *find(const struct state *state, unsigned gpu, const char *key) {
    for (const struct line *line = state->lines; line < state->lines + state->count; line++)
        if (line->gpu == gpu && !strcmp(line->key, key))
            return line->value;
    return NULL;
}

/* Return the state after its hang has ended. The state is read repeatedly, so that a test can end the hang. */
static void hold_after_hang(struct call *call) {
    for (u64 begun = now_us(CLOCK_MONOTONIC);; nap()) {
        call->state = hold();
        const char *hang_ms = call->state ? find(call->state, call->gpu, "hang_ms") : NULL;
        if (!hang_ms || now_us(CLOCK_MONOTONIC) - begun >= strtoull(hang_ms, NULL, 10) * 1000u)
            break;
        end(call);
    }
    call->code = call->state ? DONE : UNKNOWN;
}

static struct call begin(device_t about) {
    uintptr_t place = (uintptr_t)about - (uintptr_t)handles;
    struct call call = {.gpu = NONE, .mig = -1, .code = !initialised ? UNINITIALIZED : DONE};
    if (about != &machine && place < sizeof handles) {
        call.gpu = gpu_of(about);
        call.mig = (int)(place % sizeof handles[0]) - 1;
    } else if (about != &machine && !call.code)
        call.code = INVALID_ARGUMENT;
    if (!call.code)
        hold_after_hang(&call);
    const char *error = call.code ? NULL : find(call.state, call.gpu, "error");
    if (!call.code)
        call.code = error ? atoi(error) : about != &machine && call.gpu >= call.state->gpus ? GPU_IS_LOST : DONE;
    return call;
}

static const char *value_of_key(struct call *call) {
    const char *value = find(call->state, call->gpu, call->key);
    int code = NOT_SUPPORTED;
    if (value && sscanf(value, "error %d", &code) != 1)
        return value;
    call->code = call->code ? call->code : code;
    return NULL;
}

__attribute__((format(printf, 2, 3))) static struct call *key(struct call *call, const char *format, ...) {
    va_list words;
    va_start(words, format);
    int used = call->mig < 0 ? 0 : snprintf(call->key, sizeof call->key, "mig.%d.", call->mig);
    vsnprintf(call->key + used, sizeof call->key - (size_t)used, format, words);
    va_end(words);
    return call;
}

static int has(const struct call *call) { return find(call->state, call->gpu, call->key) != NULL; }

static u64 number(struct call *call) {
    char *rest = NULL;
    const char *value = value_of_key(call);
    u64 number = value ? strtoull(value, &rest, 0) : 0;
    if (value && (rest == value || *rest)) {
        fprintf(stderr, "fake_nvml: `%s %s`: expected a whole number\n", call->key, value);
        call->code = UNKNOWN;
    }
    return number;
}

static u64 number_or(struct call *call, u64 otherwise) { return has(call) ? number(call) : otherwise; }

static int copy_text(struct call *call, char *out, unsigned size) {
    const char *value = value_of_key(call);
    if (value && snprintf(out, size, "%s", value) >= (int)size)
        call->code = INSUFFICIENT_SIZE;
    return call->code;
}

#define BEGIN(about) __attribute__((cleanup(end))) struct call call = begin(about); if (call.code) return call.code
#define N(...) number(key(&call, __VA_ARGS__))
#define N_OR(name, otherwise) number_or(key(&call, name), otherwise)
#define ANSWER(about, signature, ...) int signature { BEGIN(about); *out = (__typeof__(*out))__VA_ARGS__; return call.code; }
#define TEXT(about, signature, name) int signature { BEGIN(about); return copy_text(key(&call, name), out, size); }

/* ---- The library and its machine ------------------------------------------------------------------------------------------------ */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    __attribute__((cleanup(end))) struct call call = {.gpu = NONE, .mig = -1};
    hold_after_hang(&call);
    int error = call.code ? call.code : (int)N_OR("init_error", DONE);
    initialised += !error;
    return error;
}
int nvmlShutdown(void) { BEGIN(&machine); initialised--; return DONE; }

/* The bindings have texts for most codes, and call this function for the others. */
const char *nvmlErrorString(int code) { return code == DONE ? "Success" : code == VERSION_MISMATCH ? "Version Mismatch" : "Fake Error"; }

TEXT(&machine, nvmlSystemGetDriverVersion(char *out, unsigned size), "driver")
TEXT(&machine, nvmlSystemGetNVMLVersion(char *out, unsigned size), "nvml")
ANSWER(&machine, nvmlSystemGetCudaDriverVersion_v2(int *out), N("cuda"))
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
ANSWER(&machine, nvmlDeviceGetCount_v2(unsigned *out), call.state->gpus)

static ANSWER(handle, give(device_t handle, device_t *out), handle)
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    BEGIN(&machine);
    return index < call.state->gpus ? give(&handles[index][0], out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) {
    BEGIN(&machine);
    for (call.gpu = 0; call.gpu < call.state->gpus; call.gpu++)
        for (call.mig = -1; call.mig < MIGS_MAX; call.mig++)
            if (has(key(&call, "uuid")) && !strcmp(find(call.state, call.gpu, call.key), uuid))
                return give(&handles[call.gpu][call.mig + 1], out);
    return NOT_FOUND;
}

/* ---- One device ----------------------------------------------------------------------------------------------------------------- */

static const char *clock_of(unsigned type) { return type < 4 ? (const char *[]){"graphics", "sm", "mem", "video"}[type] : "none"; }

TEXT(device, nvmlDeviceGetName(device_t device, char *out, unsigned size), "name")
TEXT(device, nvmlDeviceGetUUID(device_t device, char *out, unsigned size), "uuid")
ANSWER(device, nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *out), N("clock.%s", clock_of(type)))
ANSWER(device, nvmlDeviceGetMaxClockInfo(device_t device, unsigned type, unsigned *out), N("clock.%s.max", clock_of(type)))
ANSWER(device, nvmlDeviceGetCurrentClocksEventReasons(device_t device, u64 *out), N("event_reasons"))
ANSWER(device, nvmlDeviceGetSupportedClocksEventReasons(device_t device, u64 *out), N("supported_event_reasons"))
ANSWER(device, nvmlDeviceGetPowerUsage(device_t device, unsigned *out), N("power_mw"))
ANSWER(device, nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *out), N("power_limit_mw"))
ANSWER(device, nvmlDeviceGetTotalEnergyConsumption(device_t device, u64 *out), N("energy_mj"))
ANSWER(device, nvmlDeviceGetPcieReplayCounter(device_t device, unsigned *out), N("pcie_replay"))
ANSWER(device, nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned *out), N("pcie.generation"))
ANSWER(device, nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *out), N("pcie.width"))
ANSWER(device, nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *out), N("nvlink.%u", link))
ANSWER(device, nvmlDeviceGetSupportedEventTypes(device_t device, u64 *out), N("supported_events"))

struct utilization { unsigned gpu, memory; };
ANSWER(device, nvmlDeviceGetUtilizationRates(device_t device, struct utilization *out),
       {(unsigned)N("utilization.gpu"), (unsigned)N("utilization.memory")})

struct violation { u64 reference_us, violation_ns; };
ANSWER(device, nvmlDeviceGetViolationStatus(device_t device, unsigned policy, struct violation *out),
       {N_OR("timestamp_us", now_us(CLOCK_REALTIME)), N("violation.%u", policy)})

static const char *counter_of(unsigned counter) { return counter ? "aggregate" : "volatile"; }
static const char *kind_of(unsigned type) { return type ? "uncorrected" : "corrected"; }
ANSWER(device, nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter, u64 *out),
       (has(key(&call, "ecc.%s.%s", kind_of(type), counter_of(counter))) ? number(&call) : N("ecc.%s", kind_of(type))))

/* For a MIG device: its index among those of its GPU. */
ANSWER(device, nvmlDeviceGetIndex(device_t device, unsigned *out), (call.mig < 0 ? call.gpu : (unsigned)call.mig))

/* Sensor 0 is that of the GPU. */
ANSWER(device, nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *out),
       (sensor ? N("temperature.%u", sensor) : N("temperature")))
struct temperature { unsigned version, sensor, celsius; };
int nvmlDeviceGetTemperatureV(device_t device, struct temperature *out) {
    return out->version == (1u << 24 | sizeof *out) ? nvmlDeviceGetTemperature(device, out->sensor, &out->celsius) : VERSION_MISMATCH;
}

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t device, struct pci *out) {
    BEGIN(device);
    if (!copy_text(key(&call, "pci"), out->id, sizeof out->id) && sscanf(out->id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFFu, out->bus & 0xFFu, out->device & 0xFFu);
    return call.code;
}

struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
static ANSWER(device, memory_of(device_t device, struct memory_v2 *out),
              {out->version, N("memory.total"), N_OR("memory.reserved", 0), N("memory.free"), N("memory.used")})
int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *out) {
    return out->version == (2u << 24 | sizeof *out) ? memory_of(device, out) : VERSION_MISMATCH;
}
struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(device_t device, struct memory *out) {
    struct memory_v2 memory = {0};
    int code = memory_of(device, &memory);
    /* The older call includes the reserved memory of the newer one in the used memory. */
    *out = (struct memory){memory.total, memory.free, memory.used + memory.reserved};
    return code;
}

struct field { unsigned id, scope; u64 timestamp_us, latency_us; unsigned type; int code; union { double real; u64 whole; } value; };
static const struct { const char *name; size_t bytes; } types[] = {{"double", 8}, {"uint", 4}, {"ulong", 8}, {"ull", 8}, {"sll", 8},
                                                                   {"int", 4}, {"ushort", 2}};
static int get_field(struct call call, struct field *out) {
    char digits[32] = "", name[8] = "ull";
    if (!has(key(&call, "field.%u.%u", out->id, out->scope)) && !out->scope)
        key(&call, "field.%u", out->id);
    const char *value = value_of_key(&call);
    if (!value || sscanf(value, "%31s %7s", digits, name) < 1)
        return call.code;
    u64 whole = strtoull(digits, NULL, 0);
    double real = strtod(digits, NULL);
    for (out->type = 0; strcmp(types[out->type].name, name);)
        if (++out->type == sizeof types / sizeof *types)
            return UNKNOWN;
    /* Fill the rest of the union with garbage, so that a read of the wrong member is noticed. */
    memset(&out->value, 0xFF, sizeof out->value);
    memcpy(&out->value, out->type ? (void *)&whole : (void *)&real, types[out->type].bytes);
    return DONE;
}
int nvmlDeviceGetFieldValues(device_t device, int count, struct field *values) {
    BEGIN(device);
    u64 timestamp_us = N_OR("timestamp_us", now_us(CLOCK_REALTIME));
    for (struct field *field = values; field < values + count; field++) {
        field->timestamp_us = timestamp_us;
        field->code = get_field(call, field);
    }
    return count > 0 ? DONE : INVALID_ARGUMENT;
}

struct process { unsigned pid; u64 used; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process *out) {
    BEGIN(device);
    unsigned room = out ? *count : 0, found = 0, gi = (unsigned)N_OR("gi", NONE), ci = (unsigned)N_OR("ci", NONE);
    if (has(key(&call, "process")))
        value_of_key(&call);
    for (const struct line *line = call.state->lines; line < call.state->lines + call.state->count && !call.code; line++) {
        /* Without a number of bytes: NVML_VALUE_NOT_AVAILABLE, which the bindings return as None. */
        struct process process = {0, ~0ull, gi, ci};
        if (line->gpu != call.gpu || strcmp(line->key, call.key))
            continue;
        if (sscanf(line->value, "%u %llu %u %u", &process.pid, &process.used, &process.gi, &process.ci) < 1)
            call.code = UNKNOWN;
        if (found++ < room)
            out[found - 1] = process;
    }
    *count = found;
    return call.code ? call.code : found <= room ? DONE : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, struct process *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

/* ---- MIG: a device exists if it has a UUID -------------------------------------------------------------------------------------- */

ANSWER(device, nvmlDeviceGetGpuInstanceId(device_t device, unsigned *out), N("gi"))
ANSWER(device, nvmlDeviceGetComputeInstanceId(device_t device, unsigned *out), N("ci"))
ANSWER(device, nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *out), (N_OR("mig", 0) ? N_OR("mig.max", 7) : 0))

int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending) {
    BEGIN(device);
    *now = (unsigned)N("mig");
    *pending = (unsigned)N_OR("mig.pending", *now);
    return call.code;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *out) {
    BEGIN(device);
    if (!N("mig") || index >= MIGS_MAX)
        return call.code ? call.code : index < MIGS_MAX ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *out = &handles[call.gpu][index + 1];
    return has(key(&call, "mig.%u.uuid", index)) ? DONE : NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t device, device_t *out) {
    BEGIN(device);
    *out = &handles[call.gpu][0];
    return call.mig < 0 ? INVALID_ARGUMENT : DONE;
}

/* ---- Events --------------------------------------------------------------------------------------------------------------------- */

static int is_set(const struct event_set *set) { return set >= sets && set < sets + SETS_MAX && set->taken; }

int nvmlEventSetCreate(struct event_set **out) {
    BEGIN(&machine);
    LOCK;
    for (*out = sets; *out < sets + SETS_MAX; ++*out)
        if (!(*out)->taken) {
            **out = (struct event_set){.taken = 1, .seen = delivered};
            return DONE;
        }
    return UNKNOWN;
}
int nvmlEventSetFree(struct event_set *set) {
    BEGIN(&machine);
    LOCK;
    return is_set(set) ? set->taken = 0, DONE : INVALID_ARGUMENT;
}
int nvmlDeviceRegisterEvents(device_t device, u64 types, struct event_set *set) {
    BEGIN(device);
    if (types & ~N("supported_events"))
        return call.code ? call.code : NOT_SUPPORTED;
    LOCK;
    return is_set(set) ? set->types[call.gpu] |= types, DONE : INVALID_ARGUMENT;
}
int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms) {
    for (u64 begun = now_us(CLOCK_MONOTONIC);; nap()) {
        BEGIN(&machine);
        LOCK;
        if (!is_set(set))
            return INVALID_ARGUMENT;
        while (set->seen < call.state->events_count) {
            *out = call.state->events[set->seen++];
            delivered = delivered > set->seen ? delivered : set->seen;
            if (set->types[gpu_of(out->device)] & out->type)
                return DONE;
        }
        if (now_us(CLOCK_MONOTONIC) - begun >= timeout_ms * 1000ull)
            return TIMEOUT;
    }
}
