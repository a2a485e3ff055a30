/* oneDNN's product as a yardstick, from the library of the machine. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*sgemm)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

void kernel(const long *shape, const float *const *inputs, float *output) {
    static sgemm product = NULL;
    if (product == NULL) {
        void *library = dlopen("libdnnl.so.3", RTLD_NOW);
        if (library == NULL) library = dlopen("libdnnl.so.2", RTLD_NOW);
        if (library == NULL) library = dlopen("libdnnl.so", RTLD_NOW);
        if (library == NULL) exit(4);
        product = (sgemm)dlsym(library, "dnnl_sgemm");
        if (product == NULL) exit(4);
    }
    int64_t m = shape[0], n = shape[1], k = shape[2];
    if (product('N', 'T', m, n, k, 1.0f, inputs[0], k, inputs[1], k, 0.0f, output, n) != 0) exit(4);
}
