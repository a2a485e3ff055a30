/* Runs a kernel when told to. Words are 64-bit little-endian; L loads, R runs, N runs nothing, O gives the output. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kernel(const long *shape, const float *const *inputs, float *output);

static void take(void *to, size_t bytes) {
    char *at = to;
    while (bytes > 0) {
        ssize_t got = read(0, at, bytes);
        if (got <= 0) _exit(0);
        at += got;
        bytes -= (size_t)got;
    }
}

static void give(const void *from, size_t bytes) {
    const char *at = from;
    while (bytes > 0) {
        ssize_t put = write(3, at, bytes);
        if (put <= 0) _exit(0);
        at += put;
        bytes -= (size_t)put;
    }
}

static uint64_t word(void) {
    uint64_t n;
    take(&n, 8);
    return n;
}

static void *room(size_t bytes) {
    void *at = NULL;
    if (posix_memalign(&at, 64, bytes + 64) != 0) _exit(3);
    return at;
}

int main(void) {
    long shape[8] = {0};
    float *inputs[8] = {0};
    float *output = NULL;
    size_t length = 0;
    /* What a kernel prints must not get between the answers. */
    if (dup2(1, 3) < 0 || dup2(2, 1) < 0) return 3;
    for (;;) {
        char told, answer;
        take(&told, 1);
        switch (told) {
        case 'L': {
            uint64_t axes = word();
            if (axes > 8) return 3;
            for (uint64_t i = 0; i < axes; i++) shape[i] = (long)word();
            length = word();
            uint64_t count = word(), lengths[8];
            if (count > 8) return 3;
            for (uint64_t i = 0; i < count; i++) lengths[i] = word();
            for (uint64_t i = 0; i < count; i++) {
                free(inputs[i]);
                inputs[i] = room(lengths[i] * 4);
                take(inputs[i], lengths[i] * 4);
            }
            free(output);
            output = room(length * 4);
            memset(output, 0xff, length * 4);
            answer = 'l';
            break;
        }
        case 'R':
            memset(output, 0xff, length * 4);
            kernel(shape, (const float *const *)inputs, output);
            answer = 'r';
            break;
        case 'N':
            memset(output, 0xff, length * 4);
            answer = 'n';
            break;
        case 'O':
            give(output, length * 4);
            continue;
        default:
            return 3;
        }
        give(&answer, 1);
    }
}
