#pragma once
// The interface of the NCCL plugin (trainer/c10d-nccl). Both sides include this file. A change to it, or to the
// handles that pass through it (pointers to a StorePtr and a GroupPtr of common.h), raises the number.
#include <cstdint>

#define FB_PLUGIN_ABI 3

extern "C" {
// `NcclSettings` of src/cuda.rs.
struct FbNcclOptions {
  bool high_priority_stream;
  uint16_t min_ctas;
  uint16_t max_ctas;
};
}
