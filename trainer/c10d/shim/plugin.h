#pragma once
// The interface of the NCCL plugin (trainer/c10d-nccl). Both sides include this file. A change to it, or to the
// handles that pass through it, raises the number.
#include <cstdint>

#define FB_PLUGIN_ABI 2

extern "C" {
struct FbNcclOptions {
  int64_t timeout_ms;
  int high_priority_stream;
  int min_ctas;
  int max_ctas;
};
}
