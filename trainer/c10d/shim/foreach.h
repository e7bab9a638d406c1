#pragma once
// The C face of the arithmetic over many tensors that src/ffi/foreach.rs declares; the rules are shim.h's.
#include <cstddef>

extern "C" {
char* fb_foreach(int operation, void* const* into, void* const* first, void* const* second, size_t count,
                 double number);
char* fb_foreach_sums(void* const* first, void* const* second, size_t count, double factor, void** out);
char* fb_foreach_adam_denominators(void* const* squares, size_t count, double correction, double eps, void** out);
char* fb_global_norm(void* const* values, size_t count, double* out);
char* fb_unscale(void* const* values, size_t count, double factor, int* finite);
}
