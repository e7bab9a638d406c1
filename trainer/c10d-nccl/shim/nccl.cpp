// What the plugin does; src/lib.rs says why it is one.
#include "common.h"
#include "plugin.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/version.h>

using namespace forebay;

extern "C" {

int fb_plugin_abi_impl() { return FB_PLUGIN_ABI; }

const char* fb_plugin_torch_version_impl() { return TORCH_VERSION; }

char* fb_plugin_device_count_impl(int* out) {
  return guard([&] {
    *out = 0;
    *out = c10::cuda::device_count_ensure_non_zero();
  });
}

char* fb_plugin_add_nccl_impl(void* group_handle, void* store_handle, int device, int64_t timeout_ms,
                              const FbNcclOptions* wanted) {
  return guard([&] {
    auto& shared = *static_cast<GroupPtr*>(group_handle);
    auto& store = *static_cast<StorePtr*>(store_handle);
    int devices = c10::cuda::device_count_ensure_non_zero();
    TORCH_CHECK(device >= 0 && device < devices, "no CUDA device ", device, ": this machine has ", devices);
    at::Device here(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    c10::cuda::set_device(here.index());
    auto options = c10d::ProcessGroupNCCL::Options::create(wanted->high_priority_stream);
    options->timeout = milliseconds(timeout_ms);
    // The variables NCCL_* say the rest; NCCL reads them itself.
    if (wanted->min_ctas > 0) options->config.minCTAs = wanted->min_ctas;
    if (wanted->max_ctas > 0) options->config.maxCTAs = wanted->max_ctas;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl", store), shared->getRank(), shared->getSize(),
        options);
    // The backend learns its device as it is set.
    shared->setBoundDeviceId(here);
    shared->setBackend(here.type(), c10d::ProcessGroup::BackendType::NCCL, backend);
    // The communicator is made here, so a failure shows here, not in the first collective.
    backend->eagerConnectSingleDevice(here);
  });
}

}  // extern "C"
