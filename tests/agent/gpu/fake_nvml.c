/* A libnvidia-ml.so.1 for tests: the calls that hpcdl makes, answered from the text file that $FAKE_NVML names.
 *
 * The file is read again at every call. A line is a verb and key=value words ('_' in a name stands for a blank):
 *   gpu uuid=U name=N total=MIB used=MIB util=P mw=MILLIWATTS temp=C pids=1,2   one GPU, in the order of NVML
 *       reserved=MIB   what the driver keeps for itself, which the first version of the call counts as used
 *       call=RC     every call on its handle returns RC       open=RC    no handle can be had: RC
 *       deny=F,F    these return NOT_SUPPORTED: util mem mw temp pids health
 *       ecc=N retired=0|1 remap=PENDING,FAILED reasons=BITS                     its health
 *       cpus=WORD   the processors near it, as bits      links=1,2  GPUs joined to it by NVLink; others: level=NUMBER
 *       xids=79,48  the Xid errors so far; those that were added since the last look are told as events
 *   mig parent=I uuid=U name=N total=MIB used=MIB pids=...                      a MIG device of GPU I, whose MIG is on
 *   init rc=RC      what initialising returns
 *   dead rc=RC      every call but initialising returns RC, until it is initialised again (if sticky=1: even then)
 * Every initialisation adds a line to $FAKE_NVML_LOG. Compiled with -DOLD it lacks what drivers before 510 lacked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MOST = 32, MOST_PIDS = 16 };

typedef struct device {
    char uuid[96], name[96], deny[96];
    unsigned total, used, reserved, util, mw, temp, pids[MOST_PIDS], npids;
    unsigned ecc, retired, remap[MOST_PIDS], reasons, xids[MOST_PIDS], nxids;
    unsigned links[MOST_PIDS], nlinks, level;
    unsigned long cpus;
    int call, open, parent; /* parent: -1 for a GPU */
} device;

static device all[MOST];
static unsigned count;
static int init_rc, dead_rc, sticky, initialised;
static char revived[4096]; /* the text of the file at the last initialisation: a death in it is over */

static const char *value(const char *word, const char *key) {
    size_t n = strlen(key);
    return strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

static unsigned numbers(const char *text, unsigned *out) {
    unsigned n = 0;
    char *end;
    for (; *text && n < MOST_PIDS; text = *end ? end + 1 : end) out[n++] = (unsigned)strtoul(text, &end, 10);
    return n;
}

static void parse(char *line) {
    char *save, *verb = strtok_r(line, " \n", &save), *word;
    const char *v;
    device *d = NULL;
    if (!verb) return;
    if (!strcmp(verb, "gpu") || !strcmp(verb, "mig")) {
        if (count == MOST) return;
        d = &all[count++];
        memset(d, 0, sizeof *d);
        d->parent = -1;
    }
    while ((word = strtok_r(NULL, " \n", &save))) {
        if ((v = value(word, "rc"))) *(strcmp(verb, "init") ? &dead_rc : &init_rc) = atoi(v);
        if ((v = value(word, "sticky"))) sticky = atoi(v);
        if (!d) continue;
        if ((v = value(word, "uuid"))) snprintf(d->uuid, sizeof d->uuid, "%s", v);
        if ((v = value(word, "deny"))) snprintf(d->deny, sizeof d->deny, "%s", v);
        if ((v = value(word, "name"))) {
            snprintf(d->name, sizeof d->name, "%s", v);
            for (char *c = d->name; *c; c++) if (*c == '_') *c = ' ';
        }
        if ((v = value(word, "total"))) d->total = (unsigned)atoi(v);
        if ((v = value(word, "used"))) d->used = (unsigned)atoi(v);
        if ((v = value(word, "reserved"))) d->reserved = (unsigned)atoi(v);
        if ((v = value(word, "util"))) d->util = (unsigned)atoi(v);
        if ((v = value(word, "mw"))) d->mw = (unsigned)atoi(v);
        if ((v = value(word, "temp"))) d->temp = (unsigned)atoi(v);
        if ((v = value(word, "call"))) d->call = atoi(v);
        if ((v = value(word, "open"))) d->open = atoi(v);
        if ((v = value(word, "parent"))) d->parent = atoi(v);
        if ((v = value(word, "ecc"))) d->ecc = (unsigned)atoi(v);
        if ((v = value(word, "retired"))) d->retired = (unsigned)atoi(v);
        if ((v = value(word, "reasons"))) d->reasons = (unsigned)atoi(v);
        if ((v = value(word, "cpus"))) d->cpus = strtoul(v, NULL, 16);
        if ((v = value(word, "level"))) d->level = (unsigned)atoi(v);
        if ((v = value(word, "links"))) d->nlinks = numbers(v, d->links);
        if ((v = value(word, "remap"))) numbers(v, d->remap);
        if ((v = value(word, "xids"))) d->nxids = numbers(v, d->xids);
        if ((v = value(word, "pids"))) d->npids = numbers(v, d->pids);
    }
}

static void load(char *text, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t n = file ? fread(text, 1, size - 1, file) : 0;
    char copy[4096], *save, *line;
    text[n] = 0;
    if (file) fclose(file);
    count = 0;
    init_rc = dead_rc = sticky = 0;
    memcpy(copy, text, n + 1);
    for (line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) parse(line);
}

/* What any call returns before it looks at a device. */
static int ready(void) {
    char text[4096];
    load(text, sizeof text);
    if (!initialised) return UNINITIALIZED;
    if (dead_rc && (sticky || strcmp(text, revived))) return dead_rc;
    return OK;
}

static int use(device *d) {
    int rc = ready();
    return rc ? rc : d->call;
}

static int ask(device *d, const char *what) {
    int rc = use(d);
    return rc ? rc : strstr(d->deny, what) ? NOT_SUPPORTED : OK;
}

static device *nth(int parent, unsigned index) {
    for (unsigned i = 0; i < count; i++)
        if (all[i].parent == parent && index-- == 0) return &all[i];
    return NULL;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *log = getenv("FAKE_NVML_LOG");
    FILE *file = log ? fopen(log, "a") : NULL;
    (void)flags;
    if (file) fprintf(file, "init\n"), fclose(file);
    load(revived, sizeof revived);
    if (!init_rc) initialised = 1;
    return init_rc;
}
int nvmlShutdown(void) { return initialised ? (initialised = 0, OK) : UNINITIALIZED; }
const char *nvmlErrorString(int rc) { return rc == 15 ? "GPU is lost" : rc == 3 ? "Not Supported" : "Some Error"; }

int nvmlDeviceGetCount_v2(unsigned *n) {
    int rc = ready();
    *n = 0;
    while (!rc && nth(-1, *n)) ++*n;
    return rc;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **d) {
    int rc = ready();
    *d = nth(-1, index);
    return rc ? rc : *d ? (*d)->open : INVALID;
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    int rc = use(d);
    snprintf(out, size, "%s", d->uuid);
    return rc;
}
int nvmlDeviceGetName(device *d, char *out, unsigned size) {
    int rc = use(d);
    snprintf(out, size, "%s", d->name);
    return rc;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *rates) {
    rates[0] = d->util, rates[1] = 0;
    return d->parent >= 0 ? NOT_SUPPORTED : ask(d, "util");
}
int nvmlDeviceGetMemoryInfo(device *d, unsigned long long *m) {
    int rc = ask(d, "mem");
    m[0] = (unsigned long long)d->total << 20, m[2] = (unsigned long long)(d->used + d->reserved) << 20;
    m[1] = m[0] - m[2];
    return rc;
}
#ifndef OLD
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(device *d, struct memory *m) {
    if (m->version != (sizeof *m | 2u << 24)) return 25; /* another version's structure */
    m->total = (unsigned long long)d->total << 20, m->reserved = (unsigned long long)d->reserved << 20;
    m->used = (unsigned long long)d->used << 20, m->free = m->total - m->reserved - m->used;
    return ask(d, "mem");
}
#endif
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *t) {
    (void)sensor, *t = d->temp;
    return ask(d, "temp");
}
int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { return *mw = d->mw, ask(d, "mw"); }

int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    int rc = use(d), parent = (int)(d - all);
    *current = *pending = nth(parent, 0) != NULL;
    return rc ? rc : d->parent >= 0 || !*current ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *n) { return *n = 7, use(d); }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    int rc = use(d);
    *out = nth((int)(d - all), index);
    return rc ? rc : *out ? OK : NOT_FOUND;
}

struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
static int processes(device *d, unsigned *n, struct process *out) {
    int rc = ask(d, "pids");
    if (rc) return rc;
    if (*n < d->npids || (d->npids && !out)) return *n = d->npids, INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < d->npids; i++) out[i] = (struct process){d->pids[i], 1u << 20, ~0u, ~0u};
    return *n = d->npids, OK;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(device *d, unsigned *n, struct process *out) { return processes(d, n, out); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, struct process *out) { return processes(d, n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, struct process *out) {
    (void)out;
    return *n = 0, use(d);
}
#endif

#ifndef OLD
int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, unsigned long long *n) {
    (void)type, (void)counter, *n = d->ecc;
    return ask(d, "health");
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    *corr = *unc = 0, *pending = d->remap[0], *failed = d->remap[1];
    return ask(d, "health");
}
int nvmlDeviceGetRetiredPagesPendingStatus(device *d, unsigned *pending) { return *pending = d->retired, ask(d, "health"); }
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *bits) {
    return *bits = d->reasons, ask(d, "health");
}
int nvmlDeviceGetCpuAffinity(device *d, unsigned size, unsigned long *out) {
    if (!d->cpus) return NOT_SUPPORTED;
    memset(out, 0, size * sizeof *out);
    out[0] = d->cpus;
    return use(d);
}

int nvmlDeviceGetP2PStatus(device *d, device *other, int which, unsigned *status) {
    *status = 5; /* not supported */
    for (unsigned i = 0; i < d->nlinks; i++)
        if (which == 2 && &all[d->links[i]] == other) *status = 0;
    return use(d);
}

int nvmlDeviceGetTopologyCommonAncestor(device *d, device *other, unsigned *level) {
    (void)other;
    return d->level ? (*level = d->level, use(d)) : NOT_SUPPORTED;
}

int nvmlDeviceGetIndex(device *d, unsigned *index) {
    for (*index = 0; nth(-1, *index) && nth(-1, *index) != d;) ++*index;
    return ready();
}

struct event { device *device; unsigned long long type, data; unsigned gi, ci; };
static unsigned told[MOST]; /* by place in the file: how many of its xids were told */

int nvmlEventSetCreate(void **set) { return *set = told, ready(); }
int nvmlEventSetFree(void *set) { return (void)set, OK; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) {
    (void)set;
    if (types == 8) told[d - all] = d->nxids;
    return ask(d, "health");
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout) {
    int rc = ready();
    (void)set, (void)timeout;
    for (unsigned i = 0; !rc && i < count; i++)
        if (told[i] < all[i].nxids && !strstr(all[i].deny, "health")) {
            *event = (struct event){&all[i], 8, all[i].xids[told[i]++], ~0u, ~0u};
            return OK;
        }
    return rc ? rc : 10; /* the timeout */
}
#endif
