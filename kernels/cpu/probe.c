#include "kernels/probe.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "kernels/cpu/gemm.h"

static const char *isa_text(dnnl_cpu_isa_t isa)
{
    switch (isa) {
    case dnnl_cpu_isa_sse41:
        return "SSE4.1";
    case dnnl_cpu_isa_avx:
        return "AVX";
    case dnnl_cpu_isa_avx2:
        return "AVX2";
    case dnnl_cpu_isa_avx512_core:
        return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "AVX-512 BF16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "AMX";
    default:
        return "another instruction set";
    }
}

void weft_probe_onednn(weft_probe *out)
{
    enum { N = 4 };
    const dnnl_version_t *found = dnnl_version();
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", found->major, found->minor, found->patch);
    if (found->major != DNNL_VERSION_MAJOR) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "compiled for version %d",
                       DNNL_VERSION_MAJOR);
        return;
    }
    float a[N * N], b[N * N], c[N * N] = {0};
    for (int i = 0; i < N * N; i++) { /* small whole numbers: every order of sums is exact */
        a[i] = (float)(i % 5 - 2);
        b[i] = (float)(i % 7 - 3);
    }
    dnnl_status_t status = dnnl_sgemm('N', 'N', N, N, N, 1.0f, a, N, b, N, 0.0f, c, N);
    if (status != dnnl_success) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "matrix product: status %d", (int)status);
        return;
    }
    for (int i = 0; i < N * N; i++) {
        float sum = 0;
        for (int k = 0; k < N; k++)
            sum += a[i / N * N + k] * b[k * N + i % N];
        if (sum != c[i]) {
            weft_probe_say(out, WEFT_PROBE_BROKEN, version, "matrix product: %g in place of %g",
                           (double)c[i], (double)sum);
            return;
        }
    }
    weft_gemm_bf16_form form;
    if (weft_gemm_bf16_form_get(&form) != WEFT_OK) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "%s", weft_error_get()->text);
        return;
    }
    weft_probe_say(out, WEFT_PROBE_WORKS, version, "matrix product right; uses %s; bf16 %s",
                   isa_text(dnnl_get_effective_cpu_isa()),
                   form == WEFT_GEMM_NATIVE ? "as it is" : "by way of fp32");
}
