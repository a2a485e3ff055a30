/* OpenBLAS's product as a yardstick, from the library of the machine. */
#include <dlfcn.h>
#include <stdlib.h>

typedef void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc);

void kernel(const long *shape, const float *const *inputs, float *output) {
    static sgemm product = NULL;
    if (product == NULL) {
        void *library = dlopen("libopenblas.so.0", RTLD_NOW);
        if (library == NULL) library = dlopen("libopenblas.so", RTLD_NOW);
        if (library == NULL) exit(4);
        product = (sgemm)dlsym(library, "cblas_sgemm");
        if (product == NULL) exit(4);
    }
    int m = (int)shape[0], n = (int)shape[1], k = (int)shape[2];
    /* Row-major, the second factor transposed. */
    product(101, 111, 112, m, n, k, 1.0f, inputs[0], k, inputs[1], k, 0.0f, output, n);
}
