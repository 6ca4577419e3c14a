// The kernels with their names. Included after them.
#pragma once

struct NamedKernel {
    const char* name;
    decltype(&sample_rows_f32) run;
};

#define NAMED_KERNEL(kernel) {#kernel, kernel}
constexpr NamedKernel kKernels[] = {NAMED_KERNEL(sample_rows_f32), NAMED_KERNEL(sample_rows_f16),
                                    NAMED_KERNEL(sample_rows_bf16), NAMED_KERNEL(weigh_rows_f32),
                                    NAMED_KERNEL(weigh_rows_f16),  NAMED_KERNEL(weigh_rows_bf16), NAMED_KERNEL(spread_rows_f32),
                                    NAMED_KERNEL(spread_rows_f16), NAMED_KERNEL(spread_rows_bf16)};
constexpr decltype(&sample_rows_f32) kSpread[] = {spread_rows_f32, spread_rows_f16, spread_rows_bf16};
#undef NAMED_KERNEL
