/* Stands in for libcuda.so.1: the GPUs it has are FAKE_CUDA_GPUS (UUIDs without "GPU-", comma separated). As the real
   one, it reads CUDA_VISIBLE_DEVICES once, at the first cuInit, whatever comes later. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char seen[16][40];
static int count = -1;

int cuInit(unsigned flags) {
    (void)flags;
    if (count < 0) {
        const char *all = getenv("FAKE_CUDA_GPUS"), *shown = getenv("CUDA_VISIBLE_DEVICES");
        char copy[1024];
        count = 0;
        snprintf(copy, sizeof copy, "%s", all ? all : "");
        for (char *each = strtok(copy, ","); each; each = strtok(NULL, ","))
            if (!shown || strstr(shown, each)) snprintf(seen[count++], 40, "%s", each);
    }
    return count ? 0 : 100;
}
int cuDeviceGetCount(int *n) { *n = count; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetUuid_v2(unsigned char *raw, int device) {
    int at = 0;
    for (const char *c = seen[device]; *c && at < 16; c++)
        if (*c != '-') {
            unsigned byte;
            sscanf(c, "%2x", &byte);
            raw[at++] = (unsigned char)byte;
            c++;
        }
    return 0;
}
